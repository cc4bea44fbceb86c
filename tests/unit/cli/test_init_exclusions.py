"""Tests `imgbuild init` with excluded packages, and the CUDA release of torch."""

from __future__ import annotations

import pytest

from tests.support.inprocess_project import Command, unwrap_text
from tests.support.local_index import LocalIndex, sdist_bytes
from tests.unit.cli.test_init_project import MET, TARGET, imgbuild, index, require, row

__all__ = ("imgbuild", "index")


def test_cuda_source_package_is_excluded_with_reason(imgbuild: Command, index: LocalIndex) -> None:
    sdist = sdist_bytes("flash_attn", "2.7.4", {"setup.py": b"CUDAExtension"})
    index.add("flash-attn", "flash_attn-2.7.4.tar.gz", sdist)
    require(f"{MET}flash-attn==2.7.4\n")
    require("import torch\n\ndef f():\n    import flash_attn\n", "train.py")
    message = unwrap_text(imgbuild("init", status=0).stderr)
    assert "warning: flash-attn is excluded: the index has no wheel for Python 3.11" in message
    assert "flash_attn-2.7.4+cu12torch2.6cxx11abiFALSE-cp311-cp311-linux_x86_64.whl" in message
    assert "needed by train.py:4 (only in some cases)" in message
    assert "sdpa" in message
    assert set(row()["exclude"]) == {"flash-attn"}  # type: ignore[call-overload]
    assert row()["extends"] == TARGET


def test_dependents_of_cuda_source_packages_are_reported(
    imgbuild: Command, index: LocalIndex
) -> None:
    index.add("apex", "apex-0.1.tar.gz", sdist_bytes("apex", "0.1", {"setup.py": b""}))
    index.wheel("fast", "2.0", ["apex>=0.1"])
    index.wheel("slow", "2.0", ['apex ; extra == "gpu"'])
    index.wheel("plain", "2.0", ['apex ; extra == "gpu"'])
    require(f"{MET}apex\nfast\nslow[gpu]\nplain\n")
    done = imgbuild("init", status=0)
    needed = "needed by fast (fast-2.0-py3-none-any.whl), slow[gpu] (slow-2.0-py3-none-any.whl)"
    assert needed in unwrap_text(done.stderr)


def test_dependents_of_packages_that_the_user_excludes_are_reported(
    imgbuild: Command, index: LocalIndex
) -> None:
    for name, requires in (("solver", []), ("puzzles", ["solver==0.1"])):
        index.wheel(name, "1.0", requires)
    require(f"{MET}solver\npuzzles\n")
    require("try:\n    import torch\nfinally:\n    pass\nimport solver.core\n", "train.py")
    done = imgbuild("init", "--exclude", "solver", status=0)
    needed = "train.py:5, puzzles (puzzles-1.0-py3-none-any.whl)"
    assert f"warning: solver is excluded, but needed by {needed}" in unwrap_text(done.stderr)


@pytest.mark.parametrize(
    ("torch", "image", "warned"),
    [
        ("torch==2.6.0", "12.1.1", "12.1"),
        ("torch==2.6.0", "12.4.1", ""),
        ("torch", "11.8.0", "11.8"),
    ],
)
def test_cuda_release_of_a_dockerfile_image_does_not_select_the_torch_build(
    imgbuild: Command, index: LocalIndex, torch: str, image: str, warned: str
) -> None:
    index.wheel("torch", "2.6.0", ["nvidia-cuda-runtime-cu12==12.4.127"])
    index.wheel("transformers", "4.50.0")
    require(f"{torch}\ntransformers==4.50.0\n")
    require(f"FROM nvidia/cuda:{image}-base\nRUN pip install -r requirements.txt\n", "Dockerfile")
    done = imgbuild("init", "--target", TARGET, status=0)
    assert "cuda" not in row()
    words = f"the image has CUDA 12.4, as its torch build requires, not {warned} (Dockerfile:1)"
    assert (words in unwrap_text(done.stderr)) is bool(warned)


def test_an_index_for_a_cuda_release_without_torch_is_refused(
    imgbuild: Command, index: LocalIndex
) -> None:
    index.wheel("torch", "2.6.0", ["nvidia-cuda-runtime-cu12==12.4.127"])
    index.wheel("transformers", "4.50.0")
    require("--index-url https://download.pytorch.org/whl/cu118\ntorch\ntransformers==4.50.0\n")
    done = imgbuild("init", status=8)
    reason = "requirements.txt:1: CUDA 11.8: the index has no torch for this release"
    assert reason in unwrap_text(done.stderr)
