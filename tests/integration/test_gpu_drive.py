"""Images are put together as their loads come in, and proved as a plan says."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import carrying

pytestmark = pytest.mark.engine

LOAD = 2_000_000
QUICK = ["--tier=static", "--only=versions"]


@pytest.fixture(scope="module", name="carry")
def _carry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drive")
    carrying.build(folder)
    return carrying.pack(folder, "--load", LOAD)


@pytest.fixture(name="place")
def _place(carry: Path, tmp_path: Path) -> Path:
    """A machine's folder: the scripts, the image's JSON, and none of its loads."""
    tmp_path.chmod(0o755)
    for name in ("gpu_drive.py", "gpu_unpack.py", "gpu_proof.py"):
        shutil.copy(carrying.REPOSITORY / "tools" / name, tmp_path)
    shutil.copytree(carrying.REPOSITORY / "smoke_tests", tmp_path / "smoke_tests")
    shutil.copytree(carry / "images", tmp_path / "images")
    (tmp_path / "in").mkdir()
    return tmp_path


def drive(place: Path, runs: Sequence[dict[str, Any]]) -> subprocess.Popen[str]:
    """Start on a plan with one image and these runs."""
    plan = {"images": ["images/small.json"], "runs": [{"image": "small", **run} for run in runs]}
    (place / "plan.json").write_text(json.dumps(plan))
    words = [place / name for name in ("gpu_drive.py", "plan.json", "in", "work")]
    command = ["python3", "-B", *map(str, words)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Its status and what it said, when it has ended."""
    _, said = process.communicate()
    return process.returncode, said


def send(carry: Path, place: Path, names: Sequence[str]) -> None:
    """Bring loads, each by a rename."""
    for name in names:
        shutil.copytree(carry / "loads" / name, place / "coming")
        (place / "coming").rename(place / "in" / name)


def wait(true: Callable[[], bool]) -> None:
    """Until something is true; the test's own limit ends what never comes."""
    while not true():
        time.sleep(0.05)


def state(place: Path) -> dict[str, str]:
    """What state.txt says of each image and run."""
    path = place / "work/state.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    return {line.split()[0]: line.split(maxsplit=1)[1] for line in lines}


def test_runs_begin_as_soon_as_their_image_is_whole(carry, place):
    loads = sorted(path.name for path in (carry / "loads").iterdir())
    assert len(loads) > 1
    first = {"name": "first", "gpus": [0], "alone": True, "words": [*QUICK, "--fresh"]}
    words = [*QUICK, "--bytecode={outs}/first/cache"]
    second = {"name": "second", "gpus": [0], "after": ["first"], "words": words}
    process = drive(place, [first, second])
    send(carry, place, loads[:-1])
    wait(lambda: "next is needed" in read(place / "work/logs/small.unpack"))
    assert {state(place)[name] for name in ("first", "second")} == {"waits"}
    send(carry, place, loads[-1:])
    assert end(process) == (0, "")
    ended = state(place)
    assert all(words.startswith("ended status 0 after ") for words in ended.values())
    assert list(ended) == ["small", "first", "second"]
    machines = [
        json.loads((place / "work/outs" / name / "machine.json").read_text())
        for name in ("first", "second")
    ]
    assert [machine["status"] for machine in machines] == [0, 0]
    assert [machine["caches"] for machine in machines] == ["nothing", "bytecode"]
    assert machines[0]["host"]["environment"]["CUDA_VISIBLE_DEVICES"] == "0"


def read(path: Path) -> str:
    """A log, as far as it goes."""
    return path.read_text() if path.exists() else ""


def test_an_image_that_is_damaged_is_not_run(carry, place):
    path = place / "images/small.json"
    image = json.loads(path.read_text())
    image["layers"][0]["diff_id"] = "sha256:" + "0" * 64
    path.write_text(json.dumps(image))
    send(carry, place, [each.name for each in (carry / "loads").iterdir()])
    assert end(drive(place, [{"name": "only", "gpus": [0], "words": QUICK}])) == (1, "")
    assert state(place)["small"].startswith("ended status 1")
    assert "carry its parts again" in read(place / "work/logs/small.unpack")
    assert not (place / "work/outs/only").exists()


def test_what_works_ends_with_it(carry, place):
    (place / "gpu_proof.py").write_text("import time\nprint('here', flush=True)\ntime.sleep(900)\n")
    send(carry, place, [each.name for each in (carry / "loads").iterdir()])
    process = drive(place, [{"name": "long", "gpus": [0]}])
    wait(lambda: "here" in read(place / "work/logs/long.run"))
    process.send_signal(signal.SIGTERM)
    assert end(process) == (130, "")
    found = subprocess.run(["pgrep", "-f", str(place / "gpu_proof.py")], check=False)
    assert found.returncode == 1


@pytest.mark.parametrize(
    ("runs", "why"),
    [
        ([{"name": "a", "gpus": [], "image": "other"}], "run a is of no image: other"),
        ([{"name": "a", "gpus": []}, {"name": "a", "gpus": []}], "two runs are called a"),
        ([{"name": "a", "gpus": [], "after": ["a"]}], "before a there is no run a"),
    ],
)
def test_a_plan_without_sense_is_refused(place, runs, why):
    status, said = end(drive(place, runs))
    assert status == 2
    assert f"plan.json: {why}" in said
    assert not (place / "work").exists()
