"""Reports the outcomes of a CI run as lines, Markdown, or the text of an issue."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from imgbuild.ci import results
from imgbuild.ci.choosing import JobPlan
from imgbuild.ci.jobs import CiJob, TargetJobs
from imgbuild.ci.results import JobResult
from imgbuild.show.table import markdown_table
from imgbuild.system import quoting
from imgbuild.system.control_characters import escape_control
from imgbuild.system.process import shell_command

OutcomeWord = Literal["published", "tested", "failed", "unfinished", "unchanged", "impossible"]
HEAD = ("target", "outcome", "job", "step", "minutes", "first error")
MARKS: dict[OutcomeWord, str] = {"failed": "❌", "impossible": "⚠️", "unfinished": "⏳"}


class TargetOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a target. `error` is the first error, and `log` is the file with this error.

    `repeat` is the command that repeats the failed job, or runs the first unfinished job. Outcomes:

    - published: the tag has this digest;
    - tested: all jobs except those that publish have passed;
    - unchanged: the digest has not changed since the given revision;
    - unfinished: some jobs have not run, and none failed;
    - impossible: no machine can run one of the jobs.
    """

    target: str
    digest: str
    outcome: OutcomeWord
    job: str = ""
    step: str = ""
    exit_code: int = 0
    error: str = ""
    hint: str = ""
    log: str = ""
    repeat: str = ""
    seconds: float = 0.0

    @property
    def needs_attention(self) -> bool:
        """Whether the target failed or is unfinished."""
        return self.outcome in ("failed", "unfinished")


class JobOverview(msgspec.Struct, frozen=True, kw_only=True):
    """The outcomes of all targets."""

    targets: tuple[TargetOutcome, ...]

    def outcomes_needing_attention(self, *, strict: bool) -> tuple[TargetOutcome, ...]:
        """Return the targets that need attention.

        Impossible targets are included only if `strict` is set.
        """
        return tuple(
            outcome
            for outcome in self.targets
            if outcome.needs_attention or (strict and outcome.outcome == "impossible")
        )


def job_overview(folder: Path, chosen: JobPlan, *, published: bool = False) -> JobOverview:
    """Return the outcomes of the targets in `chosen`, from the results in `folder`.

    `published` is used as in `target_outcome`.
    """
    done = [
        target_outcome(folder, target_jobs, published=published) for target_jobs in chosen.targets
    ]
    passed = [
        TargetOutcome(
            target=skipped.target,
            digest=skipped.digest,
            outcome=skipped.outcome,
            error=skipped.reason if skipped.outcome == "impossible" else "",
        )
        for skipped in chosen.passed
    ]
    return JobOverview(targets=tuple(sorted((*done, *passed), key=lambda outcome: outcome.target)))


def target_outcome(
    folder: Path, target_jobs: TargetJobs, *, published: bool = False
) -> TargetOutcome:
    """Return the outcome of a target.

    If `published` is set, a target is unfinished until its tags and SIFs are published.
    """
    jobs = [results.read_result(folder, job) for job in target_jobs.all_jobs]
    publishing = {job.id for job in (*target_jobs.publish, *target_jobs.sif)}
    seconds = round(sum(result.seconds for result in jobs), 3)
    outcome = TargetOutcome(
        target=target_jobs.target, digest=target_jobs.digest, outcome="published", seconds=seconds
    )
    failed = next((result for result in jobs if result.failed), None)
    if failed is not None:
        return _failed_outcome(folder, outcome, failed)
    unfinished = [result.job for result in jobs if not result.passed]
    if not unfinished:
        any_published = any(result.job.id in publishing for result in jobs)
        return outcome if any_published else msgspec.structs.replace(outcome, outcome="tested")
    if not published and all(
        result.passed or (result.job.id in publishing and not result.is_started) for result in jobs
    ):
        return msgspec.structs.replace(outcome, outcome="tested")
    return msgspec.structs.replace(
        outcome,
        outcome="unfinished",
        job=unfinished[0].id,
        error=f"not run: {', '.join(job.id for job in unfinished)}",
        repeat=_command(unfinished[0]),
    )


def _command(job: CiJob) -> str:
    """Return the command that repeats `job`, without a push if the job needs no registry."""
    registry = "--registry HOST/REPOSITORY" if "gate" in job.steps else "--no-push"
    return f"imgbuild ci script {shell_command([job.id])} {registry} > job.sh && bash job.sh"


def _failed_outcome(folder: Path, outcome: TargetOutcome, result: JobResult) -> TargetOutcome:
    job, step = result.job, result.failed
    error = results.first_error(folder, job.id, step, result.exit_code)
    return msgspec.structs.replace(
        outcome,
        outcome="failed",
        job=job.id,
        step=step,
        exit_code=result.exit_code,
        error=error.error,
        hint=error.hint,
        repeat=_command(job),
        log=str(results.result_path(folder, job.id, f"{step}.log")),
    )


def overview_rows(summary: JobOverview) -> list[tuple[str, ...]]:
    """Return the overview as rows of a table."""
    return [
        (
            outcome.target,
            outcome.outcome,
            outcome.job,
            outcome.step,
            f"{outcome.seconds / 60:.1f}",
            " ".join(outcome.error.split())[:100],
        )
        for outcome in summary.targets
    ]


def overview_markdown(summary: JobOverview) -> str:
    """Return the overview as Markdown, for the summary page of a CI run."""
    lines: list[tuple[str, ...]] = [("target", "outcome", "where", "first error")]
    for outcome in summary.targets:
        mark = MARKS.get(outcome.outcome, "✅")
        job, step = quoting.code_span(outcome.job), quoting.markdown_cell(outcome.step)
        where = quoting.QuotedText(f"{job} {step}".rstrip() if outcome.job else "")
        error = " ".join(outcome.error.split())[:200]
        lines.append((outcome.target, f"{mark} {outcome.outcome}", where, error))
    return "\n".join((*markdown_table(lines), ""))


def issue_text(outcome: TargetOutcome) -> str:
    """Return the text of an issue about a target that was not published."""
    digest = outcome.digest or "none, because there are no digests"
    span = quoting.code_span
    lines = [f"{span(outcome.target)} is {outcome.outcome}; its digest is {span(digest)}.", ""]
    if outcome.step:
        place = f"Job {span(outcome.job)}, step {span(outcome.step)}"
        lines += [f"{place}, exit status {outcome.exit_code}:", ""]
    lines += [f"    {escape_control(line)}" for line in outcome.error.splitlines()] + [""]
    lines += [f"Remedy: {quoting.markdown_cell(outcome.hint)}", ""] if outcome.hint else []
    if outcome.repeat:
        repeat = quoting.comment_line(outcome.repeat)
        lines += ["To repeat the job on a machine of the same kind:", "", f"    {repeat}", ""]
    if outcome.repeat and "--no-push" not in outcome.repeat:
        lines += [
            "The job requires the results of earlier jobs (artifacts of the run) in `build/ci`.",
            "",
        ]
    return "\n".join(lines)
