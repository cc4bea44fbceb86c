"""Tests `slurm --job check --submit` with jobs that end before they run."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from imgbuild.errors import Interrupted
from imgbuild.slurm import commands
from tests.support import needs, slurm_project
from tests.support.inprocess_project import TARGET, Command, write_project

pytestmark = pytest.mark.engine


@pytest.fixture(autouse=True, name="queue")
def _queue(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name, value in needs.require_slurm().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    yield
    for number in pending_jobs(tmp_path):
        subprocess.run(["scancel", number], check=True)


def pending_jobs(folder: Path) -> list[str]:
    """The numbers of jobs submitted in `folder` that have not ended."""
    completed = subprocess.run(
        ["squeue", "--noheader", "--me", "--format=%i %Z"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    rows = [line.split(maxsplit=1) for line in completed.stdout.splitlines()]
    return [number for number, place in rows if place == str(folder)]


@contextlib.contextmanager
def once_held(folder: Path, then: Callable[[str], object]) -> Iterator[None]:
    """Call `then` with the number of the job once a job of `folder` exists."""
    over = threading.Event()

    def _look() -> None:
        while not over.is_set():
            if jobs := pending_jobs(folder):
                then(jobs[0])
                return
            over.wait(0.5)

    thread = threading.Thread(target=_look)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def scancel(number: str) -> None:
    subprocess.run(["scancel", number], check=True)


@pytest.mark.long
def test_check_job_cancelled_in_the_queue_has_not_passed(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("IMGBUILD_CACHE", str(tmp_path / "cache"))
    write_project(tmp_path)
    (tmp_path / "some.sif").touch()
    with once_held(tmp_path, scancel):
        done = Command(monkeypatch, capsys)(
            "slurm",
            TARGET,
            "--sif-file",
            "some.sif",
            "--job",
            "check",
            "--submit",
            "--sbatch=--hold",
        )
    assert done.status == 1
    assert re.search(r"job \d+ ended with state cancelled before the check finished", done.stderr)


def test_check_job_without_output_has_not_passed(tmp_path, monkeypatch, capsys):
    """A custom job script of the project succeeds without output."""
    monkeypatch.setenv("IMGBUILD_CACHE", str(tmp_path / "cache"))
    write_project(tmp_path)
    template = tmp_path / "images/templates/slurm/check.j2"
    template.parent.mkdir(parents=True, exist_ok=True)
    head = "#SBATCH --output={{ log | sbatch }}\n#SBATCH --job-name={{ name }}\n"
    template.write_text(f"#!/bin/sh\n{head}:\n")
    (tmp_path / "some.sif").touch()
    Command(monkeypatch, capsys)(
        "slurm", TARGET, "--sif-file", "some.sif", "--job", "check", "--submit", status=1
    )


def ended(line: str, folder: Path, *options: str) -> str:
    """The final state of a job with one line."""
    script = f"#!/bin/sh\n{line}\n"
    return commands.wait_for_job(
        commands.submit_script(script, folder, ["--output=/dev/null", *options])
    )


def test_job_end_state_is_read_from_slurm(tmp_path):
    with once_held(tmp_path, scancel):
        assert ended("sleep 600", tmp_path, "--hold") == "CANCELLED"
    assert ended("exit 7", tmp_path) == "FAILED"
    assert ended(":", tmp_path) == "COMPLETED"


def test_job_missing_in_slurm_is_reported_as_lost():
    assert commands.wait_for_job("999999999") == commands.LOST_STATE


def test_job_uses_no_port_that_is_already_in_use(tmp_path):
    """The test runs the lines of the committed scripts that choose ports."""
    lines = (
        (slurm_project.SCRIPTS / "check.sh")
        .read_text("utf-8")
        .partition("# --- nodes and ports")[2]
    )
    ports = lines.partition("\n")[2].partition("\n# --- ")[0]
    words = "set -euo pipefail\n", ports, 'for _ in 1 2; do free_port; echo "$taken"; done\n'
    log = tmp_path / "log"
    number = commands.submit_script(
        "#!/bin/bash\n" + "".join(words), tmp_path, ["--hold", f"--output={log}"]
    )
    first = 20000 + int(number) % 1000 * 10
    with socket.create_server(("", first)):
        subprocess.run(["scontrol", "release", number], check=True)
        assert commands.wait_for_job(number) == "COMPLETED"
    assert log.read_text().split() == [str(first + 1), str(first + 2)]


def test_interrupt_removes_the_check_job_from_the_queue(tmp_path, monkeypatch):
    """The interrupt is sent between two queries, because a query may leave a pipe open."""
    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", lambda _: signal.raise_signal(signal.SIGINT))
        with pytest.raises(Interrupted, match="were cancelled"):
            ended("sleep 600", tmp_path, "--hold")
    slurm_project.wait_until(lambda: not pending_jobs(tmp_path), "the job is gone")
