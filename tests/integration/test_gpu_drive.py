"""Images are put together as their loads come in, and proved as a plan says."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support import carrying

pytestmark = pytest.mark.engine

LOAD = 2_000_000
QUICK = ["--tier=static", "--only=versions"]
# Stands for gpu_proof.py: it works long, and starts what works long.
LONG = """\
import os, subprocess, time
child = subprocess.Popen(["sleep", "900"])
print("pids", os.getpid(), child.pid, flush=True)
time.sleep(900)
"""


class Machine:
    """A machine's folder: the scripts, the image's JSON, and none of its loads."""

    def __init__(self, carry: Path, folder: Path) -> None:
        self.carry, self.folder = carry, folder
        self.process: subprocess.Popen[str] | None = None
        for name in ("gpu_drive.py", "gpu_unpack.py", "gpu_proof.py"):
            shutil.copy(carrying.REPOSITORY / "tools" / name, folder)
        shutil.copytree(carrying.REPOSITORY / "smoke_tests", folder / "smoke_tests")
        shutil.copytree(carry / "images", folder / "images")
        (folder / "in").mkdir()

    def drive(self, *runs: dict[str, Any]) -> None:
        """Start on a plan with one image and these runs."""
        told = [{"image": "small", "gpus": [0], "words": QUICK, **run} for run in runs]
        plan = {"images": ["images/small.json"], "runs": told}
        (self.folder / "plan.json").write_text(json.dumps(plan))
        words = [self.folder / name for name in ("gpu_drive.py", "plan.json", "in", "work")]
        command = [sys.executable, "-B", *map(str, words)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def end(self) -> tuple[int, str]:
        """Its status and what it said, when it has ended."""
        assert self.process is not None
        process, self.process = self.process, None
        _, said = process.communicate()
        return process.returncode, said

    def send(self, names: Sequence[str]) -> None:
        """Bring loads, each by a rename."""
        for name in names:
            shutil.copytree(self.carry / "loads" / name, self.folder / "coming")
            (self.folder / "coming").rename(self.folder / "in" / name)

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait; what has ended never comes to it."""
        assert self.process is not None
        while not holds():
            assert self.process.poll() is None
            time.sleep(0.05)

    def log(self, name: str) -> str:
        """A log, as far as it goes."""
        path = self.folder / "work/logs" / name
        return path.read_text() if path.exists() else ""

    def state(self) -> dict[str, str]:
        """What state.txt says of each image and run."""
        path = self.folder / "work/state.txt"
        lines = path.read_text().splitlines() if path.exists() else []
        return {line.split()[0]: line.split(maxsplit=1)[1] for line in lines}


@pytest.fixture(scope="module", name="carry")
def _carry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drive")
    carrying.build(folder)
    return carrying.pack(folder, "--load", LOAD)


@pytest.fixture(name="loads")
def _loads(carry: Path) -> list[str]:
    found = sorted(path.name for path in (carry / "loads").iterdir())
    assert len(found) > 1
    return found


@pytest.fixture(name="machine")
def _machine(carry: Path, tmp_path: Path) -> Iterator[Machine]:
    tmp_path.chmod(0o755)
    made = Machine(carry, tmp_path)
    yield made
    if made.process is not None:
        made.process.terminate()
        made.end()


def test_runs_begin_as_soon_as_their_image_is_whole(machine, loads):
    fresh = {"name": "first", "alone": True, "words": [*QUICK, "--fresh"]}
    words = [*QUICK, "--bytecode={outs}/first/cache"]
    machine.drive(fresh, {"name": "second", "after": ["first"], "words": words})
    machine.send(loads[:-1])
    machine.until(lambda: "next is needed" in machine.log("small.unpack"))
    machine.until(lambda: machine.state().get("small") == "waits")
    assert {machine.state()[name] for name in ("first", "second")} == {"waits"}
    machine.send(loads[-1:])
    assert machine.end() == (0, "")
    ended = machine.state()
    assert all(words.startswith("ended status 0 after ") for words in ended.values())
    assert list(ended) == ["small", "first", "second"]
    said = [
        json.loads((machine.folder / "work/outs" / name / "machine.json").read_text())
        for name in ("first", "second")
    ]
    assert [each["status"] for each in said] == [0, 0]
    assert [each["caches"] for each in said] == ["nothing", "bytecode"]
    assert said[0]["host"]["environment"]["CUDA_VISIBLE_DEVICES"] == "0"


def test_a_second_start_takes_what_is_brought_anew_and_runs_the_rest(machine, loads):
    machine.send(loads)
    image = json.loads((machine.folder / "images/small.json").read_text())
    part = image["layers"][0]["parts"][0]
    damaged = machine.folder / "in" / part["load"] / part["name"]
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-9] + bytes(9))
    machine.drive({"name": "only"})
    assert machine.end() == (1, "")
    assert machine.state()["small"].startswith("ended status 1 after ")
    assert machine.state()["only"] == "ended never began: its image failed"
    assert not (machine.folder / "work/outs/only").exists()
    damaged.write_bytes(whole)
    machine.drive({"name": "only"})
    assert machine.end() == (0, "")
    machine.drive({"name": "only"}, {"name": "more"})
    assert machine.end() == (0, "")
    assert machine.state()["only"] == "ended status 0 before"
    assert machine.state()["more"].startswith("ended status 0 after ")


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_what_it_started_ends_with_it(machine, loads, sign):
    (machine.folder / "gpu_proof.py").write_text(LONG)
    machine.send(loads)
    machine.drive({"name": "long"})
    machine.until(lambda: "pids" in machine.log("long.run"))
    machine.process.send_signal(sign)
    assert machine.end() == (130, "")
    assert machine.state()["long"].startswith("ended status -9 after ")
    pids = machine.log("long.run").split()[1:]
    assert len(pids) == 2
    assert not any(alive(int(pid)) for pid in pids)


def alive(pid: int) -> bool:
    """Whether a process works; one that nobody has asked for its status does not."""
    try:
        os.kill(pid, 0)
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_full_disk_leaves_nothing_at_work(machine, loads):
    """As the state cannot be written then."""
    (machine.folder / "gpu_proof.py").write_text(LONG)
    machine.send(loads)
    machine.drive({"name": "long"})
    machine.until(lambda: "pids" in machine.log("long.run"))
    (machine.folder / "work/state.part").mkdir()
    status, said = machine.end()
    assert status == 1
    assert "state.part" in said
    assert not any(alive(int(pid)) for pid in machine.log("long.run").split()[1:])


def test_a_plan_without_sense_is_refused(machine):
    machine.drive({"name": "a", "image": "other"})
    status, said = machine.end()
    assert status == 2
    assert "plan.json: run 1: no image is called other" in said
    assert not (machine.folder / "work").exists()
