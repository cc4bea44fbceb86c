"""Tests that current locks have the packages that quick starts of frameworks import."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import msgspec

from imgbuild.lock import lock_file
from imgbuild.matrix.load import load_matrix
from imgbuild.matrix.model import Matrix
from imgbuild.values import normalize_package
from tests.support.rows import each_row
from tests.support.source_code import ROOT


class QuickStart(msgspec.Struct, frozen=True):
    """The distributions that a quick start imports, and its source."""

    distributions: tuple[str, ...]
    source: str


# By the package that a lock has if its target is for the framework.
QUICK_STARTS = {
    "trl": QuickStart(
        ("trl", "datasets", "transformers", "accelerate", "math-verify", "peft"),
        "trl==1.16.0 trl-1.16.0.dist-info/METADATA:184, docs/source/peft_integration.md",
    ),
    "vllm": QuickStart(
        ("vllm", "openai", "transformers", "huggingface-hub"),
        "https://docs.vllm.ai/en/latest/getting_started/quickstart.html",
    ),
    "ray": QuickStart(
        ("ray", "aiohttp", "aiohttp-cors", "smart-open", "virtualenv", "py-spy", "debugpy"),
        "https://docs.ray.io/en/latest/cluster/running-applications/job-submission/quickstart.html",
    ),
    "verl": QuickStart(
        (
            "verl", "datasets", "hydra-core", "ray", "tensordict", "wandb", "tensorboard", "peft",
            "qwen-vl-utils", "math-verify",
        ),
        "https://verl.readthedocs.io/en/latest/start/quickstart.html",
    ),
    "sglang": QuickStart(
        ("sglang", "openai", "requests"),
        "https://docs.sglang.io/basic_usage/send_request.html",
    ),
    "unsloth": QuickStart(
        ("unsloth", "unsloth-zoo", "trl", "datasets", "peft", "bitsandbytes"),
        "https://unsloth.ai/docs/get-started/fine-tuning-llms-guide",
    ),
}  # fmt: skip


@functools.cache
def matrix() -> Matrix:
    """The project's own matrix."""
    return load_matrix(ROOT / "matrix.yaml")


def _current() -> Iterator[str]:
    """The locked targets that are not retired and have extras."""
    for name, target in matrix().targets.items():
        if (
            target.extras
            and not target.retired
            and lock_file.lock_path(ROOT / "images", name).exists()
        ):
            yield name


def test_each_framework_has_a_target_with_extras() -> None:
    pinned = {package for name in _current() for package in matrix().targets[name].pins}
    assert pinned >= QUICK_STARTS.keys()


@each_row("name", list(_current()))
def test_imports_of_quick_starts_are_locked(name: str) -> None:
    for arch, resolution in lock_file.read_lock(ROOT / "images", name).arch.items():
        have = {normalize_package(package) for package in resolution.versions}
        for framework, start in QUICK_STARTS.items():
            if framework in have:
                missing = set(start.distributions) - have
                assert not missing, f"{arch}: {framework} ({start.source})"


@each_row("name", list(_current()))
def test_target_includes_the_extras_of_its_frameworks(name: str) -> None:
    target = matrix().targets[name]
    assert "rl" in target.extras
    assert ("ray" in target.pins) == bool({"ray", "ray-2.47"} & set(target.extras))
    assert ("verl" in target.pins) == ("vision" in target.extras)
