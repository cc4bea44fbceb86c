"""Reads results of the smoke tests that ran here or on another machine.

It reads files that `imgbuild smoke --json` wrote, and folders of an unpacked run: machine.json
(image, host, exit status) and report.json (the tests' own report). `recording` compares each run
with the target's digests.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import msgspec

from imgbuild import codec
from imgbuild.errors import InputError
from imgbuild.project import Project
from imgbuild.report import Tier, counts, passed
from imgbuild.smoke import run as tests
from imgbuild.smoke.records import Moment
from imgbuild.smoke.result import SmokeRun, is_run
from imgbuild.values import Arch, Digest

MACHINE, REPORT = "machine.json", "report.json"  # of an unpacked run
ANSWER = "smoke.answer.json"  # of a job of `imgbuild ci`
REPORTS = "docs"  # the folder of the project that keeps reports
RELEASE = re.compile(r"Kernel Module .*?(\d+\.[\d.]+)")
AGAIN = "run the tests again, and do not change the folder that they write"


class ImageRun(msgspec.Struct, frozen=True, kw_only=True):
    """The run of a whole tier in an image, and the file or folder that it was read from.

    `diff_ids` are those of the layers that ran, None if only the configuration is known.
    """

    place: str
    run: SmokeRun
    diff_ids: tuple[Digest, ...] | None = None


class _Host(msgspec.Struct, frozen=True):
    driver: str = ""
    gpus: tuple[str, ...] = ()


class _Machine(msgspec.Struct, frozen=True):
    """The image, host and outcome of an unpacked run; `status` is None while it goes on."""

    target: str
    arch: Arch
    manifest: Digest
    config: Digest
    diff_ids: tuple[Digest, ...]
    unpacked: tuple[Digest, ...]
    tier: Tier
    host: _Host
    started: Moment
    status: int | None = None
    seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    only: str = "*"
    model: str = ""
    jobs: Annotated[int, msgspec.Meta(ge=1)] = 1
    share: Annotated[int, msgspec.Meta(ge=1)] = 1
    caches: str = ""
    through: str = "unpacked"
    sif: Digest | None = None


def image_runs(path: Path, project: Project) -> tuple[ImageRun, ...]:
    """The runs in `path`; InputError if there is none, or a file is damaged.

    `path` is a file that `imgbuild smoke --json` wrote, the folder of a job of `imgbuild ci`, or
    the folder of an unpacked run.
    """
    if (path / MACHINE).is_file():
        return (_of_folder(path, project),)
    answer = path / ANSWER if (path / ANSWER).is_file() else path
    if not answer.is_file():
        message = f"{path}: no such file or folder"
        if path.exists():
            message = f"{path} has no test results: it has neither {MACHINE} nor {ANSWER}"
        hint = "name a file that `imgbuild smoke --json` wrote"
        raise InputError(message, hint=hint)
    found = codec.read(answer, tuple[SmokeRun, ...], what="answer of imgbuild smoke", hint=AGAIN)
    ran = [each for each in found if is_run(each)]
    if not ran:
        refuse(str(answer), "it has no report of a run")
    kept = _below(answer, project)
    return tuple(image_run(msgspec.structs.replace(each, report=kept), str(answer)) for each in ran)


def image_run(run: SmokeRun, place: str = "") -> ImageRun:
    """`run`, read from the file `place`; InputError unless it is of a whole tier in an image."""
    place = place or f"{run.target} {run.arch}, tier {run.tier}"
    _require_whole(place, run.only, run.model)
    if not run.config:
        refuse(
            place,
            f"its {run.tier} tests do not say which image they ran in"
            f" ({run.through or 'an older imgbuild'})",
            hint="test an image, not an environment or a SIF of unknown origin",
        )
    return ImageRun(place=place, run=run)


def _of_folder(folder: Path, project: Project) -> ImageRun:
    """The unpacked run in `folder`."""
    machine = codec.read(folder / MACHINE, _Machine, what="record of a run", hint=AGAIN)
    place = str(folder)
    layers = pairs(machine.diff_ids, machine.unpacked)
    for number, (expected, unpacked) in enumerate(layers, start=1):
        if expected != unpacked:
            refuse(place, f"layer {number} is {expected} by its image, and {unpacked} was unpacked")
    _require_whole(place, machine.only, machine.model)
    if machine.status is None:
        refuse(place, "the run did not end", hint="run it again")
    document = codec.read(folder / REPORT, tests.RunnerReport, what="report", hint=AGAIN)
    if (document.format, document.tier) != (tests.FORMAT, machine.tier):
        refuse(
            place,
            f"{REPORT} is of tier {document.tier} in format {document.format}, {MACHINE} of tier"
            f" {machine.tier}; format {tests.FORMAT} is read here",
        )
    failed = any(case.outcome == "failed" for case in document.cases)
    if machine.status not in (0, 1) and not failed:
        why = f"the tests were ended (status {machine.status}) before any had failed"
        refuse(
            place, why, hint="allow more time with --seconds, or run more cases at once with --jobs"
        )
    if (machine.status == 0) != passed(document.cases):
        refuse(place, f"status {machine.status}, and its cases are {counts(document.cases)}")
    on_gpu = machine.tier in tests.GPU_TIERS
    release = RELEASE.search(machine.host.driver) if on_gpu else None
    run = SmokeRun(
        target=machine.target,
        arch=machine.arch,
        tier=machine.tier,
        digest=machine.manifest,
        config=machine.config,
        cases=document.cases,
        gpu=machine.host.gpus if on_gpu else (),
        driver=release[1] if release else "",
        started=machine.started,
        seconds=machine.seconds,
        through=machine.through,
        sif=machine.sif,
        arbitrary_user=machine.through.startswith("apptainer"),
        jobs=machine.jobs,
        # Older tools wrote what was asked for; tiers other than gpu never shared.
        share=machine.share if machine.tier == "gpu" else 1,
        caches=machine.caches,
        report=_below(folder, project),
    )
    return ImageRun(place=place, run=run, diff_ids=machine.unpacked)


def _require_whole(place: str, only: str, model: str) -> None:
    """InputError if a part of the tier was run, or with a model that others do not have."""
    if only != "*":
        refuse(place, f"only {only!r} of its tier was run", hint="leave --case out")
    if model:
        refuse(place, f"it ran with the model {model}", hint="leave --model out")


def pairs(ones: Sequence[str], others: Sequence[str]) -> list[tuple[str, str]]:
    """Joins two iterables to the end of the longer one."""
    longest = max(len(ones), len(others))
    padded = [[*side, *["none"] * (longest - len(side))] for side in (ones, others)]
    return list(zip(*padded, strict=True))


def _below(path: Path, project: Project) -> str:
    """The path in the project of a file below `docs`; "" for other files."""
    whole, root = path.resolve(), project.root.resolve()
    return whole.relative_to(root).as_posix() if whole.is_relative_to(root / REPORTS) else ""


def refuse(place: str, why: str, *, hint: str = AGAIN) -> NoReturn:
    """InputError: the content of `place` is not a test record."""
    message = f"{place} is not a test record: {why}"
    raise InputError(message, hint=hint)
