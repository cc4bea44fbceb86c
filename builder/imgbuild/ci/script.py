"""Writes CI jobs as a shell script that runs imgbuild and stores its state in files.

When the script runs again, it skips jobs of published images and steps that passed for the same
digest. The functions of the script are in `data/ci.sh`. All values are quoted for the shell.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from importlib import resources
from pathlib import Path

import msgspec

import imgbuild
from imgbuild import codec
from imgbuild.ci.choosing import read_digests
from imgbuild.ci.jobs import AGAIN_JOB, PUBLISH, CiJob, JobStep, TargetJobs
from imgbuild.ci.settings import FILE, CiSettings
from imgbuild.errors import InputError, WorkFailed
from imgbuild.matrix.project_paths import MATRIX, Project
from imgbuild.system import programs
from imgbuild.system.process import shell_command
from imgbuild.values import Arch, sha256

FUNCTIONS = "data/ci.sh"
ALWAYS_STATE = "-"  # the key of a step that always runs
MACHINES = {Arch.X86_64: "x86_64", Arch.ARM64: "aarch64"}  # as `uname -m` prints them
CHANGED_MESSAGE = "the digest in the lock differs from the digest in the script"


class ScriptOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a script that runs jobs.

    `registry` is HOST/REPOSITORY, or "" to push nothing. `through` and `timeout_factor` are options
    of `smoke`; `key` and `keyless` are options of `sign`. `slurm` contains the options of `smoke
    --on slurm` for jobs with GPUs, or is None to run these jobs on this machine. If `published` is
    set, jobs of published images are skipped. `selection` contains the options of `ci jobs` that
    select the jobs.
    """

    results: Path
    registry: str = ""
    through: str = ""
    timeout_factor: float = 1.0
    key: Path | None = None
    keyless: bool = False
    plain_http: tuple[str, ...] = ()
    slurm: tuple[str, ...] | None = None
    published: bool = True
    selection: tuple[str, ...] = ()


def write_script(
    project: Project,
    settings: CiSettings,
    targets: Sequence[TargetJobs],
    options: ScriptOptions,
    names: Collection[str] = (),
    *,
    drop: bool = False,
) -> str:
    """Return a script that runs the jobs of `targets`, or only the jobs in `names`.

    The script skips jobs for other machines, except jobs in `names`. With `drop`, the image of a
    target is removed from build/ when the target is finished, unless the image existed before the
    run. Raises InputError if a job in `names` needs a registry and none is specified.
    """
    for job in (job for target in targets for job in target.all_jobs):
        if job.id in names and _publishes(job) and not options.registry:
            message = f"{job.id} publishes an image, but no registry is specified"
            raise InputError(message, hint="--registry HOST/REPOSITORY")
    functions = resources.files("imgbuild").joinpath(FUNCTIONS).read_text(encoding="utf-8")
    writer = _ScriptWriter(project, settings, options, frozenset(names))
    return "\n".join([*writer.script_head(), functions, *writer.body(targets, drop=drop)])


class _ScriptWriter:
    def __init__(
        self,
        project: Project,
        settings: CiSettings,
        options: ScriptOptions,
        names: frozenset[str],
    ) -> None:
        self.project, self.settings, self.options, self.names = project, settings, options, names
        self.keys: dict[str, str] = {}  # of jobs by id
        plain = project.matrix.resolve() != (project.work / MATRIX).resolve() and project.writable
        self.matrix = ("--matrix", str(project.matrix.resolve())) if plain else ()

    def script_head(self) -> Iterator[str]:
        options = self.options
        published = ()
        if options.registry and options.published:
            published = (
                *("--skip-published", options.registry), *self._plain_http_options, *self.matrix,
                *options.selection,
            )  # fmt: skip
        message = CHANGED_MESSAGE, "imgbuild ci script"
        yield "#!/usr/bin/env bash"
        yield f"# Written by imgbuild {imgbuild.__version__} ci script. Run it again to continue."
        yield "# shellcheck disable=SC2329 # not every script calls every function"
        yield "set -u -o pipefail"
        yield f"cd -- {shell_command([str(self.project.outputs.resolve())])} || exit"
        yield f"imgbuild=({shell_command([*programs.python_command(), '-m', 'imgbuild'])})"
        yield f"results={shell_command([str(options.results.resolve())])}"
        yield f"matrix=({shell_command(self.matrix)})"
        yield f"published=({shell_command(published)})"
        yield f"changed={shell_command([_answer(*message)])}"
        yield 'mkdir -p -- "$results" || exit 2'
        yield ""

    def body(self, targets: Sequence[TargetJobs], *, drop: bool) -> Iterator[str]:
        """Yield the part of the script that runs the jobs.

        With Slurm, all images are built first, while submitted tests wait in the queue.
        """
        options = self.options
        if options.slurm is not None:
            for target in targets:
                yield from self._target(target, [*target.image, *target.again], submit=True)
        for target in targets:
            jobs = target.all_jobs
            if options.slurm is not None:
                jobs = (*target.gpu, *target.publish, *target.sif)
            yield from self._target(target, jobs)
            if drop:
                yield f"drop {shell_command([target.target])}"
        yield ""
        yield 'exit "$status"'

    def _target(
        self, target: TargetJobs, jobs: Iterable[CiJob], *, submit: bool = False
    ) -> Iterator[str]:
        chosen = [job for job in jobs if self._is_selected(job)]
        for job in target.all_jobs:
            self.keys[job.id] = _key(job.id, job.digest, *job.tiers, self.options.registry)
        if not chosen:
            return
        yield f"\ntarget {shell_command([target.target])}"
        for job in chosen:
            lines = list(self._job(job))
            if submit and "push" in job.steps:
                lines += [
                    f"submit {shell_command(self._command(gpu, 'smoke'))}"
                    for gpu in target.gpu if self._is_selected(gpu)
                ]  # fmt: skip
            yield " &&\n  ".join(lines)

    def _is_selected(self, job: CiJob) -> bool:
        if self.names:
            return job.id in self.names
        return bool(self.options.registry) or not _publishes(job)

    def _job(self, job: CiJob) -> Iterator[str]:
        on_slurm = job.gpus > 0 and self.options.slurm is not None
        anywhere = self.names or _publishes(job) or on_slurm
        machine = "any" if anywhere else MACHINES[job.arch]
        needed = [word for name in job.needs for word in (name, self.keys[name])]
        if "sif" in job.steps:
            publish = f"{job.target}@{PUBLISH}"
            needed = [publish, _key(publish, job.digest, self.options.registry)]
        yield f"begin {shell_command([job.id, job.digest, self.keys[job.id], machine, *needed])}"
        smoke = _key(job.id, job.digest, *job.tiers)
        for step in job.steps:
            name = shell_command([job.target])
            match step:
                case "gate":
                    continue
                case "check":
                    yield self._step(job, step)
                    yield f"same {name}"
                case "size":
                    yield from self._size(job)
                case "sign" if not (self.options.key or self.options.keyless):
                    continue
                case "push" if not self.options.registry:
                    continue
                case "pull":
                    tested = f"has smoke {smoke} || " if job.tiers else ""
                    yield f"{{ {tested}has_image {name} || {self._step(job, step)}; }}"
                case "build" if not self.options.registry and job.tiers:
                    yield f"{{ has smoke {smoke} || {self._step(job, step)}; }}"
                case _:
                    yield self._step(job, step, smoke if step == "smoke" else ALWAYS_STATE)
        yield "finish"

    def _step(self, job: CiJob, step: JobStep, key: str = ALWAYS_STATE) -> str:
        if step == "audit":
            key = _key(job.id, job.digest, step)
        words = shell_command(self._command(job, step))
        if step == "tag":
            # The target's tag last: once it has the digest, everything is published.
            name = shell_command([job.target])
            words += f' {name}-"$(date -u +%Y%m%d)" {name}'
        return f"step {step} {key} {words}"

    def _command(self, job: CiJob, step: JobStep) -> tuple[str, ...]:
        options, target, matrix, plain = (
            self.options,
            job.target,
            self.matrix,
            self._plain_http_options,
        )
        image = f"{options.registry}@{job.digest}"
        verify = ("--verify",) if job.id.endswith(f"-{AGAIN_JOB}") else ()
        build = ("build", target, *verify, *matrix)
        signer = ("--sign-key", str(options.key.resolve())) if options.key else ("--keyless",)
        words: dict[JobStep, tuple[str, ...]] = {
            "check": ("lock", "--check", target, *matrix),
            "audit": ("audit", target, "--arch", job.arch, "--keep", *matrix),
            "cves": ("cves", target, "--arch", job.arch, *self._cves_options(), *matrix),
            "build": build,
            "smoke": ("smoke", target, "--arch", job.arch, *self._smoke_options(job), *matrix),
            "push": ("push", target, options.registry, "--digest-only", *plain, *matrix),
            # By digest: the tag appears in the layout on disk and in files created from it.
            "pull": (
                *("pull", f"{options.registry}:{target}@{job.digest}"),
                *("--output", f"build/{target}", *plain),
            ),
            "sign": ("sign", image, "--target", target, *signer, *plain, *matrix),
            "tag": ("registry", "tag", *plain, image),
            "sif": (
                *("push", target, options.registry, "--sif", "--arch", job.arch),
                *(*plain, *matrix),
            ),
        }
        return build if step == "pull" and not options.registry else words[step]

    def _smoke_options(self, job: CiJob) -> Iterator[str]:
        options = self.options
        yield from _repeated_options("--tier", job.tiers)
        yield from ("--through", options.through) if options.through else ()
        if options.timeout_factor != 1.0:
            yield from ("--timeout-factor", str(options.timeout_factor))
        if job.gpus and options.slurm is not None:
            yield from ("--on", "slurm", f"--sbatch=--gpus-per-node={job.gpus}", *options.slurm)

    def _cves_options(self) -> Iterator[str]:
        gate = self.settings.cves
        if gate is None:
            return
        yield from ("--severity", gate.severity)
        yield from ("--ignore-unfixed",) if gate.ignore_unfixed else ()

    @property
    def _plain_http_options(self) -> tuple[str, ...]:
        return tuple(_repeated_options("--plain-http", self.options.plain_http))

    def _size(self, job: CiJob) -> Iterator[str]:
        """Yield a step that fails if the download size of the locked image exceeds the budget."""
        limit, target_digests = (
            self.settings.limit(job.target),
            read_digests(self.project, job.target),
        )
        if limit is None or target_digests is None or job.arch not in target_digests.arch:
            return
        size = target_digests.arch[job.arch].size / 1e6
        if size > limit:
            message = (
                f"{job.target} on {job.arch} has a download size of {size:,.1f} MB, more than the"
                f" budget of {limit} MB"
            )
            hint = (
                f"to list sizes, run imgbuild show {job.target} --layers; `budget:` is set in"
                f" {FILE}"
            )
            words = ["size", str(WorkFailed.exit_code), _answer(message, hint), message]
            yield f"refuse {shell_command(words)}"


def _publishes(job: CiJob) -> bool:
    return bool({"tag", "sif"} & set(job.steps))


def _answer(message: str, hint: str) -> str:
    return codec.encode_compact({"message": message, "hint": hint}).decode()


def _key(*parts: str) -> str:
    return sha256("\n".join((imgbuild.__version__, *parts)).encode())[:16]


def _repeated_options(flag: str, values: Iterable[object]) -> Iterator[str]:
    for value in values:
        yield from (flag, str(value))
