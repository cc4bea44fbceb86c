"""Reports the outcome of each target from the results of its jobs, for people and for issues."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from imgbuild.ci import results
from imgbuild.ci.choosing import JobPlan
from imgbuild.ci.jobs import CiJob, TargetJobs
from imgbuild.ci.results import JobResult
from imgbuild.system.process import pasted

Word = Literal["published", "tested", "failed", "unfinished", "unchanged", "impossible"]
HEAD = ("target", "outcome", "job", "step", "minutes", "first error")
MARKS: dict[Word, str] = {"failed": "❌", "impossible": "⚠️", "unfinished": "⏳"}


class TargetOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one target. `error` is its first error, `log` the file that has it.

    `repeat` is the command that does the failed job, or the first unfinished one, again.

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
    jobs = [results.read(folder, job) for job in own.all]
    publishing = {job.id for job in (*own.publish, *own.sif)}
    seconds = round(sum(result.seconds for result in jobs), 3)
    made = TargetOutcome(target=own.target, digest=own.digest, outcome="published", seconds=seconds)
    failed = next((result for result in jobs if result.failed), None)
    if failed is not None:
        return _failed(folder, made, failed)
    unfinished = [result.job for result in jobs if not result.passed]
    if not unfinished:
        any_published = any(result.job.id in publishing for result in jobs)
        return made if any_published else msgspec.structs.replace(made, outcome="tested")
    if not published and all(
        result.passed or (result.job.id in publishing and not result.started) for result in jobs
    ):
        return msgspec.structs.replace(made, outcome="tested")
    return msgspec.structs.replace(
        made,
        outcome="unfinished",
        job=unfinished[0].id,
        error=f"not done: {', '.join(job.id for job in unfinished)}",
        repeat=_command(unfinished[0]),
    )


def _command(job: CiJob) -> str:
    """The command that does `job` again; nothing is pushed if it can do without a registry."""
    registry = "--registry HOST/REPOSITORY" if "gate" in job.steps else "--no-push"
    return f"imgbuild ci script {pasted([job.id])} {registry} > job.sh && bash job.sh"


def _failed(folder: Path, made: TargetOutcome, result: JobResult) -> TargetOutcome:
    job, step = result.job, result.failed
    error = results.first_error(folder, job.id, step, result.exit_code)
    return msgspec.structs.replace(
        made,
        outcome="failed",
        job=job.id,
        step=step,
        exit_code=result.exit_code,
        error=error.error,
        hint=error.hint,
        repeat=_command(job),
        log=str(results.place(folder, job.id, f"{step}.log")),
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
        where = f"`{one.job}` {one.step}".rstrip() if one.job else ""
        error = " ".join(one.error.split())[:200].replace("|", "\\|")
        lines.append(f"| {one.target} | {mark} {one.outcome} | {where} | {error} |")
    return "\n".join((*lines, ""))


def issue(one: TargetOutcome) -> str:
    """The text of the issue about a target that is not published."""
    digest = one.digest or "none: there are no digests"
    lines = [f"`{one.target}` is {one.outcome}; its digest is `{digest}`.", ""]
    if one.step:
        lines += [f"Job `{one.job}`, step `{one.step}`, exit status {one.exit_code}:", ""]
    lines += [f"    {line}" for line in one.error.splitlines()] + [""]
    lines += [f"Remedy: {one.hint}", ""] if one.hint else []
    if one.repeat:
        lines += ["To repeat it on a machine of the same kind:", "", f"    {one.repeat}", ""]
    if one.repeat and "--no-push" not in one.repeat:
        lines += ["It needs the results of earlier jobs (artifacts of the run) in `build/ci`.", ""]
    return "\n".join(lines)
