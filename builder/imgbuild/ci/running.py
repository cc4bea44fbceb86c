"""Runs the steps of one job on this machine, each as a command of imgbuild in its own process.

A step that has passed for the same digest is not done again; the first that fails ends the job.
"""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from imgbuild import codec
from imgbuild.cache.store import Store
from imgbuild.ci import results, standing
from imgbuild.ci.choosing import read_seal
from imgbuild.ci.jobs import AGAIN, CiJob, Step, TargetJobs
from imgbuild.ci.results import FirstError, JobResult, StepResult
from imgbuild.ci.settings import FILE, CiSettings
from imgbuild.errors import ImgbuildError, InputError, Interrupted, WorkFailed
from imgbuild.oci import layout
from imgbuild.project import MATRIX, Project
from imgbuild.registry.client import Client
from imgbuild.registry.reference import parse_repository
from imgbuild.smoke.result import SmokeRun
from imgbuild.system import process
from imgbuild.system.reporter import SILENT, Reporter
from imgbuild.values import Arch, sha256

# Steps that look at what lies there now, in well under a second: done anew each time.
LOOKS: frozenset[Step] = frozenset({"check", "size", "gate"})
# Anyone can move a tag; one that is right costs a few questions to the registry.
EACH_TIME: frozenset[Step] = LOOKS | {"tag"}
IN_REGISTRY: frozenset[Step] = frozenset({"pull", *results.CHANGING})
# Steps that leave an image in a folder, and those that want it there.
MAKES: frozenset[Step] = frozenset({"build", "pull"})
WANT: frozenset[Step] = frozenset({"smoke", "sif"})


class RunContext(msgspec.Struct, frozen=True, kw_only=True):
    """How jobs are done: where results lie, which registry is meant, and what verbs are told.

    `registry` is HOST/REPOSITORY, "" if nothing is to leave this machine. `arches` are those to be
    tested, none: all that a target has. `timeout_factor` and `through` are those of `smoke`; `key`
    and `keyless` those of `sign`; `jobs` are processes.
    """

    project: Project
    settings: CiSettings
    results: Path
    registry: str
    date: datetime.date
    arches: tuple[Arch, ...] = ()
    key: Path | None = None
    keyless: bool = False
    through: str = ""
    timeout_factor: float = 1.0
    jobs: int = 0
    offline: bool = False
    plain_http: tuple[str, ...] = ()
    reporter: Reporter = SILENT

    def fitted(self, job: CiJob) -> CiJob:
        """`job` with the steps that this way has: nothing is signed without a key, for example."""
        left_out: set[Step] = set()
        if not self.registry:
            left_out.add("push")
        if not self.key and not self.keyless:
            left_out.add("sign")
        steps = tuple(step for step in job.steps if step not in left_out)
        return msgspec.structs.replace(job, steps=steps, registry=self.registry)


def known(way: RunContext, found: TargetJobs) -> dict[str, CiJob]:
    """The jobs of a target by their ids, with the steps that they have on this way."""
    return {job.id: way.fitted(job) for job in found.all}


def run_job(
    way: RunContext, job: CiJob, others: Mapping[str, CiJob], *, until: Step | None = None
) -> JobResult:
    """Do the steps of `job` that are not done yet; `others` are the jobs of its target.

    With `until`, only those before that step. Whatever is not done yet has no result from now on:
    how it ended some other time is not how it ends this time.

    A step that fails is in the result, not raised. Interrupted if the user stops it: steps that
    ended are kept. InputError if the job needs a registry and none is named, FetchFailed if the
    registry does not answer.
    """
    if IN_REGISTRY & set(job.steps) and not way.registry:
        message = f"{job.id} has steps in a registry, and none is named"
        raise InputError(message, hint="--registry HOST/REPOSITORY")
    folder = str(way.results.resolve()).encode()
    with Store.open().exclusive(f"ci-{sha256(folder)[:16]}-{job.id}"):
        results.begin(way.results, job, repeat(way, job, alone=True))
        due = due_steps(way, job)
        results.forget(way.results, job, due)
        for step in job.steps:
            if step == until:
                break
            if step not in due:
                way.reporter.info(f"{job.id}: {step} has passed before")
                continue
            result = _step(way, job, step, others)
            results.write(way.results, result)
            if result.outcome == "failed":
                hint = result.hint or None
                way.reporter.error(f"{job.id}: {step} failed: {result.error}", hint=hint)
                break
    return results.read_job(way.results, job)


def repeat(way: RunContext, job: CiJob, *, alone: bool = False) -> str:
    """The command line that does `job` as it is done here, to be pasted in this folder.

    With `alone` nothing leaves the machine, where the job has no need of a registry.
    """
    words = ["imgbuild", "ci", "run", job.id]
    if way.project.matrix.resolve() != Path.cwd() / MATRIX:
        words += ["--matrix", str(way.project.matrix)]
    if way.results.resolve() != (way.project.work / "build/ci").resolve():
        words += ["--results", str(way.results.resolve())]
    if not way.registry or (alone and "gate" not in job.steps):
        words += ["--no-push"]
    else:
        words += ["--registry", way.registry]
        words += ["--sign-key", str(way.key)] if way.key else []
        words += ["--keyless"] if way.keyless else []
        words += [word for host in way.plain_http for word in ("--plain-http", host)]
    words += [word for arch in way.arches for word in ("--arch", arch)]
    words += [word for tier in way.settings.gate for word in ("--gate", tier)]
    words += ["--through", way.through] if way.through else []
    words += ["--timeout-factor", str(way.timeout_factor)] if way.timeout_factor != 1.0 else []
    return process.pasted([*words, *(["--offline"] if way.offline else [])])


def require(way: RunContext, job: CiJob, others: Mapping[str, CiJob]) -> None:
    """WorkFailed unless all that `job` needs has passed for the same digest."""
    lacking = results.open_needs(way.results, [others[name] for name in job.needs])
    if lacking:
        message = f"{job.id} has to wait: {'; '.join(str(one) for one in lacking)}"
        raise WorkFailed(message, hint=f"run it first: {repeat(way, lacking[0].job)}")


def over(way: RunContext, job: CiJob) -> bool:
    """Whether nothing of `job` is left: all has passed, and its registry has what it put there.

    A job that puts tags is never over: a tag may have been moved since.
    """
    return results.read_job(way.results, job).passed and due_steps(way, job) <= LOOKS


def due_steps(way: RunContext, job: CiJob) -> set[Step]:
    """The steps of `job` that are to be done; an image that was tested and is gone is not.

    What was tested of a digest holds; what was put into a registry is asked for there.
    """
    sealed = read_seal(way.project, job.target)
    due: set[Step] = set()
    for step in job.steps:
        found = results.read_step(way.results, job, step)
        past = step not in EACH_TIME and found is not None and found.outcome == "passed"
        if not past or not standing.stands(job, step, sealed, way.plain_http, way.reporter):
            due.add(step)
    if WANT & due and not layout.check(way.project.output(job.target), job.digest):
        due |= MAKES & set(job.steps)
    return due


def command(way: RunContext, job: CiJob, step: Step) -> tuple[str, ...]:
    """The verb that does `step`, with its options; () for one that is done in this process."""
    words: dict[Step, tuple[str, ...]] = {
        "check": ("lock", "--check", job.target),
        "audit": ("audit", job.target, "--arch", job.arch, "--keep"),
        "build": ("build", job.target, *(("--verify",) if job.id.endswith(f"-{AGAIN}") else ())),
        "smoke": ("smoke", job.target, "--arch", job.arch, *_smoke(way, job)),
        "push": ("push", job.target, way.registry, "--digest-only"),
        # By its digest: the tag names the layout, and what is made of it, after the target.
        "pull": (
            "pull",
            f"{way.registry}:{job.target}@{job.digest}",
            "--output",
            str(way.project.output(job.target)),
        ),
        "sign": ("sign", _reference(way, job), "--target", job.target, *_signer(way)),
        "sif": ("push", job.target, way.registry, "--sif", "--arch", job.arch),
        "tag": (
            # Dated first: where the target's own tag names the digest, all of it is done.
            "registry",
            "tag",
            _reference(way, job),
            f"{job.target}-{way.date:%Y%m%d}",
            job.target,
        ),
    }
    if step not in words:
        return ()
    shared: list[str] = []
    if step not in ("pull", "tag"):
        shared += ["--matrix", str(way.project.matrix)]
    if step in ("audit", "build", "push") and way.offline:
        shared += ["--offline"]
    if step in ("build", "push", "sif") and way.jobs:
        shared += ["--jobs", str(way.jobs)]
    if step in IN_REGISTRY:
        shared += [word for host in way.plain_http for word in ("--plain-http", host)]
    return (*words[step], *shared, "--json")


def _smoke(way: RunContext, job: CiJob) -> list[str]:
    words = [word for tier in job.tiers for word in ("--tier", tier)]
    words += ["--through", way.through] if way.through else []
    return (
        [*words, "--timeout-factor", str(way.timeout_factor)]
        if way.timeout_factor != 1.0
        else words
    )


def _signer(way: RunContext) -> list[str]:
    return ["--keyless"] if way.keyless else ["--sign-key", str(way.key)]


def _reference(way: RunContext, job: CiJob) -> str:
    return f"{way.registry}@{job.digest}"


def _step(way: RunContext, job: CiJob, step: Step, others: Mapping[str, CiJob]) -> StepResult:
    words = command(way, job, step)
    started, clock = datetime.datetime.now(datetime.UTC), time.monotonic()
    results.place(way.results, job.id, step, "log").parent.mkdir(parents=True, exist_ok=True)
    way.reporter.info(f"{job.id}: {step} …")
    if step == "pull" and layout.check(way.project.output(job.target), job.digest):
        status, said = 0, FirstError(error="")  # built here, or on a disk that machines share
    elif words:
        status, said = _verb(way, job, step, words)
        if step == "smoke" and status == 0:
            status, said = _here(_tested, way, job, others)
    else:
        status, said = _here({"gate": _gate, "size": _size}[step], way, job, others)
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
        seconds=round(time.monotonic() - clock, 3),
        command=words,
        registry=job.registry,
        tiers=job.tiers if step == "smoke" else (),
        repeat=repeat(way, job, alone=step not in IN_REGISTRY),
    )


def _verb(
    way: RunContext, job: CiJob, step: Step, words: tuple[str, ...]
) -> tuple[int, FirstError]:
    """Run a verb: its status, and what it said was wrong. Interrupted if it was stopped."""
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
        return 0, FirstError(error="")
    if status == Interrupted.exit_code:
        message = f"{job.id}: {step} was stopped"
        raise Interrupted(message, hint=f"to go on: {repeat(way, job)}")
    said = log.read_text(encoding="utf-8")
    return status, results.first_error(answer.read_bytes(), said, status)


def _here(
    work: Callable[[RunContext, CiJob, Mapping[str, CiJob]], None],
    way: RunContext,
    job: CiJob,
    others: Mapping[str, CiJob],
) -> tuple[int, FirstError]:
    try:
        work(way, job, others)
    except ImgbuildError as error:
        return error.exit_code, FirstError(error=error.message, hint=error.hint or "")
    return 0, FirstError(error="")


def _gate(way: RunContext, job: CiJob, others: Mapping[str, CiJob]) -> None:
    """WorkFailed unless all that this job needs has passed for the same digest.

    A SIF may also be made beside an image that is published: its results may be of another night.
    """
    try:
        require(way, job, others)
    except WorkFailed:
        if "sif" not in job.steps or not _tagged(way, job):
            raise


def _tagged(way: RunContext, job: CiJob) -> bool:
    client = Client(plain_http=way.plain_http, origin=True, reporter=way.reporter)
    place = parse_repository(way.registry)
    found = client.resolve(place.tagged(job.target))
    return found is not None and found.digest == job.digest


def _tested(way: RunContext, job: CiJob, _: Mapping[str, CiJob]) -> None:
    """WorkFailed unless every tier of `job` says that it ran in the sealed image."""
    sealed = read_seal(way.project, job.target)
    config = sealed.arch[job.arch].config if sealed and job.arch in sealed.arch else ""
    answer = results.place(way.results, job.id, "smoke", "answer.json")
    found = codec.read(answer, tuple[SmokeRun, ...], what="answer of imgbuild smoke")
    ran = {one.tier for one in found if one.config and one.config == config}
    lacking = [tier for tier in job.tiers if tier not in ran]
    if lacking:
        message = f"{answer}: tier {', '.join(lacking)} does not say that it ran in {config}"
        raise WorkFailed(message, hint="test the image that is sealed: without --through here")


def _size(way: RunContext, job: CiJob, _: Mapping[str, CiJob]) -> None:
    """WorkFailed if a pull of the image moves more than its budget, by its seal."""
    limit, sealed = way.settings.limit(job.target), read_seal(way.project, job.target)
    if limit is None or sealed is None or job.arch not in sealed.arch:
        return
    size = sealed.arch[job.arch].size / 1e6
    if size > limit:
        message = f"{job.target} on {job.arch} is {size:,.1f} MB to pull; its budget is {limit} MB"
        raise WorkFailed(message, hint=f"imgbuild show {job.target} --layers; budget: is in {FILE}")
