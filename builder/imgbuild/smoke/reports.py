"""Reads results of the smoke tests from this or another machine.

`recording` compares each run with the target's digests.
"""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import msgspec

from imgbuild import codec
from imgbuild.errors import InputError
from imgbuild.smoke.result import SmokeRun, is_run

ANSWER = "smoke.answer.json"  # in the folder of a job of `imgbuild ci`
AGAIN = "run the tests again"


class ImageRun(msgspec.Struct, frozen=True, kw_only=True):
    """The run of a whole tier in an image, and the file from which it was read."""

    place: str
    run: SmokeRun


def image_runs(path: Path) -> tuple[ImageRun, ...]:
    """The runs in `path`.

    `path` is the output file of `imgbuild smoke --json`, or the folder of a job of `imgbuild ci`.

    Raises InputError if there is none, or the file is damaged.
    """
    file = path / ANSWER if (path / ANSWER).is_file() else path
    if not file.is_file():
        message = f"{path}: no such file or folder"
        if path.exists():
            message = f"{path} has no test results, because {ANSWER} is missing"
        raise InputError(message, hint="pass an output file of `imgbuild smoke --json`")
    answers = codec.read(file, tuple[SmokeRun, ...], what="report of imgbuild smoke", hint=AGAIN)
    runs = [answer for answer in answers if is_run(answer)]
    if not runs:
        refuse(str(file), "it has no report of a run")
    return tuple(image_run(run, str(file)) for run in runs)


def image_run(run: SmokeRun, place: str = "") -> ImageRun:
    """`run`, read from the file `place`.

    Raises InputError unless it is of a whole tier in an image.
    """
    place = place or f"{run.target} {run.arch}, tier {run.tier}"
    if run.only != "*":
        refuse(place, f"only {run.only!r} of its tier was run", hint="omit --case")
    if run.model:
        refuse(place, f"it ran with the model {run.model}", hint="omit --model")
    if not run.config:
        refuse(
            place,
            f"its {run.tier} tests have no record of the tested image"
            f" ({run.through or 'an older imgbuild'})",
            hint="test an image, not an environment or a SIF file of unknown origin",
        )
    return ImageRun(place=place, run=run)


def refuse(place: str, reason: str, *, hint: str = AGAIN) -> NoReturn:
    """Raise InputError: the content of `place` is not a test record."""
    message = f"{place} is not a test record: {reason}"
    raise InputError(message, hint=hint)
