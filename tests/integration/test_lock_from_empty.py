"""Tests `imgbuild lock` of a real target without locks, layers and learned constraints."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from imgbuild.lock import lock_file
from imgbuild.plan import image_digests

ROOT = Path(__file__).parents[2]
TARGET = "cu124-vllm"

pytestmark = [
    pytest.mark.long, pytest.mark.network, pytest.mark.disk(24), pytest.mark.timeout(2400),
]  # fmt: skip


def imgbuild(folder: Path, *words: str) -> list[dict[str, Any]]:
    """The JSON that the command prints in `folder`."""
    done = subprocess.run(
        [sys.executable, "-m", "imgbuild", *words, "--json"],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer: list[dict[str, Any]] = json.loads(done.stdout)
    return answer


def test_target_is_locked_built_and_audited_without_errors(tmp_path):
    """Files of the index may differ from the locked ones, so committed files are not compared."""
    shutil.copy(ROOT / "matrix.yaml", tmp_path)
    assert [item["target"] for item in imgbuild(tmp_path, "lock", TARGET, "--keep")] == [TARGET]
    lock = lock_file.read_lock(tmp_path / "images", TARGET)
    target_digests = image_digests.read_digests(tmp_path / "images", lock)
    [built] = imgbuild(tmp_path, "build", TARGET, "--output", str(tmp_path / "out"))
    assert built["digest"] == target_digests.digest
    shutil.rmtree(tmp_path / "out")
    [audited] = imgbuild(tmp_path, "audit", TARGET)
    assert [finding for finding in audited["findings"] if finding["severity"] == "error"] == []
