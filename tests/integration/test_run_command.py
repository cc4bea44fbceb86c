"""`imgbuild run` as a command: what it says, and with which status it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from imgbuild.values import Arch
from tests.support import images, needs
from tests.support.matrix_text import RIGHT

pytestmark = pytest.mark.engine
TARGET = "cu124-vllm"
SCRIPT = "echo said; echo told >&2; cat hello; exit 7"


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose target is a shell that says hello."""
    needs.user_namespaces()
    folder = tmp_path_factory.mktemp("run")
    (folder / "matrix.yaml").write_text(RIGHT, encoding="utf-8")
    (folder / "build").mkdir()
    images.tiny(folder, [Arch.X86_64]).rename(folder / "build" / TARGET)
    return folder


def run(
    folder: Path, through: str, *options: str, script: str = SCRIPT
) -> subprocess.CompletedProcess[str]:
    command = ["run", TARGET, "--arch", "x86_64", "--through", through, *options]
    return subprocess.run(
        [sys.executable, "-m", "imgbuild", *command, "--", "sh", "-c", script],
        cwd=folder,
        env={**os.environ, "IMGBUILD_CACHE": str(folder / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )


def test_status_and_streams_are_the_commands(folder: Path) -> None:
    done = run(folder, "root", "-q")
    assert (done.returncode, done.stdout, done.stderr) == (7, "said\nhello\n", "told\n")


def test_as_data(folder: Path) -> None:
    done = run(folder, "root", "--json")
    assert done.returncode == 7
    assert json.loads(done.stdout) == {
        "target": TARGET,
        "arch": "x86_64",
        "through": "root",
        "status": 7,
        "stdout": "said\nhello\n",
        "stderr": "told\n",
    }
    assert "told" not in done.stderr


def test_nothing_is_left_in_the_cache(folder: Path) -> None:
    run(folder, "root", "-q", script="mkdir /tmp/closed; touch /tmp/closed/x; chmod 0 /tmp/closed")
    left = [path for path in (folder / "cache").rglob("*") if path.name in ("root", "closed")]
    assert left == []
