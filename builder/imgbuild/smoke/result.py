"""What a run of the smoke tests was: in which image, by what, on which GPUs, when.

Comes in: a tier's report and the process that made it. Goes out: a `Tested`, which is the report
with these; `imgbuild smoke --json` writes it, and `proofs` makes a proof of it.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from imgbuild.errors import ImgbuildError
from imgbuild.report import Case, Report
from imgbuild.system.process import Result

Through = Literal["docker", "podman", "apptainer", "root", "here"]
# What smoke_tests/gpu_device.py says of the GPUs and of the driver: the word of the image's inside,
# so that an engine on another machine is no matter.
GATES = ("device", "devices")
GPU = re.compile(r"(.+) sm_\d+ \d+ MiB")
RELEASE = re.compile(r"^the driver is (\d[\d.]*)", re.MULTILINE)
STOPPED = "smoke tests"  # the one case of a tier that could not be run


class How(msgspec.Struct, frozen=True, kw_only=True):
    """How the tests are run.

    `patience` multiplies their time limits, for emulated or loaded machines; `model` is a folder of
    this machine with a model in place of the tiny one. `jobs` cases run at a time, `share` of them
    on the GPUs of the gpu tier; `only` are shell patterns of their names: "nccl|vllm*".
    """

    patience: float = 1.0
    model: Path | None = None
    jobs: int = 1
    share: int = 1
    only: str = "*"

    def sharing(self, tier: str) -> int:
        """How many cases use the GPUs at once: other tiers need none, or all."""
        return self.share if tier == "gpu" else 1


class Tested(Report, frozen=True, kw_only=True):
    """The report of a tier, and what it is a report of.

    `digest` and `config` are those of the image on its architecture, "" where no image was tested
    or nobody knows which. `gpu` names the GPUs and `driver` its release, where a GPU tier found
    them. `started` is in UTC, `seconds` the wall clock of container and tests; `stranger`: the user
    was none of the image's, and its files read-only. `jobs`, `share` and `only` are as in `How`,
    `model` is the name of the model's folder if one was given.
    """

    digest: str = ""
    config: str = ""
    through: str = ""
    stranger: bool = False
    gpu: tuple[str, ...] = ()
    driver: str = ""
    started: str = ""
    seconds: float = 0.0
    jobs: int = 1
    share: int = 1
    only: str = "*"
    model: str = ""


def ran(
    report: Report, result: Result, through: Through, how: How, *, stranger: bool = False
) -> Tested:
    """`report` as one of the run that `result` has just ended."""
    ended = datetime.datetime.now(datetime.UTC)
    gpu, driver = seen(report.cases)
    return Tested(
        **{name: getattr(report, name) for name in Report.__struct_fields__},
        through=through,
        stranger=stranger,
        gpu=gpu,
        driver=driver,
        started=stamp(ended - datetime.timedelta(seconds=result.seconds)),
        seconds=round(result.seconds, 1),
        jobs=how.jobs,
        share=how.sharing(report.tier),
        only=how.only,
        model=how.model.name if how.model else "",
    )


def stopped(target: str, tier: str, error: ImgbuildError) -> Tested:
    """The report of a tier that could not be run at all, and why."""
    case = Case(
        name=STOPPED, outcome="failed", seconds=0, message=error.message, log=error.hint or ""
    )
    return Tested(target=target, arch="", tier=tier, cases=(case,))


def is_run(report: Tested) -> bool:
    """Whether this is the report of a run, and not of one that was stopped before it began."""
    return [case.name for case in report.cases] != [STOPPED]


def stamp(moment: datetime.datetime) -> str:
    """A moment as proofs write it: UTC, to the second."""
    return moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seen(cases: Sequence[Case]) -> tuple[tuple[str, ...], str]:
    """The names of the GPUs that a tier's gate met, and the driver's release; nothing without."""
    for case in cases:
        if case.name in GATES and case.outcome == "passed":
            found = (GPU.fullmatch(part) for part in case.message.split("; "))
            release = RELEASE.search(case.log)
            return tuple(each[1] for each in found if each), release[1] if release else ""
    return (), ""
