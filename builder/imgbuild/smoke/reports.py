"""Reads results of the smoke tests that ran here or on another machine.

Read are the reports of `imgbuild smoke`, as values or as a file that `--json` wrote, and folders of
an unpacked run: machine.json (image, host, exit status) and report.json (the tests' own report).
Each tier becomes a `ImageRun`, which `recording` compares with the target's digests.
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
from imgbuild.smoke import run
from imgbuild.smoke.records import Moment
from imgbuild.smoke.result import Tested, is_run
from imgbuild.values import Arch, Digest

MACHINE, REPORT = "machine.json", "report.json"  # of an unpacked run
ANSWER = "smoke.answer.json"  # of a job of `imgbuild ci`
PAPERS = "docs"  # below it reports are kept for people
RELEASE = re.compile(r"Kernel Module .*?(\d+\.[\d.]+)")
AGAIN = "run the tests again, and leave the folder as they left it"


class ImageRun(Tested, frozen=True, kw_only=True):
    """The result of a tier in an image, complete enough for a test record.

    `place` is the file or folder with the result, for messages. `diff_ids` are those of the layers
    that ran, None if only the configuration is known. `sif`, `caches` and `report` are as in
    `records.Run`.
    """

    place: str
    arch: Arch
    tier: Tier
    digest: Digest
    config: Digest
    started: Moment
    jobs: Annotated[int, msgspec.Meta(ge=1)] = 1
    share: Annotated[int, msgspec.Meta(ge=1)] = 1
    diff_ids: tuple[Digest, ...] | None = None
    sif: Digest | None = None
    caches: str = ""
    report: str = ""


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
        message = f"{path} has no test results: it has neither {MACHINE} nor {ANSWER}"
        hint = "name a file that `imgbuild smoke --json` wrote"
        raise InputError(message, hint=hint)
    found = codec.read(answer, tuple[Tested, ...], what="answer of imgbuild smoke", hint=AGAIN)
    ran = tuple(filter(is_run, found))
    if not ran:
        refuse(str(answer), "it has no report of a run")
    return of_reports(ran, str(answer), _below(answer, project))


def of_reports(reports: Sequence[Tested], place: str = "", kept: str = "") -> tuple[ImageRun, ...]:
    """The runs in `reports`, read from the file `place`; `kept` is its path in the project."""
    found = []
    for report in reports:
        _require_whole(place or report.target, report.only, report.model)
        where = place or f"{report.target} {report.arch}, tier {report.tier}"
        if not report.config:
            refuse(
                where,
                f"its {report.tier} tests do not say which image they ran in"
                f" ({report.through or 'an older imgbuild'})",
                hint="test an image, not an environment or a SIF of unknown origin",
            )
        try:
            claim = msgspec.convert(
                {
                    **{name: getattr(report, name) for name in Tested.__struct_fields__},
                    "place": where,
                    "report": kept,
                    # A container is a tier's own; a root folder is shared by all of a command.
                    "caches": "" if report.through == "root" else "nothing",
                },
                ImageRun,
                from_attributes=True,
            )
        except msgspec.ValidationError as error:
            refuse(where, str(error))
        found.append(claim)
    return tuple(found)


def _of_folder(folder: Path, project: Project) -> ImageRun:
    """The unpacked run in `folder`."""
    machine = codec.read(folder / MACHINE, _Machine, what="record of a run", hint=AGAIN)
    place = str(folder)
    for number, (said, is_) in enumerate(pairs(machine.diff_ids, machine.unpacked), start=1):
        if said != is_:
            refuse(place, f"layer {number} is {said} by its image, and {is_} was unpacked")
    _require_whole(place, machine.only, machine.model)
    if machine.status is None:
        refuse(place, "the run did not end", hint="run it again")
    document = codec.read(folder / REPORT, run.RunnerReport, what="report", hint=AGAIN)
    if (document.format, document.tier) != (run.FORMAT, machine.tier):
        refuse(
            place,
            f"{REPORT} is of tier {document.tier} in format {document.format}, {MACHINE} of tier"
            f" {machine.tier}; format {run.FORMAT} is read here",
        )
    failed = any(case.outcome == "failed" for case in document.cases)
    if machine.status not in (0, 1) and not failed:
        why = f"the tests were ended (status {machine.status}) before any had failed"
        refuse(place, why, hint="give them more --seconds, or --jobs")
    if (machine.status == 0) != passed(document.cases):
        refuse(place, f"status {machine.status}, and its cases are {counts(document.cases)}")
    release = RELEASE.search(machine.host.driver)
    by_apptainer = machine.through.startswith("apptainer")
    return ImageRun(
        place=place,
        target=machine.target,
        arch=machine.arch,
        tier=machine.tier,
        digest=machine.manifest,
        config=machine.config,
        diff_ids=machine.unpacked,
        cases=document.cases,
        gpu=machine.host.gpus,
        driver=release[1] if release else "",
        started=machine.started,
        seconds=machine.seconds,
        through=machine.through,
        sif=machine.sif,
        arbitrary_user=by_apptainer,
        jobs=machine.jobs,
        # Older tools wrote what was asked for; tiers other than gpu never shared.
        share=machine.share if machine.tier == "gpu" else 1,
        caches=machine.caches,
        report=_below(folder, project),
    )


def _require_whole(place: str, only: str, model: str) -> None:
    """InputError if a part of the tier was run, or with a model that others do not have."""
    if only != "*":
        refuse(place, f"only {only!r} of its tier was run", hint="leave --only out")
    if model:
        refuse(place, f"it ran with the model {model}", hint="leave --model out")


def pairs(ones: Sequence[str], others: Sequence[str]) -> list[tuple[str, str]]:
    """Both side by side, to the end of the longer."""
    longest = max(len(ones), len(others))
    padded = [[*side, *["none"] * (longest - len(side))] for side in (ones, others)]
    return list(zip(*padded, strict=True))


def _below(path: Path, project: Project) -> str:
    """`path` as it stands in the project, if it is kept with its papers; "" if not."""
    whole, root = path.resolve(), project.root.resolve()
    return whole.relative_to(root).as_posix() if whole.is_relative_to(root / PAPERS) else ""


def refuse(place: str, why: str, *, hint: str = AGAIN) -> NoReturn:
    """InputError: what stands in `place` is not a test record."""
    message = f"{place} is not a test record: {why}"
    raise InputError(message, hint=hint)
