"""Tests that SIGTERM and SIGHUP end a command like Ctrl-C, with one message and no leftovers."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from imgbuild.assemble import workers
from tests.support import images, sample_project
from tests.support.sample_project import TARGET, Project
from tests.support.servers import FileSite, serve_site

SECONDS = 120  # time limit of a hanging process
LINE = "def f{0}(a, b={0}):\n    return [g(a, key=b + n) for n in range({0}) if n % 2]\n"


@pytest.fixture(name="project")
def _project(tmp_path: Path) -> Iterator[Project]:
    """A project with wheels so large that worker processes are used."""
    images.python_base(tmp_path)
    index = sample_project.sample_index()
    text = "".join(LINE.format(number) for number in range(4000)).encode()
    files = {f"large/m{number}.py": text for number in range(40)}
    data = [random.Random(seed).randbytes(workers.PARALLEL_MINIMUM) for seed in (0, 1)]
    index.wheel("large", "1.0", files={"large/__init__.py": b"", "large/data": data[0], **files})
    files = {"thewheel/__init__.py": b"", "thewheel/data": data[1]}
    index.wheel("thewheel", "3.0", ["large"], files=files)
    with serve_site(FileSite(files=index.site_files())) as site:
        base = sample_project.registry_base(
            sample_project.serve_image(site, tmp_path / "base", "base")
        )
        project = Project(tmp_path / "project", site.url("simple"), cache=tmp_path / "cache")
        (tmp_path / "temporary").mkdir()
        project.env["TMPDIR"] = str(tmp_path / "temporary")
        project.write(base, thewheel="3.0")
        yield project


def worker_processes(session: int) -> list[int]:
    """The worker processes of a session."""
    processes = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            process = int(folder.name)
            command = (folder / "cmdline").read_bytes()
            if os.getsid(process) == session and b"imgbuild.system.workers" in command:
                processes.append(process)
        except OSError:
            continue
    return processes


@pytest.mark.parametrize(
    ("sign", "everyone"),
    [
        (signal.SIGTERM, False),
        (signal.SIGINT, True),
        *(
            pytest.param(*each, marks=pytest.mark.long)
            for each in (
                (signal.SIGTERM, True),
                (signal.SIGHUP, False),
                (signal.SIGHUP, True),
                (signal.SIGINT, False),
            )
        ),
    ],
)
def test_signal_stops_lock_with_one_message(
    project: Project, sign: signal.Signals, everyone: bool
) -> None:
    process = subprocess.Popen(
        project.command("lock", TARGET, "--jobs", "2", "--json"),
        cwd=project.folder, env=project.environment(), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        end = time.monotonic() + SECONDS
        while len(worker_processes(process.pid)) < 2:
            assert time.monotonic() < end
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        if everyone:
            os.killpg(process.pid, sign)
        else:
            process.send_signal(sign)
        stdout, stderr = process.communicate(timeout=SECONDS)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    status = {signal.SIGTERM: 143, signal.SIGHUP: 129, signal.SIGINT: 130}[sign]
    assert process.returncode == status, stderr
    assert "Traceback" not in stderr
    assert "resource_tracker" not in stderr
    (sentence,) = [line for line in stderr.splitlines() if line.startswith("error: ")]
    assert "completed work is kept" in sentence
    assert json.loads(stdout)["exit_code"] == status
    assert (sign.name in sentence) == (sign is not signal.SIGINT)
    assert list((project.folder.parent / "temporary").iterdir()) == []
    cache = project.cache
    assert cache is not None
    project.run("cache", "prune", "--max-size", "100G")  # the folder of a killed worker is removed
    assert list((cache / "scratch").glob("*")) == []
    assert worker_processes(process.pid) == []
    assert not (project.folder / "images" / TARGET).exists()


def test_imgbuild_keeps_ignoring_a_signal_that_its_parent_ignores(project: Project) -> None:
    done = subprocess.run(
        ["nohup", "sh", "-c", 'kill -HUP $$; exec "$@"', "-", *project.command("list")],
        cwd=project.folder, env=project.environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
