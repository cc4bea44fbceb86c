"""Reports the outcome of each target from the results of its jobs, for people and for issues."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from imgbuild.ci import results
from imgbuild.ci.choosing import JobPlan
from imgbuild.ci.jobs import CiJob, TargetJobs
from imgbuild.ci.results import JobResult, StartedJob, StepResult
from imgbuild.system import quoting
from imgbuild.system.quoting import visible

Word = Literal["published", "tested", "failed", "unfinished", "unchanged", "impossible"]
HEAD = ("target", "outcome", "job", "step", "minutes", "first error")
MARKS: dict[Word, str] = {"failed": "❌", "impossible": "⚠️", "unfinished": "⏳"}


class TargetOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one target. `error` is its first error, `log` the file that has it.

    `repeat` is the command that runs the failed job, or the first unfinished one, again.

    published: its tag names this digest. tested: all jobs have passed, except those that publish.
    unchanged: the digest is the same as at the given revision. unfinished: jobs have not run, and
    none failed. impossible: there is no machine for one of its jobs.
    """

    target: str
    digest: str
    outcome: Word
    job: str = ""
    step: str = ""
    exit_code: int = 0
    error: str = ""
    hint: str = ""
    log: str = ""
    repeat: str = ""
    seconds: float = 0.0

    @property
    def bad(self) -> bool:
        """Whether the target needs attention; an impossible one needs another ci.yaml."""
        return self.outcome in ("failed", "unfinished")


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """The outcomes of all targets."""

    targets: tuple[TargetOutcome, ...]

    def wrong(self, *, strict: bool) -> tuple[TargetOutcome, ...]:
        """The targets that need attention; with `strict` also those that no machine can run."""
        return tuple(
            one for one in self.targets if one.bad or (strict and one.outcome == "impossible")
        )


def overview(folder: Path, chosen: JobPlan, *, published: bool = False) -> Overview:
    """The outcomes of `chosen` by the results in `folder`; `published` as in `verdict`."""
    done = [verdict(folder, own, published=published) for own in chosen.targets]
    passed = [
        TargetOutcome(
            target=one.target,
            digest=one.digest,
            outcome=one.outcome,
            error=one.reason if one.outcome == "impossible" else "",
        )
        for one in chosen.passed
    ]
    return Overview(targets=tuple(sorted((*done, *passed), key=lambda one: one.target)))


def verdict(folder: Path, own: TargetJobs, *, published: bool = False) -> TargetOutcome:
    """The outcome of one target; with `published` it is unfinished without its tags and SIFs."""
    jobs = [results.begun(folder, job) for job in own.all]
    found = [results.read_job(folder, job) for job in jobs]
    publishing = {job.id for job in (*own.publish, *own.sif)}
    # A job whose gate failed waits for another one, which is reported instead.
    real = [one.failed for one in found if one.failed and not _waits(one)]
    seconds = round(sum(one.seconds for one in found), 3)
    made = TargetOutcome(target=own.target, digest=own.digest, outcome="published", seconds=seconds)
    if real:
        return _failed(folder, made, real[0])
    unfinished = [one for one in found if not one.passed]
    if not unfinished:
        any_published = any(one.job.id in publishing for one in found)
        return made if any_published else msgspec.structs.replace(made, outcome="tested")
    if not published and all(one.job.id in publishing and not one.steps for one in unfinished):
        return msgspec.structs.replace(made, outcome="tested")
    open_ = [one for one in unfinished if not _waits(one)]
    return msgspec.structs.replace(
        made,
        outcome="unfinished",
        job=open_[0].job.id if open_ else "",
        error="; ".join(map(str, open_)),
        repeat=_line(open_[0].job) if open_ else "",
    )


def _line(job: CiJob) -> str:
    """The command that runs `job`; "" if it was never started and needs a registry."""
    if isinstance(job, StartedJob) and job.repeat:
        return job.repeat
    return "" if "gate" in job.steps else f"imgbuild ci run {job.id} --no-push"


def _waits(one: JobResult) -> bool:
    return one.failed is not None and one.failed.step == "gate"


def _failed(folder: Path, made: TargetOutcome, step: StepResult) -> TargetOutcome:
    return msgspec.structs.replace(
        made,
        outcome="failed",
        job=step.job,
        step=step.step,
        exit_code=step.exit_code,
        error=step.error,
        hint=step.hint,
        repeat=step.repeat,
        log=str(results.place(folder, step.job, step.step, "log")),
    )


def rows(found: Overview) -> list[tuple[str, ...]]:
    """The overview as a table."""
    return [
        (
            one.target,
            one.outcome,
            one.job,
            one.step,
            f"{one.seconds / 60:.1f}",
            " ".join(one.error.split())[:100],
        )
        for one in found.targets
    ]


def markdown(found: Overview) -> str:
    """The overview as Markdown, for the page of a run."""
    lines = ["| target | outcome | where | first error |", "| --- | --- | --- | --- |"]
    for one in found.targets:
        mark = MARKS.get(one.outcome, "✅")
        job, step = quoting.code_span(one.job), quoting.markdown(one.step)
        where = f"{job} {step}".rstrip() if one.job else ""
        error = quoting.markdown(" ".join(one.error.split())[:200])
        target = quoting.markdown(one.target)
        lines.append(f"| {target} | {mark} {one.outcome} | {where} | {error} |")
    return "\n".join((*lines, ""))


def issue(one: TargetOutcome) -> str:
    """The text of the issue about a target that is not published."""
    digest = one.digest or "none: there are no digests"
    span = quoting.code_span
    lines = [f"{span(one.target)} is {one.outcome}; its digest is {span(digest)}.", ""]
    if one.step:
        place = f"Job {span(one.job)}, step {span(one.step)}"
        lines += [f"{place}, exit status {one.exit_code}:", ""]
    lines += [f"    {visible(line)}" for line in one.error.splitlines()] + [""]
    lines += [f"Remedy: {quoting.markdown(one.hint)}", ""] if one.hint else []
    if one.repeat:
        repeat = quoting.line(one.repeat)
        lines += ["To repeat it on a machine of the same kind:", "", f"    {repeat}", ""]
    if one.repeat and "--no-push" not in one.repeat:
        lines += ["It needs the results of earlier jobs (artifacts of the run) in `build/ci`.", ""]
    return "\n".join(lines)
