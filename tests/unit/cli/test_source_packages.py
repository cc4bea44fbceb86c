"""Tests the advice of `add` and `lock` on packages with CUDA source."""

from __future__ import annotations

from pathlib import Path

import pytest

from imgbuild.cli import init as verb
from tests.support import folder_index
from tests.support.inprocess_project import Command, enter_folder, unwrap_text
from tests.support.local_index import LocalIndex, sdist_bytes

TARGET = "cu124-vllm0.8.5"
WHEEL = "flash_attn-2.7.4+cu12torch2.6cxx11abiFALSE-cp311-cp311-linux_x86_64.whl"


@pytest.fixture
def imgbuild(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """A project that extends TARGET, with an index in a folder."""
    enter_folder(tmp_path, monkeypatch)
    index = LocalIndex()
    cuda = {"setup.py": b"from torch.utils.cpp_extension import CUDAExtension\n"}
    index.add("flash-attn", "flash_attn-2.7.4.tar.gz", sdist_bytes("flash_attn", "2.7.4", cuda))
    index.add("kernels-x", "kernels_x-1.0.tar.gz", sdist_bytes("kernels_x", "1.0", cuda))
    python = {"setup.py": b"setup()", "scorer.py": b""}
    index.add("scorer", "scorer-1.0.tar.gz", sdist_bytes("scorer", "1.0", python))
    index.wheel("fast", "2.0", ["flash-attn>=2"])
    catalogue = folder_index.catalogue_with(index, tmp_path / "index")
    monkeypatch.setattr(verb, "load_matrix", lambda _: catalogue)
    Path("requirements.txt").write_text("torch\n")
    Path("train.py").write_text("def f():\n    import flash_attn\n")
    command = Command(monkeypatch, capsys)
    assert command("init", "--target", TARGET).status == 0
    with Path("matrix.yaml").open("a") as file:
        file.write(f"indexes:\n  pypi: {{url: 'file://{tmp_path}/index', upload_times: none}}\n")
    return command


def test_lock_lists_cuda_source_packages_together_with_all_other_causes(imgbuild: Command) -> None:
    Path("requirements.txt").write_text("torch\nflash-attn\nkernels-x\nscorer\nfast\nnosuch\n")
    message = unwrap_text(imgbuild("lock", status=8).stderr)
    reason = "the index has no wheel for Python 3.11, torch 2.6.0 and CUDA 12.4"
    assert f"requirements.txt:2: flash-attn: {reason}" in message
    assert f"the URL of a wheel: `flash-attn @ https://…/{WHEEL}`" in message
    assert "needed by train.py:2 (only in some cases), fast (fast-2.0-py3-none-any.whl)" in message
    assert 'without it: attn_implementation="sdpa"' in message
    assert "exclude it in matrix.yaml: exclude: {flash-attn: REASON}" in message
    assert f"requirements.txt:3: kernels-x: {reason}" in message
    assert "no Python file of the project imports it" in message
    assert "sdists: {scorer: {reason: only an sdist exists}}" in message
    assert "requirements.txt:6: nosuch: the index has no such package" in message


def test_add_command_gives_the_same_advice_about_cuda_source_packages(imgbuild: Command) -> None:
    before = Path("matrix.yaml").read_text()
    message = unwrap_text(imgbuild("add", "flash-attn", "nosuch", status=8).stderr)
    assert "because flash-attn: the index has no wheel for Python 3.11" in message
    assert WHEEL in message
    assert "needed by train.py:2" in message
    assert "nosuch: the index has no such package" in message
    assert Path("matrix.yaml").read_text() == before
