"""Results of jobs as files: one for each step, beside its log and the output of its verb.

    FOLDER/JOB/job.json    the job           FOLDER/JOB/STEP.log   messages of the step
    FOLDER/JOB/STEP.json   the result        FOLDER/JOB/STEP.answer.json   its verb's `--json`

A result is written atomically when its step has ended: a run that is killed leaves none, and the
next one runs the step again. Results of another digest or another version of imgbuild are ignored.
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
CHANGING: frozenset[Step] = frozenset({"push", "sign", "tag", "sif"})  # that push to a registry
Outcome = Literal["passed", "failed"]
# A line of a log with an error: imgbuild's own, or the last line of a Python traceback.
FIRST = re.compile(r"^\s*error: (.+)|^((?:[\w.]+\.)?\w*(?:Error|Exception): .+)$")
HINT = re.compile(r"^\s*hint: (.+)")
LONGEST = 2000  # characters of an error that a result keeps; the log has all of it


class FirstError(msgspec.Struct, frozen=True, kw_only=True):
    """The first error of a step, and its remedy."""

    error: str = ""
    hint: str = ""


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """How one step ended. `exit_code` is its verb's; `started` is in UTC, `seconds` wall-clock.

    `tiers` are those of the smoke tests that it ran; `repeat` is the command that runs its job.
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
    """A job as it was started, and the command that runs it again."""

    repeat: str = ""


class JobResult(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a job: the results of its steps in order, without those that have none."""

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
        """The wall-clock time of its steps."""
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

    A push to another registry does not count, nor smoke tests of fewer tiers.
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
    """The results of `job` so far."""
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
    """Write `result` atomically."""
    codec.write(place(folder, result.job, result.step, "json"), result)


def forget(folder: Path, job: CiJob, steps: Iterable[Step]) -> None:
    """Remove the results of `steps` and the output of their verbs; logs stay until they start."""
    for step in steps:
        for suffix in ("json", "answer.json"):
            place(folder, job.id, step, suffix).unlink(missing_ok=True)


def begin(folder: Path, job: CiJob, repeat: str = "") -> None:
    """Write the job as it is run here: its steps, and the command that runs it."""
    codec.write(folder / job.id / JOB, StartedJob(**msgspec.structs.asdict(job), repeat=repeat))


def begun(folder: Path, job: CiJob) -> CiJob:
    """`job` with the steps with which it was started for its digest, if it was started.

    Its tiers are always those of `job`: the gate may have changed since.
    """
    path = folder / job.id / JOB
    if path.exists():
        with contextlib.suppress(InputError):
            found = codec.read(path, StartedJob)
            if (found.id, found.digest) == (job.id, job.digest):
                return msgspec.structs.replace(found, tiers=job.tiers)
    return job


def first_error(answer: bytes, log: str, status: int) -> FirstError:
    """The first error of a step that ended with `status`.

    From the verb's output if it has one: its error, the first test that failed, the first error of
    an audit, the vulnerabilities that count. Else from the log: its first error, or its last line.
    """
    try:
        document = msgspec.json.decode(answer)
    except msgspec.DecodeError:
        document = None
    said = _of_document(document) or _of_log(log)
    if status < 0:
        name = signal.Signals(-status).name
        before = f"; its last line: {said.error}" if said.error else ""
        hint = "the kernel may have been out of memory" if name == "SIGKILL" else ""
        return FirstError(error=f"killed by {name}{before}", hint=hint)
    return said if said.error else FirstError(error=f"ended with status {status} and no message")


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
        if counted := report.get("counted"):  # of `imgbuild cves`
            text = f"{where}: known vulnerabilities: {', '.join(map(str, counted))}"
            return FirstError(error=_cut(text), hint=f"imgbuild cves {report.get('target')}")
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
