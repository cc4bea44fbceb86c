"""Reads runs of smoke tests from this or another machine.

The module `recording` compares runs with the digests of targets.
"""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import msgspec

from imgbuild import codec
from imgbuild.errors import InputError
from imgbuild.smoke.result import SmokeRun, is_run

ANSWER = "smoke.answer.json"  # in the folder of a job of `imgbuild ci`
RERUN_REMEDY = "run the tests again"


class ImageRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a whole tier in an image, and the file that contains the run."""

    place: str
    run: SmokeRun


def image_runs(path: Path) -> tuple[ImageRun, ...]:
    """Read the runs in `path`.

    `path` is an output file of `imgbuild smoke --json`, or the folder of a job of `imgbuild ci`.
    Raises InputError if there is no run or the file is damaged.
    """
    file = path / ANSWER if (path / ANSWER).is_file() else path
    if not file.is_file():
        message = f"{path}: no such file or folder"
        if path.exists():
            message = f"{path} has no test results, because {ANSWER} is missing"
        raise InputError(message, hint="pass an output file of `imgbuild smoke --json`")
    answers = codec.read_document(
        file, tuple[SmokeRun, ...], what="report of imgbuild smoke", hint=RERUN_REMEDY
    )
    runs = [answer for answer in answers if is_run(answer)]
    if not runs:
        refuse_content(str(file), "the file contains no run")
    return tuple(check_image_run(run, str(file)) for run in runs)


def check_image_run(run: SmokeRun, place: str = "") -> ImageRun:
    """Convert `run`, from the file `place`, to an `ImageRun`.

    Raises InputError if the run is not of a whole tier in an image.
    """
    place = place or f"{run.target} {run.arch}, tier {run.tier}"
    if run.only != "*":
        refuse_content(place, f"only {run.only!r} of the tier was run", hint="omit --case")
    if run.model:
        refuse_content(place, f"the tests ran with the model {run.model}", hint="omit --model")
    if not run.config:
        refuse_content(
            place,
            f"the {run.tier} tests have no record of the tested image "
            f"({run.through or 'an older imgbuild'})",
            hint="test an image, not an environment or a SIF file of unknown origin",
        )
    return ImageRun(place=place, run=run)


def refuse_content(place: str, reason: str, *, hint: str = RERUN_REMEDY) -> NoReturn:
    """Raise InputError because the content of `place` cannot be recorded."""
    message = f"{place} is not a test record: {reason}"
    raise InputError(message, hint=hint)
