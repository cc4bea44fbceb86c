"""Describes runs of smoke tests: reports with image, engine, GPUs and time.

`imgbuild smoke --json` writes runs, and `recording` adds them to test records.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from imgbuild.errors import ImgbuildError
from imgbuild.report import CaseResult, Report, count_cases, has_passed
from imgbuild.system.process import ProcessResult
from imgbuild.values import Digest

RunOutcome = Literal["pass", "fail"]
RunPlace = Literal["docker", "podman", "apptainer", "root", "here"]
# smoke_tests/gpu_device.py reports GPUs and driver from inside the image, so that the result is
# also correct for an engine on another machine.
GATES = ("device", "devices")
GPU = re.compile(r"(.+) sm_\d+ \d+ MiB")
RELEASE = re.compile(r"^the driver is (\d[\d.]*)", re.MULTILINE)
LONGEST_MESSAGE = 500  # characters of an error that a test record keeps; the report has all of it
LONGEST_REASON = 400  # characters of the reason for a skipped case
STOPPED_CASE = "smoke tests"  # the name of the only case of a tier that could not be run


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a run.

    `timeout_factor` multiplies time limits, for emulated or busy machines. `model` is the folder of
    a model to use instead of the tiny model. `jobs` is the number of parallel cases, and `share`
    the number of parallel cases that use GPUs in the gpu tier. `only` contains shell patterns of
    case names, such as "nccl|vllm*".
    """

    timeout_factor: float = 1.0
    model: Path | None = None
    jobs: int = 1
    share: int = 1
    only: str = "*"

    def concurrent_cases(self, tier: str) -> int:
        """Return the number of cases that can use GPUs in parallel."""
        return self.share if tier == "gpu" else 1


class FirstFailure(msgspec.Struct, frozen=True, kw_only=True):
    """The first failed case, and the first independent error in its log."""

    case: str
    message: str


class CaseMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A failed or skipped case, with the reason as message."""

    case: str
    message: str


class SmokeRun(Report, frozen=True, kw_only=True):
    """The report of a tier, with the image and the conditions of the run.

    `digest` and `config` are the digests of the image manifest and configuration, or "" if the
    image is unknown. `sif` is the digest of the SIF file, if any. `gpu` contains the names of the
    GPUs and `driver` the driver release, if a GPU tier ran. `started` is in UTC. `seconds` is the
    wall-clock time of container and tests. `arbitrary_user` is set if the user was not in the
    image's /etc/passwd, and files of the image were read-only. `jobs`, `share` and `only` are as in
    `RunSettings`. `model` is the name of the model's folder, if any. `caches` is the content of the
    image's caches at the start, or "" if unknown.
    """

    digest: str = ""
    config: str = ""
    through: str = ""
    sif: Digest | None = None
    arbitrary_user: bool = False
    gpu: tuple[str, ...] = ()
    driver: str = ""
    started: str = ""
    seconds: float = 0.0
    jobs: int = 1
    share: int = 1
    only: str = "*"
    model: str = ""
    caches: str = ""

    @property
    def result(self) -> RunOutcome:
        """The outcome of the run, as in a test record."""
        return "pass" if has_passed(self.cases) else "fail"

    @property
    def passed(self) -> int:
        """The number of passed cases."""
        return count_cases(self.cases, "passed")

    @property
    def failed(self) -> int:
        """The number of failed cases."""
        return count_cases(self.cases, "failed")

    @property
    def skipped(self) -> int:
        """The number of skipped cases."""
        return count_cases(self.cases, "skipped")

    @property
    def notes(self) -> tuple[str, ...]:
        """The distinct notes of all cases."""
        return tuple(dict.fromkeys(note for case in self.cases for note in case.notes))

    @property
    def first(self) -> FirstFailure | None:
        """The first failed case, with a one-line message of at most LONGEST_MESSAGE characters."""
        for each in self._messages("failed", LONGEST_MESSAGE):
            return FirstFailure(case=each.case, message=each.message)
        return None

    @property
    def further(self) -> tuple[CaseMessage, ...]:
        """The failed cases after the first."""
        return self._messages("failed", LONGEST_MESSAGE)[1:]

    @property
    def passes(self) -> tuple[str, ...]:
        """The names of the passed cases."""
        return tuple(case.name for case in self.cases if case.outcome == "passed")

    @property
    def skips(self) -> tuple[CaseMessage, ...]:
        """The skipped cases with their reasons."""
        return self._messages("skipped", LONGEST_REASON)

    def _messages(self, outcome: str, longest: int) -> tuple[CaseMessage, ...]:
        return tuple(
            CaseMessage(case=case.name, message=_one_line(case.message, longest))
            for case in self.cases
            if case.outcome == outcome
        )


def _one_line(text: str, longest: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[:longest]}…"


def completed_run(
    report: Report,
    result: ProcessResult,
    through: RunPlace,
    how: RunSettings,
    *,
    arbitrary_user: bool = False,
) -> SmokeRun:
    """Return the run with this report and the result of its process."""
    ended = datetime.datetime.now(datetime.UTC)
    gpu, driver = seen_machine(report.cases)
    return SmokeRun(
        **{name: getattr(report, name) for name in Report.__struct_fields__},
        through=through,
        arbitrary_user=arbitrary_user,
        gpu=gpu,
        driver=driver,
        started=format_time(ended - datetime.timedelta(seconds=result.seconds)),
        seconds=round(result.seconds, 1),
        jobs=how.jobs,
        share=how.concurrent_cases(report.tier),
        only=how.only,
        model=how.model.name if how.model else "",
        # Containers are created per tier; a root folder is shared by all tiers of a command.
        caches="nothing" if through in ("docker", "podman", "apptainer") else "",
    )


def stopped_run(target: str, tier: str, error: ImgbuildError) -> SmokeRun:
    """Return the run of a tier that could not be run because of `error`."""
    case = CaseResult(
        name=STOPPED_CASE, outcome="failed", seconds=0, message=error.message, log=error.hint or ""
    )
    return SmokeRun(target=target, arch="", tier=tier, cases=(case,))


def is_run(report: SmokeRun) -> bool:
    """Return whether the tests ran, unlike in a run from `stopped_run`."""
    return [case.name for case in report.cases] != [STOPPED_CASE]


def format_time(moment: datetime.datetime) -> str:
    """Format a time as in test records: UTC, in whole seconds."""
    return moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seen_machine(cases: Sequence[CaseResult]) -> tuple[tuple[str, ...], str]:
    """Return the GPU names and the driver release in the first case of a tier, empty if unknown."""
    for case in cases:
        if case.name in GATES and case.outcome == "passed":
            matches = (GPU.fullmatch(part) for part in case.message.split("; "))
            release = RELEASE.search(case.log)
            return tuple(each[1] for each in matches if each), release[1] if release else ""
    return (), ""
