"""What came of a job, as files: one result for each step, beside its log and its verb's answer.

    FOLDER/JOB/job.json    the job           FOLDER/JOB/STEP.log   what the step said
    FOLDER/JOB/STEP.json   the result        FOLDER/JOB/STEP.answer.json   its verb's `--json`

A result is written in one piece when its step has ended, so a run that is killed leaves none, and
the next one does that step again. A result of another digest or of another imgbuild is none.
"""

from __future__ import annotations

import contextlib
import datetime
import re
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

import imgbuild
from imgbuild import codec
from imgbuild.ci.jobs import CiJob, Step
from imgbuild.errors import InputError, WorkFailed
from imgbuild.report import Tier

FORMAT = 1
JOB = "job.json"
CHANGING: frozenset[Step] = frozenset({"push", "sign", "tag", "sif"})  # what a registry holds
Outcome = Literal["passed", "failed"]
# A line of a log that says what went wrong first: imgbuild's own, a Python traceback's last.
FIRST = re.compile(r"^\s*error: (.+)|^((?:[\w.]+\.)?\w*(?:Error|Exception): .+)$")
HINT = re.compile(r"^\s*hint: (.+)")
LONGEST = 2000  # letters of an error that are kept in a result; the log has all of it


class FirstError(msgspec.Struct, frozen=True, kw_only=True):
    """The first real error of a step, and what to do about it."""

    error: str
    hint: str = ""


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """How one step ended. `exit_code` is that of its verb; `started` is in UTC.

    `tiers` are those of the smoke tests that it ran; `repeat` is the line that does its job again.
    """

    format: int = FORMAT
    tool: str = imgbuild.__version__
    job: str
    target: str
    step: Step
    digest: str
    outcome: Outcome
    exit_code: int
    error: str = ""
    hint: str = ""
    started: str
    seconds: float
    command: tuple[str, ...]
    registry: str = ""
    tiers: tuple[Tier, ...] = ()
    repeat: str = ""


class StartedJob(CiJob, frozen=True, kw_only=True):
    """A job as it was begun, and the line that does it again."""

    repeat: str = ""


class JobResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a job stands: its results in the order of its steps, without those not yet done."""

    job: CiJob
    steps: tuple[StepResult, ...]

    @property
    def failed(self) -> StepResult | None:
        """The step that failed, if one did."""
        return next((step for step in self.steps if step.outcome == "failed"), None)

    @property
    def passed(self) -> bool:
        """Every step is done, and none failed."""
        return not self.failed and len(self.steps) == len(self.job.steps)

    @property
    def ended(self) -> bool:
        """Every step is done, or one failed."""
        return self.passed or self.failed is not None

    @property
    def left(self) -> list[Step]:
        """The steps that have no result."""
        return [step for step in self.job.steps if step not in {done.step for done in self.steps}]

    @property
    def seconds(self) -> float:
        """How long its steps took."""
        return sum(step.seconds for step in self.steps)

    def __str__(self) -> str:
        if self.failed is not None:
            return f"{self.job.id} failed at {self.failed.step}: {self.failed.error}"
        if self.passed:
            return f"{self.job.id} passed"
        return f"{self.job.id} has not done {', '.join(self.left)}"


def place(folder: Path, job: str, step: str, suffix: str) -> Path:
    """A file of a step."""
    return folder / job / f"{step}.{suffix}"


def read_step(folder: Path, job: CiJob, step: Step) -> StepResult | None:
    """The result of `step` for the digest of `job`; None if there is none, or it is damaged.

    What was done to one registry is not done in another one, and smoke tests of some tiers say
    nothing of the others.
    """
    path = place(folder, job.id, step, "json")
    if not path.exists():
        return None
    try:
        found = codec.read(path, StepResult)
    except InputError:
        return None
    same = (found.format, found.tool, found.digest) == (FORMAT, imgbuild.__version__, job.digest)
    elsewhere = step in CHANGING and found.registry != job.registry
    less = step == "smoke" and not set(job.tiers) <= set(found.tiers)
    return found if same and not elsewhere and not less else None


def read_job(folder: Path, job: CiJob) -> JobResult:
    """The results of `job` so far, up to the first that failed."""
    found = (read_step(folder, job, step) for step in job.steps)
    return JobResult(job=job, steps=tuple(step for step in found if step is not None))


def of_step(
    job: CiJob,
    step: Step,
    status: int,
    said: FirstError,
    *,
    started: datetime.datetime,
    seconds: float = 0.0,
    command: tuple[str, ...] = (),
    repeat: str = "",
) -> StepResult:
    """The result of a step of `job` that ended with `status`; below 0 it was a signal's."""
    return StepResult(
        job=job.id,
        target=job.target,
        step=step,
        digest=job.digest,
        outcome="failed" if status else "passed",
        exit_code=status if status >= 0 else WorkFailed.exit_code,
        error=said.error,
        hint=said.hint,
        started=started.isoformat(timespec="seconds"),
        seconds=seconds,
        command=command,
        registry=job.registry,
        tiers=job.tiers if step == "smoke" else (),
        repeat=repeat,
    )


def write(folder: Path, result: StepResult) -> None:
    """Keep `result`, in one piece."""
    codec.write(place(folder, result.job, result.step, "json"), result)


def forget(folder: Path, job: CiJob, steps: Iterable[Step]) -> None:
    """Remove the results of `steps`, and what their verbs answered; logs stay until they begin."""
    for step in steps:
        for suffix in ("json", "answer.json"):
            place(folder, job.id, step, suffix).unlink(missing_ok=True)


def begin(folder: Path, job: CiJob, repeat: str = "") -> None:
    """Keep the job as it is done here: with these steps, by this line."""
    codec.write(folder / job.id / JOB, StartedJob(**msgspec.structs.asdict(job), repeat=repeat))


def begun(folder: Path, job: CiJob) -> CiJob:
    """`job` as it was begun for its digest, with the steps that it had there; else as it is.

    Its tiers are those of `job`: what an image has to pass is asked now.
    """
    path = folder / job.id / JOB
    if path.exists():
        with contextlib.suppress(InputError):
            found = codec.read(path, StartedJob)
            if (found.id, found.digest) == (job.id, job.digest):
                return msgspec.structs.replace(found, tiers=job.tiers)
    return job


def open_needs(folder: Path, needed: Iterable[CiJob]) -> list[JobResult]:
    """Those of the `needed` jobs that have not passed for the digest that they are of."""
    return [found for job in needed if not (found := read_job(folder, job)).passed]


def first_error(answer: bytes, log: str, status: int) -> FirstError:
    """The first real error of a step that ended with `status`.

    From the verb's own answer where there is one: its error, the first test that failed, the first
    finding of an audit. Else from the log: its first error, at worst its last line.
    """
    try:
        document = msgspec.json.decode(answer)
    except msgspec.DecodeError:
        document = None
    said = _of_document(document) or _of_log(log)
    if status < 0:
        name = signal.Signals(-status).name
        before = f"; its last line: {said.error}" if said.error else ""
        hint = "a kernel short of memory kills so" if name == "SIGKILL" else ""
        return FirstError(error=f"killed by {name}{before}", hint=hint)
    return (
        said if said.error else FirstError(error=f"it ended with status {status} and said nothing")
    )


def _of_document(document: Any) -> FirstError | None:
    if isinstance(document, dict) and isinstance(document.get("message"), str):
        return FirstError(error=_cut(document["message"]), hint=_cut(document.get("hint") or ""))
    for report in document if isinstance(document, list) else ():
        if not isinstance(report, dict):
            continue
        where = f"{report.get('arch', '')} {report.get('tier', '')}".strip()
        for case in _dicts(report.get("cases")):
            if case.get("outcome") == "failed":
                text = f"{where}: {case.get('name')}: {case.get('message')}"
                last = _last(case.get("log") or "")
                return FirstError(error=_cut(text if last in text else f"{text}; at last: {last}"))
        for finding in _dicts(report.get("findings")):
            if finding.get("severity") == "error":
                text = f"{where}: {finding.get('message')} ({finding.get('where')})"
                return FirstError(error=_cut(text), hint=_cut(finding.get("remedy") or ""))
    return None


def _dicts(found: Any) -> Sequence[dict[str, Any]]:
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _of_log(log: str) -> FirstError:
    lines = log.splitlines()
    for number, line in enumerate(lines):
        if (found := FIRST.match(line)) is not None:
            hints = (HINT.match(below) for below in lines[number + 1 :])
            hint = next((one[1] for one in hints if one is not None), "")
            return FirstError(error=_cut(found[1] or found[2]), hint=_cut(hint))
    return FirstError(error=_cut(_last(log)))


def _last(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
