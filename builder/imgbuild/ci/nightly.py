"""A night without a CI: the jobs of several targets, one after another, on machines of one's own.

    image jobs → GPU jobs → publish → SIFs, for each target; here, or what needs a GPU through Slurm

Input: targets with their jobs, a `Way`. Output: what became of each. A target that fails does
not stop the others, and a night that is stopped goes on where it was: results are on disk.
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
from imgbuild.ci.choosing import Chosen
from imgbuild.ci.jobs import Job, Jobs
from imgbuild.ci.report import Overview, Verdict
from imgbuild.ci.results import JobResult, StepResult
from imgbuild.ci.running import Way
from imgbuild.errors import ImgbuildError, Interrupted
from imgbuild.slurm import commands
from imgbuild.system import process
from imgbuild.values import Arch


class Machines(msgspec.Struct, frozen=True, kw_only=True):
    """Where jobs run: here, and what needs a GPU through Slurm, with these options of sbatch.

    `drop`: an image's folder is removed when its target is through, unless it was there before.
    """

    slurm: bool = False
    options: tuple[str, ...] = ()
    drop: bool = False


def night(way: Way, chosen: Chosen, machines: Machines) -> Overview:
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


def _judged(one: Verdict, error: ImgbuildError | None) -> Verdict:
    if error is None or one.outcome == "failed":
        return one
    return msgspec.structs.replace(
        one,
        outcome="failed",
        exit_code=error.exit_code,
        error=error.message,
        hint=error.hint or "",
    )


def _target(way: Way, own: Jobs, machines: Machines) -> None:
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


def _through_slurm(way: Way, job: Job, known: dict[str, Job], options: Sequence[str]) -> JobResult:
    """Do `job` on a node of Slurm's, which sees the same folders, and wait for its end.

    One that an earlier night has left to Slurm is waited for first: what it proves is not proven
    again.
    """
    before = results.read_job(way.results, job)
    if number := commands.named(job.id):
        with way.reporter.step(
            f"{job.id}: waiting for job {number} of Slurm, which runs it already"
        ):
            commands.ended(number)
        found = results.read_job(way.results, job)
        if found != before and (found.passed or found.failed is not None):
            return found
    # Nodes of a site may have no way to a registry: the image is brought here, and they find it.
    begun = running.run_job(way, job, known, until="smoke")
    if begun.passed or begun.failed is not None:
        return begun
    folder = way.results.resolve() / job.id
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "slurm-%j.log"
    words = [f"--job-name={job.id}", f"--output={log}", f"--gpus-per-node={job.gpus}", *options]
    script = f"#!/bin/sh\nexec {process.pasted(run_command(way, job))}\n"
    with way.reporter.step(f"{job.id}: waiting for Slurm"):
        end = commands.wait(script, way.project.root, words, way.reporter)
    done = results.read_job(way.results, job)
    if not done.passed and done.failed is None:
        results.write(way.results, _lost(way, done, end, log))
        done = results.read_job(way.results, job)
    return done


def _lost(way: Way, done: JobResult, end: commands.End, log: Path) -> StepResult:
    """The result of a job of Slurm's that ended without one.

    Its node failed, its time was over, or it was cancelled before it ran.
    """
    job = done.job
    path = Path(str(log).replace("%j", end.number))
    said = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    found = results.first_error(b"", said, end.status)
    step = next(step for step in job.steps if step not in {one.step for one in done.steps})
    return StepResult(
        job=job.id,
        target=job.target,
        step=step,
        digest=job.digest,
        outcome="failed",
        exit_code=1,
        error=f"job {end.number} of Slurm ended as {end.state}, status {end.status}: {found.error}",
        hint=found.hint,
        started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        seconds=0.0,
        command=(),
        registry=job.registry,
        tiers=job.tiers if step == "smoke" else (),
        repeat=running.repeat(way, job),
    )


def run_command(way: Way, job: Job) -> list[str]:
    """The command line that does `job` on another machine as it would be done here."""
    words = [sys.executable, "-m", "imgbuild", "ci", "run", job.id]
    words += ["--matrix", str(way.project.matrix), "--results", str(way.results.resolve())]
    words += ["--registry", way.registry, "--date", way.date.isoformat()]
    words += [word for arch in way.arches for word in ("--arch", arch)]
    words += [word for tier in way.settings.gate for word in ("--gate", tier)]
    words += ["--through", way.through] if way.through else []
    words += ["--timeout-factor", str(way.patience)] if way.patience != 1.0 else []
    return [*words, *(word for host in way.plain_http for word in ("--plain-http", host))]
