"""Runs the CI jobs of several targets, one after another, on this machine and through Slurm.

    image jobs → GPU jobs → publish → SIFs, for each target; here, or what needs a GPU through Slurm

A target that fails does not stop the others, and a night that is stopped goes on where it was:
results are on disk.
"""

from __future__ import annotations

import datetime
import platform
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from imgbuild.ci import report, results, running
from imgbuild.ci.choosing import JobPlan
from imgbuild.ci.jobs import CiJob, TargetJobs
from imgbuild.ci.report import Overview, TargetOutcome
from imgbuild.ci.results import JobResult, StepResult
from imgbuild.ci.running import RunContext
from imgbuild.errors import ImgbuildError, Interrupted
from imgbuild.slurm import array
from imgbuild.slurm.array import Task, TaskEnd
from imgbuild.values import Arch

VERB = "ci-run"  # of the arrays that run GPU jobs


class Machines(msgspec.Struct, frozen=True, kw_only=True):
    """Where jobs run: here, and what needs a GPU through Slurm, with these options of sbatch.

    `drop`: an image's folder is removed when its target is through, unless it was there before.
    """

    slurm: bool = False
    options: tuple[str, ...] = ()
    drop: bool = False


def night(way: RunContext, chosen: JobPlan, machines: Machines) -> Overview:
    """Do the jobs of all targets of `chosen` that are not done yet: what became of each."""
    raised: dict[str, ImgbuildError] = {}
    for number, own in enumerate(chosen.targets, start=1):
        way.reporter.info(f"{own.target} ({number} of {len(chosen.targets)})")
        folder = way.project.output(own.target)
        there = folder.exists()
        try:
            _target(way, own, machines)
        except Interrupted:
            raise
        except ImgbuildError as error:
            way.reporter.error(f"{own.target}: {error.message}", hint=error.hint)
            raised[own.target] = error
        if machines.drop and not there:
            _drop(folder)
    found = report.overview(way.results, chosen, published=True)
    return Overview(targets=tuple(_judged(one, raised.get(one.target)) for one in found.targets))


def _drop(folder: Path) -> None:
    """Remove an image that was made for this night, and its SIF: the registry has them."""
    if (folder / "oci-layout").exists():
        shutil.rmtree(folder)
        folder.with_name(f"{folder.name}.sif").unlink(missing_ok=True)


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


def _target(way: RunContext, own: TargetJobs, machines: Machines) -> None:
    """The jobs of one target; those that cannot be done here must have been done elsewhere."""
    known = running.known(way, own)
    here = Arch.parse(platform.machine())
    sifs = {job.id for job in own.sif}
    anywhere = {job.id for job in own.publish} | sifs
    for job in (known[job.id] for job in own.all):
        if running.over(way, job):
            way.reporter.info(f"{job.id} has passed before")
        elif job.gpus and machines.slurm:
            if not _through_slurm(way, job, known, machines.options).passed:
                return
        elif job.arch is not here and job.id not in anywhere:
            line = running.repeat(way, job)
            way.reporter.warn(f"{job.id} is for another machine; on one of {job.arch}: {line}")
        elif not running.run_job(way, job, known).passed and job.id not in sifs:
            return


def _through_slurm(
    way: RunContext, job: CiJob, known: dict[str, CiJob], options: Sequence[str]
) -> JobResult:
    """Run `job` on a node of Slurm that sees the same folders, and wait for its end.

    A task that an earlier run left in the queue is waited for first, and counts if it has results.
    """
    before = results.read_job(way.results, job)
    top, command, task = orders(way), run_command(way), Task(target=job.id, digest=job.digest)
    _, queued, _ = array.sort(array.known(top, VERB, command, [task]))
    if queued:
        with way.reporter.step(f"{job.id}: waiting for {queued[0].order.job}, queued before"):
            array.follow(queued, way.reporter)
        found = results.read_job(way.results, job)
        if found != before and (found.passed or found.failed is not None):
            return found
    # Nodes may have no access to a registry: the image is pulled here, into the shared folder.
    begun = running.run_job(way, job, known, until="smoke")
    if begun.passed or begun.failed is not None:
        return begun
    words = (f"--gpus-per-node={job.gpus}", *options)
    followed = array.start(
        way.project, top, VERB, command, [task], words, name=job.id, reporter=way.reporter
    )
    try:
        [end] = array.follow(followed, way.reporter)
    except KeyboardInterrupt:
        if said := array.cancel(followed):
            way.reporter.warn(f"{job.id} could not be cancelled: {said}")
        raise
    done = results.read_job(way.results, job)
    if not done.passed and done.failed is None:
        results.write(way.results, _lost(way, done, end))
        done = results.read_job(way.results, job)
    return done


def _lost(way: RunContext, done: JobResult, end: TaskEnd) -> StepResult:
    """The result of a Slurm task that ended without one.

    Its node failed, its time was over, or it was cancelled before it ran.
    """
    job = done.job
    step = next(step for step in job.steps if step not in {one.step for one in done.steps})
    return StepResult(
        job=job.id,
        target=job.target,
        step=step,
        digest=job.digest,
        outcome="failed",
        exit_code=1,
        error=f"Slurm job {end.job} ended without a result: {end.message}",
        hint=f"its log: {end.place}",
        started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        seconds=0.0,
        command=(),
        registry=job.registry,
        tiers=job.tiers if step == "smoke" else (),
        repeat=running.repeat(way, job),
    )


def orders(way: RunContext) -> Path:
    """The folder of the arrays that were submitted for these results."""
    return way.results.resolve() / "slurm"


def run_command(way: RunContext) -> tuple[str, ...]:
    """The command line that runs a job on another machine as it would run here, without its id."""
    words = [sys.executable, "-m", "imgbuild", "ci", "run"]
    words += ["--matrix", str(way.project.matrix), "--results", str(way.results.resolve())]
    words += ["--registry", way.registry]
    words += [word for arch in way.arches for word in ("--arch", arch)]
    words += [word for tier in way.settings.gate for word in ("--gate", tier)]
    words += ["--through", way.through] if way.through else []
    words += ["--timeout-factor", str(way.timeout_factor)] if way.timeout_factor != 1.0 else []
    return (*words, *(word for host in way.plain_http for word in ("--plain-http", host)))
