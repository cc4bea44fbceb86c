"""`imgbuild lock` of a real target from nothing: no lock, no record of a layer, nothing learned.

The committed locks were made so, in one command for the whole matrix (docs/test-records); here
the one of the README. The wheels stay in the cache for the tests of the main job.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TARGET = "cu124-vllm"
LEARNED = "constraints.yaml"

pytestmark = [pytest.mark.network, pytest.mark.disk(16), pytest.mark.timeout(2400)]


def lines(path: Path) -> set[str]:
    """The lines of a file; none if there is no such file."""
    return set(path.read_text().splitlines()) if path.exists() else set()


def test_a_lock_from_nothing_is_the_committed_one(tmp_path):
    """What is resolved, audited, learned and sealed today equals what was, byte for byte."""
    shutil.copy(ROOT / "matrix.yaml", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "imgbuild", "lock", TARGET, "--keep", "--json"],
        cwd=tmp_path,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [item["target"] for item in json.loads(done.stdout)] == [TARGET]
    made = sorted((tmp_path / "images" / TARGET).glob("*.json"))
    assert [file.name for file in made] == ["digests.json", "lock.json"]
    for file in made:
        assert file.read_bytes() == (ROOT / "images" / TARGET / file.name).read_bytes(), file.name
    learned = lines(tmp_path / "images" / LEARNED)
    assert learned <= lines(ROOT / "images" / LEARNED)
