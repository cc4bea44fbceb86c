"""Tests recognizing GPUs by the names that nvidia-smi, cloud providers and users write."""

from __future__ import annotations

from imgbuild.audit.binaries import gpu_models
from imgbuild.values import Arch
from tests.support.rows import each_row


@each_row(
    ("name", "capability"),
    [
        ("A100", "8.0"),
        ("a100", "8.0"),
        ("NVIDIA A100-SXM4-80GB", "8.0"),
        ("A100-PCIE-40GB", "8.0"),
        ("NVIDIA H100 80GB HBM3", "9.0"),
        ("H100 NVL", "9.0"),
        ("NVIDIA B300 SXM6 AC", "10.3"),
        ("Tesla V100-SXM2-32GB", "7.0"),
        ("Tesla T4", "7.5"),
        ("A10G", "8.6"),
        ("rtx4090", "8.9"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "8.9"),
        ("RTX 3090 Ti", "8.6"),
        ("3090", "8.6"),
        ("4090 laptop", "8.9"),
        ("1660 SUPER", "7.5"),
        ("NVIDIA RTX A6000", "8.6"),
        ("NVIDIA RTX 6000 Ada Generation", "8.9"),
        ("Quadro RTX 6000", "7.5"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "12.0"),
        ("RTX 50", "12.0"),
        ("9.0", "9.0"),
        ("sm_90a", "9.0"),
        ("sm_120", "12.0"),
    ],
)
def test_common_spellings_of_gpu_models_are_recognized(name: str, capability: str) -> None:
    model = gpu_models.find_gpu_model(name)
    assert model is not None
    assert (model.capability, model.arch) == (capability, None)


@each_row(
    ("name", "capability"),
    [
        ("NVIDIA GH200 480GB", "9.0"),
        ("GB200", "10.0"),
        ("NVIDIA Thor", "11.0"),
        ("Jetson AGX Orin", "8.7"),
        ("DGX Spark", "12.1"),
        ("NVIDIA GB10", "12.1"),
    ],
)
def test_integrated_gpus_require_arm64(name: str, capability: str) -> None:
    model = gpu_models.find_gpu_model(name)
    assert model is not None
    assert (model.capability, model.arch) == (capability, Arch.ARM64)


def test_tegra_capability_requires_arm64() -> None:
    model = gpu_models.find_gpu_model("8.7")
    assert model is not None
    assert (model.tegra, model.arch) == (True, Arch.ARM64)


@each_row(
    "name",
    ["", "NVIDIA", "MI300X", "A100X2", "RTX 6000", "RTX 3000", "4000", "5880", "hopper", "A" * 200],
)
def test_unknown_gpu_models_are_rejected(name: str) -> None:
    assert gpu_models.find_gpu_model(name) is None


def test_similar_gpu_model_is_suggested() -> None:
    assert gpu_models.most_similar_name("H1000") == "H100"
    assert gpu_models.most_similar_name("hopper") == ""


def test_gpu_model_names_are_unique() -> None:
    names = [name for model in gpu_models.load_gpu_models() for name in model.names]
    assert len(names) == len(set(names))
    for model in gpu_models.load_gpu_models():
        for name in model.names:
            assert gpu_models.find_gpu_model(name.replace("##", "90")) == model, name


def test_list_of_gpus_has_names_and_omits_gpus_of_other_machines() -> None:
    able, later = ("9.0", "8.0", "12.1", "11.0"), ("9.0", "12.1")
    compiled = "; the driver compiles some code for 9.0 at first use"
    assert gpu_models.gpu_list(able, later, Arch.X86_64) == (
        f"A100, A30 (8.0), H100, H200 (9.0), 11.0{compiled}"
    )
    assert gpu_models.gpu_list(able, (), Arch.ARM64) == (
        "A100, A30 (8.0), H100, H200, GH200 (9.0), 11.0, DGX Spark (12.1)"
    )
    assert gpu_models.gpu_list((), later, Arch.X86_64) == f"H100, H200 (9.0){compiled}"
    assert gpu_models.gpu_list((), (), None) == ""
    assert gpu_models.gpu_span(able) == "8.0-12.1"
    assert gpu_models.gpu_span(()) == ""
