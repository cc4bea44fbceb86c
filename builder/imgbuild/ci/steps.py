"""The steps of a CI job: most are a verb of imgbuild in its own process, others a short check."""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Mapping

import msgspec

from imgbuild import codec
from imgbuild.ci import published, results
from imgbuild.ci.choosing import read_seal
from imgbuild.ci.context import IN_REGISTRY, RunContext, repeated
from imgbuild.ci.jobs import AGAIN, PUBLISH, CiJob, Step
from imgbuild.ci.results import FirstError, StepResult
from imgbuild.ci.settings import FILE
from imgbuild.errors import ImgbuildError, Interrupted, WorkFailed
from imgbuild.oci import layout
from imgbuild.smoke.result import SmokeRun
from imgbuild.system import process


def run(way: RunContext, job: CiJob, step: Step, known: Mapping[str, CiJob]) -> StepResult:
    """Run `step`; `known` are all jobs of the target. Interrupted if the user stopped it."""
    started, clock = datetime.datetime.now(datetime.UTC), time.monotonic()
    results.place(way.results, job.id, step, "log").parent.mkdir(parents=True, exist_ok=True)
    way.reporter.info(f"{job.id}: {step} …")
    words = command(way, job, step)
    status, said = 0, FirstError()
    # An image that was built here, or on a disk that machines share, is not pulled.
    if words and not (step == "pull" and layout.check(way.project.output(job.target), job.digest)):
        status, said = _verb(way, job, step, words)
    if status == 0:
        try:
            check(way, job, step, known)
        except ImgbuildError as error:
            status, said = error.exit_code, FirstError(error=error.message, hint=error.hint or "")
    return results.of_step(
        job,
        step,
        status,
        said,
        started=started,
        seconds=round(time.monotonic() - clock, 3),
        command=words,
        repeat=way.repeat(job, alone=step not in IN_REGISTRY),
    )


def command(way: RunContext, job: CiJob, step: Step) -> tuple[str, ...]:
    """The verb that runs `step`, with its options; () for a check in this process."""
    image = f"{way.registry}@{job.digest}"
    words: dict[Step, tuple[str, ...]] = {
        "check": ("lock", "--check", job.target),
        "audit": ("audit", job.target, "--arch", job.arch, "--keep"),
        "cves": ("cves", job.target, "--arch", job.arch, *_bounds(way)),
        "build": ("build", job.target, *(("--verify",) if job.id.endswith(f"-{AGAIN}") else ())),
        "smoke": (
            *("smoke", job.target, "--arch", job.arch),
            *(*repeated("--tier", job.tiers), *way.testing),
        ),
        "push": ("push", job.target, way.registry, "--digest-only"),
        # By digest: the tag names the layout on disk, and files made from it, after the target.
        "pull": (
            *("pull", f"{way.registry}:{job.target}@{job.digest}"),
            *("--output", str(way.project.output(job.target))),
        ),
        "sign": ("sign", image, "--target", job.target, *way.signer),
        "sif": ("push", job.target, way.registry, "--sif", "--arch", job.arch),
        # The target's own tag last: once it names the digest, everything is published.
        "tag": ("registry", "tag", image, f"{job.target}-{way.date:%Y%m%d}", job.target),
    }
    if step not in words:
        return ()
    shared: list[str] = []
    if step not in ("pull", "tag"):
        shared += ["--matrix", str(way.project.matrix)]
    if step in ("audit", "cves", "build", "push") and way.offline:
        shared += ["--offline"]
    if step in ("build", "push", "sif") and way.jobs:
        shared += ["--jobs", str(way.jobs)]
    if step in IN_REGISTRY:
        shared += way.plain
    return (*words[step], *shared, "--json")


def _bounds(way: RunContext) -> tuple[str, ...]:
    """The options of `imgbuild cves` that `ci.yaml` sets."""
    gate = way.settings.cves
    if gate is None:
        return ()
    return (
        *("--severity", gate.severity),
        *(("--ignore-unfixed",) if gate.ignore_unfixed else ()),
    )


def _verb(
    way: RunContext, job: CiJob, step: Step, words: tuple[str, ...]
) -> tuple[int, FirstError]:
    """Run a verb: its exit status and its first error."""
    answer = results.place(way.results, job.id, step, "answer.json")
    log = results.place(way.results, job.id, step, "log")
    program = (sys.executable, "-m", "imgbuild")
    part = answer.with_suffix(".part")
    with part.open("wb") as data, log.open("w", encoding="utf-8") as text:

        def _line(line: str) -> None:
            text.write(f"{line}\n")
            text.flush()
            way.reporter.info(f"  {line}")

        status = process.follow((*program, *words), _line, answer=data, env={"NO_COLOR": "1"})
    part.replace(answer)
    if status == 0:
        return 0, FirstError()
    if status == Interrupted.exit_code:
        message = f"{job.id}: {step} was stopped"
        raise Interrupted(message, hint=f"to go on: {way.repeat(job)}")
    said = log.read_text(encoding="utf-8")
    return status, results.first_error(answer.read_bytes(), said, status)


def check(way: RunContext, job: CiJob, step: Step, known: Mapping[str, CiJob]) -> None:
    """WorkFailed if `step` is a check that fails, or smoke tests ran in another image."""
    match step:
        case "gate" if "sif" in job.steps:
            if not published.is_tagged(job, way.plain_http, way.reporter):
                message = f"{job.id} has to wait: {way.registry}:{job.target} is not {job.digest}"
                publish = msgspec.structs.replace(job, id=f"{job.target}@{PUBLISH}")
                raise WorkFailed(message, hint=f"publish the image first: {way.repeat(publish)}")
        case "gate":
            require(way, job, known)
        case "smoke":
            _tested(way, job)
        case "size":
            _size(way, job)


def require(way: RunContext, job: CiJob, known: Mapping[str, CiJob]) -> None:
    """WorkFailed unless all jobs that `job` needs have passed for the same digest."""
    needed = [results.read_job(way.results, known[name]) for name in job.needs]
    missing = [found for found in needed if not found.passed]
    if missing:
        message = f"{job.id} has to wait: {'; '.join(str(one) for one in missing)}"
        raise WorkFailed(message, hint=f"run it first: {way.repeat(missing[0].job)}")


def _tested(way: RunContext, job: CiJob) -> None:
    """WorkFailed unless every tier of `job` reports that it ran in the sealed image."""
    sealed = read_seal(way.project, job.target)
    config = sealed.arch[job.arch].config if sealed and job.arch in sealed.arch else ""
    answer = results.place(way.results, job.id, "smoke", "answer.json")
    found = codec.read(answer, tuple[SmokeRun, ...], what="answer of imgbuild smoke")
    ran = {one.tier for one in found if one.config and one.config == config}
    missing = [tier for tier in job.tiers if tier not in ran]
    if missing:
        message = f"{answer}: tier {', '.join(missing)} does not say that it ran in {config}"
        raise WorkFailed(message, hint="test the image that is sealed: without --through here")


def _size(way: RunContext, job: CiJob) -> None:
    """WorkFailed if a pull of the image, by its seal, downloads more than its budget."""
    limit, sealed = way.settings.limit(job.target), read_seal(way.project, job.target)
    if limit is None or sealed is None or job.arch not in sealed.arch:
        return
    size = sealed.arch[job.arch].size / 1e6
    if size > limit:
        message = f"{job.target} on {job.arch} is {size:,.1f} MB to pull; its budget is {limit} MB"
        raise WorkFailed(message, hint=f"imgbuild show {job.target} --layers; budget: is in {FILE}")
