"""Tests that Docker builds complete targets offline from their Dockerfiles with the locked files.

The targets are built one after another, because each build takes about 25 GB of disk space. The
cache of BuildKit is removed after each build. These are long tests: test_builders.py tests a small
image in the same way.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import needs

ROOT = Path(__file__).parents[2]
TARGETS = ("cu124-vllm", "cu130-vllm")
MEMORY = 400  # MB that a comparison may take, whatever the image
ARCH = ("--arch", "x86_64")
OURS = 'description~="venv-|stage-|installer-|exec /bin/sh|local source for|OCI load|pulled from"'
# Prints the peak memory in kB on the last line. Not getrusage, whose maximum includes the memory
# of the forked pytest process before exec.
MEASURED = """\
import re, sys
from pathlib import Path
from imgbuild.cli import main
try:
    main()
finally:
    print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1], file=sys.stderr)
"""

pytestmark = [
    pytest.mark.long, pytest.mark.engine, pytest.mark.network, pytest.mark.disk(26),
    pytest.mark.timeout(2400),
]  # fmt: skip


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """The committed locks and Dockerfiles in a separate folder, which is removed at the end."""
    docker = needs.require_buildx()
    shutil.copytree(ROOT / "images", tmp_path / "images")
    shutil.copy(ROOT / "matrix.yaml", tmp_path)
    yield tmp_path
    shutil.rmtree(tmp_path / "build", ignore_errors=True)
    subprocess.run(
        [docker, "buildx", "prune", "--all", "--force", "--filter", OURS],
        check=True, capture_output=True,
    )  # fmt: skip


def imgbuild(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run imgbuild in `folder`. The last line of stderr is the memory used in kB."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *words],
        cwd=folder, env=os.environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done


@pytest.mark.parametrize("target", TARGETS)
def test_docker_build_of_committed_dockerfile_has_the_same_files(project, target):
    done = imgbuild(project, "diff", target, *ARCH, "--builder", "docker", "--json")
    assert f"building {target} for x86_64 with docker …" in done.stderr
    (answer,) = json.loads(done.stdout)
    comparison = answer["comparison"]
    assert (answer["name"], answer["arch"], comparison["equal"]) == (target, "x86_64", True)
    assert comparison["left"]["paths"] > 40_000
    assert comparison["left"]["bytes"] > 8e9
    assert int(done.stderr.split()[-1]) / 1000 < MEMORY
    # The variant exists only on arm64, and only cu130-vllm has an executable RECORD.
    assert {each["field"] for each in comparison["unused"]} <= {"variant", "mode"}
