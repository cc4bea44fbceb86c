"""Tests reading the CUDA release and torch of a wheel from its local version."""

from imgbuild.wheel.local_version import LocalVersionLabel, local_version_label, torch_cxx11
from tests.support.rows import each_row


@each_row(
    ("version", "cuda", "torch", "cxx11"),
    [
        ("2.7.4.post1+cu12torch2.6cxx11abiFALSE", "12", "2.6", False),
        ("2.8.3+cu12torch2.10cxx11abitrue", "12", "2.10", True),
        ("0.2.5+cu124torch2.6", "12.4", "2.6", None),
        ("2.8.1+cu128torch2.10", "12.8", "2.10", None),
        ("1.6.3+pt26cu124", "12.4", "2.6", None),
        ("1.6.3+pt210cu128", "12.8", "2.10", None),
        ("2.6.0+cu124", "12.4", "", None),
        ("0.9.2+cu130", "13.0", "", None),
        ("1.0+cuda", "", "", None),
        ("1.0+g1cu12345", "", "", None),
        ("2.6.0+cpu", "", "", None),
        ("2.6.0", "", "", None),
    ],
)
def test_local_version_describes_the_build(version, cuda, torch, cxx11):
    assert local_version_label(version) == LocalVersionLabel(cuda=cuda, torch=torch, cxx11=cxx11)


@each_row(
    ("version", "cxx11"),
    [
        ("2.5.1+cu124", False),
        ("2.6.0", False),
        ("2.6.0+cu124", False),
        ("2.6.0+cu126", True),
        ("2.7.0", True),
        ("2.10.0+cu130", True),
        ("2.7.0a0+7c8ec84dab.nv25.3", None),
        ("2.6.0+cpu", None),
    ],
)
def test_cxx_abi_of_pytorch_wheels_depends_on_the_version(version, cxx11):
    assert torch_cxx11(version) is cxx11
