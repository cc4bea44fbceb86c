"""Tests findings about wheel names that contradict torch, CUDA or the C++ ABI."""

from imgbuild.audit.checks import build_tags
from imgbuild.report import Severity
from tests.support import audited
from tests.support.rows import each_row


def opened(tmp_path, versions):
    pins: dict[str, dict[str, bytes]] = {
        f"{package}=={version}": {} for package, version in versions.items()
    }
    return audited.package_set(tmp_path, pins)


@each_row(
    ("version", "torch", "subject", "words", "remedy"),
    [
        ("2.7.4.post1+cu12torch2.6cxx11abifalse", "2.7.1+cu126", "torch2.6",
         "is compiled for torch 2.6, but torch is 2.7.1+cu126", "torch2.7"),
        ("2.8.3+cu128torch2.10", "2.1.0", "torch2.10", "compiled for torch 2.10", "torch2.1"),
        ("1.0+cu11torch2.6", "2.6.0+cu124", "cu11", "compiled for CUDA 11", "cu12"),
        ("1.0+cu130", "2.6.0+cu124", "cu130", "compiled for CUDA 13.0", "cu12"),
        ("2.7.4+cu12torch2.6cxx11abitrue", "2.6.0", "cxx11abiTRUE",
         "but torch 2.6.0 uses the pre-C++11 ABI", "cxx11abiFALSE"),
        ("2.7.4+cu12torch2.7cxx11abifalse", "2.7.0", "cxx11abiFALSE",
         "but torch 2.7.0 uses the C++11 ABI", "cxx11abiTRUE"),
    ],
)  # fmt: skip
def test_build_tag_contradicting_package_set_is_an_error(
    tmp_path, version, torch, subject, words, remedy
):
    package_set = opened(tmp_path, {"flash-attn": version, "torch": torch})
    (finding,) = build_tags.check_build_tags(package_set, "12.4")
    assert finding.severity is Severity.ERROR
    assert words in finding.message
    assert f"flash_attn-{version}-py3-none-any.whl" in finding.message
    assert finding.remedy == f"choose a wheel of flash-attn with {remedy} in its name"
    assert finding.evidence is not None
    assert finding.evidence.subject == subject


@each_row(
    ("version", "torch"),
    [
        ("2.7.4.post1+cu12torch2.6cxx11abifalse", "2.6.0"),
        ("2.7.4.post1+cu12torch2.6cxx11abitrue", "2.6.0+cu126"),
        ("0.2.5+cu121torch2.6", "2.6.0+cu124"),
        ("2.7.4.post1+cu12torch2.7cxx11abifalse", "2.7.0a0+7c8ec84dab.nv25.3"),
        ("2.7.4.post1", "2.6.0"),
        ("1.0+local", "2.6.0"),
    ],
)
def test_build_tag_that_matches_the_package_set_is_not_reported(tmp_path, version, torch):
    package_set = opened(tmp_path, {"flash-attn": version, "torch": torch})
    assert build_tags.check_build_tags(package_set, "12.4") == []


def test_build_tag_is_compared_with_the_cuda_release_if_torch_is_missing(tmp_path):
    package_set = opened(tmp_path, {"kernels": "1.0+cu13torch2.9"})
    (finding,) = build_tags.check_build_tags(package_set, "12.4")
    assert "is for CUDA 12.4" in finding.message
    assert build_tags.check_build_tags(package_set, "") == []


def test_torch_constraint_is_learned_from_build_tag(tmp_path):
    package_set = opened(tmp_path, {"flash-attn": "2.7+cu12torch2.6", "torch": "2.7.0"})
    (finding,) = build_tags.check_build_tags(package_set, "12.4")
    assert finding.evidence is not None
    assert (finding.evidence.other, finding.evidence.spec) == ("torch", "==2.6.*")
