"""Tests that a job script handles path variables as `imgbuild run` does."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from imgbuild.container import path_variables
from imgbuild.container.path_variables import PathVariables
from imgbuild.slurm import jobs

SCRIPTS = Path(__file__).parents[1] / "data/slurm"
ROWS = [
    (row, name)
    for row in path_variables.path_variable_table()
    for name in row.names
    if name not in jobs.OWN_VARIABLES
]


def decide(
    script: str, env: dict[str, str], folder: Path
) -> tuple[list[str], list[str], list[str]]:
    """The mounts, variables and messages of the job script."""
    text = (SCRIPTS / f"{script}.sh").read_text("utf-8")
    part = text[text.index("# Variables whose value") : text.index("# On every node, as long")]
    bash = shutil.which("bash")
    assert bash
    done = subprocess.run(
        [bash, "-c", f'set -euo pipefail; models=/models\n{part}\necho "$binds"; echo "=$mounted"'],
        env={"PATH": os.environ["PATH"], "SLURM_JOB_NAME": "job", "HOME": "/home/me", **env},
        cwd=folder, capture_output=True, text=True, check=True,
    )  # fmt: skip
    binds, _, mounted = done.stdout.partition("=")
    return binds.split(), mounted.split(), done.stderr.splitlines()


@pytest.mark.parametrize("script", ["single", "ray-pyxis"])
@pytest.mark.parametrize(("row", "name"), ROWS, ids=[name for _, name in ROWS])
def test_job_script_passes_the_same_paths_as_the_run_command(
    row: PathVariables, name: str, script: str, tmp_path: Path
) -> None:
    (tmp_path / "here").mkdir()
    value = tmp_path / "value"
    if row.holds == "folder":
        value.mkdir()
    elif row.holds == "file":
        value.touch()
    env = {name: str(value)}
    passed_variables = path_variables.passed_paths(env)
    binds, mounted, lines = decide(script, env, tmp_path / "here")
    assert mounted == list(passed_variables.env)
    assert binds == [
        mount.target if mount.writable else f"{mount.source}:{mount.target}:ro"
        for mount in passed_variables.mounts
    ]
    assert len(lines) == len(passed_variables.messages)
    for line, message in zip(lines, passed_variables.messages, strict=True):
        assert line.startswith("job: " + message.partition("; to pass")[0])
        assert line.endswith(f"--bind {value} --env {name}")


@pytest.mark.parametrize("value", ["/", "/opt", "/tmp", "/proc/absent", "/a,b"])
def test_job_script_refuses_paths_that_cannot_be_mounted(value: str, tmp_path: Path) -> None:
    binds, mounted, lines = decide("single", {"HF_HUB_CACHE": value}, tmp_path)
    assert (binds, mounted) == ([], [])
    assert any(f"job: HF_HUB_CACHE={value} is not passed: " in line for line in lines)


def test_job_script_reports_other_path_variables(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    env = {"UCX_FILE": str(tmp_path), "FI_FILE": "/absent", "OTHER": str(tmp_path)}
    _, _, (line,) = decide("single", env, tmp_path / "here")
    assert line.startswith(f"job: UCX_FILE={tmp_path}: nothing mounts this path; ")
