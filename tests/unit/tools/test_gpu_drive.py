"""What may begin on a GPU machine at a moment, by what works and what has ended there."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.source_code import module_of

ROOT = Path(__file__).parents[3]
WORKS, ENDED = "works", "ended"


DRIVE = module_of(ROOT / "tools/gpu_drive.py")


@pytest.fixture(name="options")
def _options(tmp_path: Path) -> argparse.Namespace:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/part").touch()
    for name in ("one", "two"):
        (tmp_path / f"{name}.json").write_text("{}")
    return argparse.Namespace(
        plan=tmp_path / "plan.json", loads=tmp_path / "in", work=tmp_path / "work",
        wheels=tmp_path, beside=None,
    )  # fmt: skip


def planned(options: argparse.Namespace, *runs: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """The images `one` and `two`, and runs on the first GPU of `one` unless they say otherwise."""
    told = [{"name": f"{number}", "image": "one", "gpus": [0], **run}
            for number, run in enumerate(runs)]  # fmt: skip
    options.plan.write_text(json.dumps({"images": ["one.json", "two.json"], "runs": told}))
    images, made = DRIVE.read_plan(options)
    return images, made


def names(images: list[Any], runs: list[Any]) -> list[str]:
    """What may begin."""
    return [task.name for task in DRIVE.beginning(images, runs)]


def test_the_plan_of_the_docs_makes_sense(options, tmp_path):
    text = (ROOT / "docs/smoke.md").read_text("utf-8")
    options.plan.write_text(text.partition("```json\n")[2].partition("```")[0])
    image = tmp_path / "carry/images/cu130-vllm.json"
    image.parent.mkdir(parents=True)
    image.touch()
    images, runs = DRIVE.read_plan(options)
    assert [image.name for image in images] == ["cu130-vllm"]
    assert [run.name for run in runs] == ["first", "second"]
    assert "gpu_drive.py" in text


def test_images_are_put_together_first(options):
    images, runs = planned(options, {})
    assert names(images, runs) == ["one", "two"]
    images[0].end(DRIVE.MISSING, "")
    images[0]._seen = images[0]._there()
    assert names(images, runs) == ["two"]  # nothing has come for the first one since
    (options.loads / "more").touch()
    assert names(images, runs) == ["one", "two"]


@pytest.mark.parametrize(
    ("first", "second", "due"),
    [
        ({}, {}, ["0"]),  # one GPU
        ({}, {"gpus": [1]}, ["0", "1"]),
        ({"gpus": [0, 1]}, {"gpus": [1]}, ["0"]),
        ({}, {"gpus": [1], "after": ["0"]}, ["0"]),
        ({}, {"gpus": [1], "image": "two"}, ["0"]),
        ({}, {"gpus": [1], "alone": True}, ["0"]),
        ({"alone": True}, {"gpus": [1]}, ["0"]),
    ],
)
def test_what_begins_when_an_image_is_whole(options, first, second, due):
    images, runs = planned(options, first, second)
    images[0].end(0, "")
    images[1].state = WORKS if not (first.get("alone") or second.get("alone")) else ENDED
    assert names(images, runs) == due


@pytest.mark.parametrize("status", [0, 1])
def test_a_run_begins_after_another_however_that_ended(options, status):
    images, runs = planned(options, {}, {"after": ["0"]})
    images[0].end(0, "")
    runs[0].state = WORKS
    images[1].state = WORKS
    assert names(images, runs) == []
    runs[0].end(status, "")
    assert names(images, runs) == ["1"]


def test_beside_a_run_that_is_alone_nothing_begins(options):
    images, runs = planned(options, {"alone": True}, {"gpus": [1]})
    images[0].end(0, "")
    runs[0].state = WORKS
    assert names(images, runs) == []  # the second image neither
    runs[0].end(0, "")
    assert names(images, runs) == ["1", "two"]


def test_what_comes_after_a_run_that_waits_to_be_alone_waits_with_it(options):
    images, runs = planned(options, {"gpus": [2]}, {"alone": True}, {"gpus": [1]})
    images[0].end(0, "")
    assert names(images, runs) == ["0"]
    runs[0].state = WORKS
    assert names(images, runs) == []
    runs[0].end(0, "")
    images[1].state = WORKS
    assert names(images, runs) == []
    images[1].end(0, "")
    assert names(images, runs) == ["1"]


def test_an_image_that_failed_takes_its_runs_along(options):
    images, runs = planned(options, {}, {"image": "two"})
    images[0].end(1, "status 1")
    images[1].end(0, "")
    runs[1].begin = lambda: setattr(runs[1], "state", WORKS)
    DRIVE.step(images, runs)
    assert (runs[0].passed, runs[0].line.split()[1:]) == (
        False, ["ended", "never", "began:", "its", "image", "failed"],
    )  # fmt: skip
    assert runs[1].state == WORKS


def test_what_has_passed_is_not_run_again(options):
    for name, status in (("0", 0), ("1", 1)):
        folder = options.work / "outs" / name
        folder.mkdir(parents=True)
        (folder / "machine.json").write_text(json.dumps({"status": status}))
    images, runs = planned(options, {}, {}, {})
    assert [run.passed for run in runs] == [True, False, False]
    images[0].end(0, "")
    images[1].state = WORKS
    assert names(images, runs) == ["1"]


@pytest.mark.parametrize(
    ("run", "why"),
    [
        ({"image": "three"}, "run 2: no image is called three"),
        ({"name": "0"}, "run 2: another one is called so"),
        ({"name": "a/b"}, "run 2: its name is that of a folder"),
        ({"after": ["1"]}, "run 2: no run before it is called 1"),
        ({"afer": ["0"]}, "run 2: unknown: afer"),
        ({"alone": "false"}, 'run 2: alone is "false"'),
    ],
)
def test_a_plan_without_sense_is_refused(options, run, why):
    with pytest.raises(ValueError, match=why):
        planned(options, {}, run)


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        ({"images": []}, "it wants `images` and `runs`"),
        ({"images": ["none.json"], "runs": []}, "image none.json: no such file"),
        ({"images": ["one.json", "./one.json"], "runs": []}, "is named twice"),
        ({"images": ["one.json"], "runs": [{"name": "a", "image": "one"}]}, "it has no gpus"),
        ({"images": ["one.json"], "runs": ["a"]}, 'run 1: "a" says nothing by keys'),
    ],
)
def test_a_plan_that_lacks_something_is_refused(options, plan, why):
    options.plan.write_text(json.dumps(plan))
    with pytest.raises(ValueError, match=why):
        DRIVE.read_plan(options)
