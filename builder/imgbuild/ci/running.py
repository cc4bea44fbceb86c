"""Runs CI jobs: one job on this machine, or all jobs of several targets, also through Slurm.

    image jobs → GPU jobs → publish → SIFs, for each target

Results are on disk. A step that has passed for the same digest is not run again, so an interrupted
run continues where it stopped.
"""

from __future__ import annotations

import datetime
import platform
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from imgbuild.cache.store import Store
from imgbuild.ci import published, report, results, steps
from imgbuild.ci.choosing import JobPlan, read_seal
from imgbuild.ci.context import IN_REGISTRY, RunContext
from imgbuild.ci.jobs import CiJob, Step, TargetJobs
from imgbuild.ci.report import Overview, TargetOutcome
from imgbuild.ci.results import FirstError, JobResult
from imgbuild.errors import ImgbuildError, InputError, Interrupted
from imgbuild.oci import layout
from imgbuild.slurm import array
from imgbuild.slurm.array import Task
from imgbuild.values import Arch, sha256

# Steps that check what is there now, in well under a second: repeated each time.
LOOKS: frozenset[Step] = frozenset({"check", "size", "gate"})
# Anyone can move a tag, and setting one that is right takes a few requests; vulnerabilities of an
# image become known after it was built.
EACH_TIME: frozenset[Step] = LOOKS | {"tag", "cves"}
# Steps that leave an image in a folder, and steps that need it there.
MAKES: frozenset[Step] = frozenset({"build", "pull"})
WANT: frozenset[Step] = frozenset({"smoke", "sif"})
VERB = "ci-run"  # of the arrays that run GPU jobs


def run_targets(way: RunContext, chosen: JobPlan, *, drop: bool = False) -> Overview:
    """Run the jobs of all targets of `chosen` that have not passed: the outcome of each target.

    A target that fails does not stop the others. `drop`: the folder of an image is removed when
    its target is done, unless it existed before.
    """
    raised: dict[str, ImgbuildError] = {}
    for number, own in enumerate(chosen.targets, start=1):
        way.reporter.info(f"{own.target} ({number} of {len(chosen.targets)})")
        folder = way.project.output(own.target)
        existed = folder.exists()
        try:
            run_target(way, own)
        except Interrupted:
            raise
        except ImgbuildError as error:
            way.reporter.error(f"{own.target}: {error.message}", hint=error.hint)
            raised[own.target] = error
        if drop and not existed and (folder / "oci-layout").exists():
            shutil.rmtree(folder)
            folder.with_name(f"{folder.name}.sif").unlink(missing_ok=True)
    found = report.overview(way.results, chosen, published=True)
    return Overview(targets=tuple(_judged(one, raised.get(one.target)) for one in found.targets))


def _judged(one: TargetOutcome, error: ImgbuildError | None) -> TargetOutcome:
    if error is None or one.outcome == "failed":
        return one
    return msgspec.structs.replace(
        one,
        outcome="failed",
        exit_code=error.exit_code,
        error=error.message,
        hint=error.hint or "",
    )


def run_target(way: RunContext, own: TargetJobs) -> None:
    """Run the jobs of one target until one fails, except those of another architecture."""
    known = way.jobs_of(own)
    here = Arch.parse(platform.machine())
    for job in known.values():
        if is_done(way, job):
            way.reporter.info(f"{job.id} has passed before")
        elif job.gpus and way.slurm is not None:
            if not run_on_slurm(way, job, known, way.slurm).passed:
                return
        elif job.arch is not here and not {"tag", "sif"} & set(job.steps):
            line = way.repeat(job)
            way.reporter.warn(
                f"{job.id} is for another machine; run it on one with {job.arch}: {line}"
            )
        elif not run_job(way, job, known).passed and "sif" not in job.steps:
            return


def run_job(
    way: RunContext, job: CiJob, known: Mapping[str, CiJob], *, until: Step | None = None
) -> JobResult:
    """Run the steps of `job` that are due on this machine; `known` are all jobs of its target.

    With `until`, only those before that step. Old results of due steps are removed first. A step
    that fails ends the job, and is in the result. Interrupted if the user stops it: steps that
    ended are kept. InputError if the job needs a registry and none is given, FetchFailed if the
    registry does not answer.
    """
    if IN_REGISTRY & set(job.steps) and not way.registry:
        message = f"{job.id} has steps in a registry, and none is named"
        raise InputError(message, hint="--registry HOST/REPOSITORY")
    folder = str(way.results.resolve()).encode()
    with Store.open().exclusive(f"ci-{sha256(folder)[:16]}-{job.id}"):
        results.begin(way.results, job, way.repeat(job, alone=True))
        due = due_steps(way, job)
        results.forget(way.results, job, due)
        for step in job.steps:
            if step == until:
                break
            if step not in due:
                way.reporter.info(f"{job.id}: {step} has passed before")
                continue
            result = steps.run(way, job, step, known)
            results.write(way.results, result)
            if result.outcome == "failed":
                hint = result.hint or None
                way.reporter.error(f"{job.id}: {step} failed: {result.error}", hint=hint)
                break
    return results.read_job(way.results, job)


def is_done(way: RunContext, job: CiJob) -> bool:
    """Whether all steps of `job` have passed, and its registry still has what they pushed.

    A job that sets tags is never done: a tag may have been moved since.
    """
    return results.read_job(way.results, job).passed and due_steps(way, job) <= LOOKS


def due_steps(way: RunContext, job: CiJob) -> set[Step]:
    """The steps of `job` to run. An image that was tested and is not on disk is not built again."""
    sealed = read_seal(way.project, job.target)
    due: set[Step] = set()
    for step in job.steps:
        found = results.read_step(way.results, job, step)
        past = step not in EACH_TIME and found is not None and found.outcome == "passed"
        if not past or not published.has(job, step, sealed, way.plain_http, way.reporter):
            due.add(step)
    if WANT & due and not layout.check(way.project.output(job.target), job.digest):
        due |= MAKES & set(job.steps)
    return due


def orders(way: RunContext) -> Path:
    """The folder of the arrays that were submitted for these results."""
    return way.results.resolve() / "slurm"


def run_on_slurm(
    way: RunContext, job: CiJob, known: Mapping[str, CiJob], options: tuple[str, ...]
) -> JobResult:
    """Run `job` on a Slurm node that sees the same folders, as an array of one task.

    A task that an earlier run left in the queue is waited for first, and counts if it has results.
    """
    before = results.read_job(way.results, job)
    top, task = orders(way), Task(target=job.id, digest=job.digest)
    command = (sys.executable, "-m", "imgbuild", *way.elsewhere())
    _, queued = array.sort(array.known(top, VERB, command, [task]))
    if queued:
        with way.reporter.step(f"{job.id}: waiting for {queued[0].order.job}, queued before"):
            array.follow(queued, way.reporter, leave=True)
        found = results.read_job(way.results, job)
        if found != before and found.ended:
            return found
    # Nodes may have no access to a registry: the image is pulled here, into the shared folder.
    begun = run_job(way, job, known, until="smoke")
    if begun.ended:
        return begun
    words = (f"--gpus-per-node={job.gpus}", *options)
    followed = array.start(
        way.project, top, VERB, command, [task], words, name=job.id, reporter=way.reporter
    )
    [end] = array.follow(followed, way.reporter)
    done = results.read_job(way.results, job)
    if done.ended:
        return done
    # Its node failed, its time was over, or it was cancelled before it ran.
    error = f"Slurm job {end.job} ended without a result: {end.message}"
    said = FirstError(error=error, hint=f"its log: {end.place}")
    lost = results.of_step(
        job, done.left[0], 1, said, started=datetime.datetime.now(datetime.UTC),
        repeat=way.repeat(job),
    )  # fmt: skip
    results.write(way.results, lost)
    return results.read_job(way.results, job)
