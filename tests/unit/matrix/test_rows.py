"""Tests that rows of this repository's matrix pin only axes and repeat no settings."""

from __future__ import annotations

import functools

from imgbuild.lock.lock_file import make_lock
from imgbuild.lock.resolution import Resolution
from imgbuild.matrix import flashinfer
from imgbuild.matrix.load import load_matrix
from imgbuild.matrix.model import Matrix
from imgbuild.show import status
from imgbuild.values import Arch
from tests.support.rows import each_row
from tests.support.source_code import ROOT

# The properties that select a target. Others are derived: from METADATA, the cut-off and learned
# constraints (images/constraints.yaml). transformers is pinned if a model needs an older one:
# Qwen2.5-VL with vLLM 0.8.
AXES = {
    "torch", "vllm", "sglang", "trl", "verl", "tensordict", "ray", "deepspeed", "unsloth",
    "unsloth-zoo", "flashinfer-python", "flashinfer-cubin", "flashinfer-jit-cache",
    "transformers",
}  # fmt: skip
OTHERS = {
    "cuda-python", "flash-attn", "nvidia-cuda-cccl", "nvidia-cuda-nvcc", "peft", "pyairports",
    "sentencepiece",
}  # fmt: skip
FLASH_ATTN = {"cu121-vllm0.6.3-verl0.2", "cu124-verl0.4", "cu128-verl0.7"}


@functools.cache
def matrix() -> Matrix:
    """The project's own matrix."""
    return load_matrix(ROOT / "matrix.yaml")


NAMES = list(matrix().targets)


@each_row("name", NAMES)
def test_rows_pin_only_packages_that_are_update_axes(name: str) -> None:
    target = matrix().targets[name]
    assert set(target.pins) <= AXES
    assert set(target.requires) <= OTHERS


@each_row("name", NAMES)
def test_rows_do_not_repeat_settings_of_the_flashinfer_mode(name: str) -> None:
    target, image = matrix().targets[name], matrix().image
    base = matrix().bases[target.base]
    assert not flashinfer.mode_requirements(target).keys() & target.requires.keys()
    assert not flashinfer.mode_environment(target, image, base).keys() & target.env.keys()
    assert not flashinfer.toolkit_links(target, image, base).keys() & target.links.keys()


@each_row("name", NAMES)
def test_rows_have_gpus_test_notes_and_matching_names(name: str) -> None:
    target = matrix().targets[name]
    assert target.gpu
    assert target.tested
    assert set(target.arch) | set(target.exclude) == set(Arch)
    assert f"CUDA {target.cuda}" in target.summary or name.endswith(("-arm64", "-flashinfer"))
    assert name.startswith("cu" + target.cuda.replace(".", ""))


@each_row("name", NAMES)
def test_flashinfer_mode_is_set_in_committed_locks(name: str) -> None:
    lock = make_lock(matrix(), name, {Arch.X86_64: Resolution(wheels=())})
    mode = matrix().targets[name].flashinfer.mode
    assert lock.settings.env["IMGBUILD_FLASHINFER"] == mode
    assert lock.settings.labels["dev.imgbuild.flashinfer"] == mode
    compiles = mode == "jit" or "nvidia-cuda-nvcc" in matrix().targets[name].requires
    assert ("CUDA_HOME" in lock.settings.env) == compiles
    if matrix().targets[name].cuda.startswith("12"):
        assert mode != "jit"


def test_ray_deepspeed_unsloth_and_sglang_have_targets() -> None:
    pinned = {package for target in matrix().targets.values() for package in target.pins}
    assert {"ray", "deepspeed", "unsloth", "sglang", "verl"} <= pinned


def test_targets_that_require_wheels_or_indexes_are_listed() -> None:
    lacking = {name: status.target_needs(matrix(), name) for name in NAMES}
    wheels = {name for name, reasons in lacking.items() if any("a wheel" in r for r in reasons)}
    pages = {name for name, reasons in lacking.items() if any("the index" in r for r in reasons)}
    assert wheels >= FLASH_ATTN
    assert pages == {
        "cu124-flashinfer", "cu126-trl-arm64", "cu128-vllm-arm64", "cu129-vllm-arm64",
        "cu130-flashinfer",
    }  # fmt: skip
    assert all("flash-attn" in matrix().targets[name].requires for name in FLASH_ATTN)
