"""`imgbuild lock` of real targets from nothing: no lock, no record of a layer, nothing learned.

The committed locks were made so, in one command for the whole matrix; here the two that the README
speaks of. The wheels stay in the cache for the tests of the main job.
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
TARGETS = ("cu124-vllm", "cu130-vllm")
LEARNED = "constraints.yaml"

pytestmark = [pytest.mark.network, pytest.mark.disk(16), pytest.mark.timeout(2400)]


def lines(path: Path) -> set[str]:
    """The lines of a file; none if there is no such file."""
    return set(path.read_text().splitlines()) if path.exists() else set()


def test_locks_from_nothing_are_the_committed_ones(tmp_path):
    """What is resolved, audited, learned and sealed today equals what was, byte for byte."""
    shutil.copy(ROOT / "matrix.yaml", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "imgbuild", "lock", *TARGETS, "--keep", "--json"],
        cwd=tmp_path,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [item["target"] for item in json.loads(done.stdout)] == list(TARGETS)
    for target in TARGETS:
        for made in sorted((tmp_path / "images" / target).glob("*.json")):
            committed = ROOT / "images" / target / made.name
            assert made.read_bytes() == committed.read_bytes(), made.name
    learned = lines(tmp_path / "images" / LEARNED)
    assert learned <= lines(ROOT / "images" / LEARNED)
