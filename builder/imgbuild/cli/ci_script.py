"""Implements `imgbuild ci script`, which writes CI jobs as a shell script."""

# A separate module: a verb.
from __future__ import annotations

from typing import Annotated

import typer

from imgbuild.ci import choosing, jobs
from imgbuild.ci.choosing import JobQuery
from imgbuild.ci.jobs import TargetJobs
from imgbuild.ci.script import ScriptOptions, write_script
from imgbuild.ci.settings import CiSettings
from imgbuild.cli import _allocation, _ci_options
from imgbuild.cli._allocation import ON_OPTION, AllocationOptions
from imgbuild.cli._ci_options import Gate, NoGpu, Results
from imgbuild.cli._options import (
    KEEP,
    REGISTRY_PLACE,
    THROUGH,
    ExecutionPlace,
    Keyless,
    PlainHttp,
    SignKey,
    ThroughName,
    TimeoutFactor,
)
from imgbuild.cli._output import write_stdout
from imgbuild.cli._targets import FilterOptions
from imgbuild.cli._verb import REGISTRY, TARGETS_PANEL, OptionGroup, create_verb, option
from imgbuild.errors import InputError
from imgbuild.matrix.project_paths import Project
from imgbuild.pipeline.session import Session, open_session
from imgbuild.registry.image_reference import parse_repository


class ScriptGroup(OptionGroup, frozen=True, kw_only=True):
    """Options for the jobs in a script."""

    registry: Annotated[str | None, REGISTRY_PLACE("Default: `registry` in the matrix.")] = None
    no_push: Annotated[
        bool,
        option(
            "--no-push",
            "Do not push images, for example for a change under review.",
            panel=REGISTRY,
            often=True,
        ),
    ] = False
    all_published: Annotated[
        bool,
        option(
            "--all-published",
            "Include targets whose tag already has the locked digest.",
            panel=TARGETS_PANEL,
        ),
    ] = False
    results: Results = None
    gate: Gate = None
    no_gpu: NoGpu = False
    on: Annotated[
        ExecutionPlace,
        ON_OPTION(
            "With slurm, tests that need GPUs run as Slurm arrays, and other steps on this "
            "machine. The matrix folder, the cache and imgbuild must have the same paths "
            "on all nodes."
        ),
    ] = "local"
    through: Annotated[
        ThroughName | None,
        THROUGH("Choices: the same as for `imgbuild smoke --through`, except `here`."),
    ] = None
    timeout_factor: TimeoutFactor = 1.0
    sign_key: SignKey = None
    keyless: Keyless = False
    plain_http: PlainHttp = None
    keep: Annotated[
        bool | None,
        KEEP("Applies to images in build/. Default: --keep for one target, --drop for several."),
    ] = None


TargetsOrJobs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TARGET|JOB...",
        help="Targets, by name or shell pattern, or jobs, as listed by `imgbuild ci jobs`.",
        show_default=False,
    ),
]


@create_verb
def script(
    selection: FilterOptions,
    how: ScriptGroup,
    request: AllocationOptions,
    names: TargetsOrJobs = None,
) -> None:
    """Write CI jobs as a shell script.

    The script runs imgbuild commands that check, audit, build and test each image, push it by
    digest, test it on GPUs, and tag it once all steps have passed for this digest. Images that are
    already published are skipped. If a target fails, the script continues with the others and exits
    with the status of the first step that failed. Run the script again to continue: audits and
    tests that passed for the same digest are not repeated. To run the jobs of another architecture,
    run the script on a machine of that architecture, with the same results folder. The script
    requires bash and flock.

    Examples:

        imgbuild ci script --all --registry registry.example/rl > night.sh && bash night.sh

        imgbuild ci script cu124-vllm@x86_64 --no-push > job.sh && bash job.sh

        imgbuild ci script 'cu130-*' --on slurm --partition gpu > night.sh
    """
    chosen = [*(names or []), *selection.named_targets]
    jobs = {name for name in chosen if "@" in name}
    if jobs and (len(jobs) < len(chosen) or selection.everything):
        message = "jobs and targets cannot be combined"
        raise InputError(message, hint="specify only jobs (TARGET@…), or only targets")
    session = open_session(selection.matrix)
    settings = _ci_options.ci_settings(session, how.gate, gpu=not how.no_gpu)
    options = _script_options(session.project, session.matrix.registry, selection, how, request)
    query = choosing.JobQuery(arches=tuple(selection.arches), labels=False)
    if jobs:
        names_of_targets = sorted({job.partition("@")[0] for job in jobs})
        targets = [_named_jobs(session, name, query, settings, jobs) for name in names_of_targets]
    else:
        registry = None if how.all_published or not options.registry else options.registry
        plan = _ci_options.choose_ci_jobs(
            session, chosen, query, settings, registry, options.plain_http,
            everything=selection.everything,
        )  # fmt: skip
        targets = list(plan.targets)
    drop = len(targets) > 1 if how.keep is None else not how.keep
    write_stdout(write_script(session.project, settings, targets, options, jobs, drop=drop))


def _named_jobs(
    session: Session, target: str, query: JobQuery, settings: CiSettings, names: set[str]
) -> TargetJobs:
    [item] = session.select_targets([target], arches=[])
    digests = choosing.read_digests(session.project, target)
    selected = [name for name in names if name.startswith(f"{target}@")]
    if all(name.endswith(f"-{jobs.SIF}") for name in selected):
        # The image is published and not tested again: no machine with a GPU is needed.
        settings = settings.with_required_tiers(("static",))
    target_jobs = jobs.create_jobs(target, query.tested(item), digests, settings, again=True)
    existing = [job.id for job in target_jobs.all_jobs]
    for name in selected:
        if name not in existing:
            message = f"{target} has no job {name}"
            raise InputError(message, hint=f"specify one of: {', '.join(existing)}")
    return target_jobs


def _script_options(
    project: Project,
    registry: str | None,
    selection: FilterOptions,
    how: ScriptGroup,
    request: AllocationOptions,
) -> ScriptOptions:
    place = how.registry or registry or ""
    if how.no_push and (how.registry or how.sign_key or how.keyless):
        message = "--no-push cannot be combined with a registry or a signature"
        raise InputError(message, hint="omit --registry, --sign-key and --keyless")
    if not how.no_push and not place:
        message = "no repository is specified to push images to"
        raise InputError(
            message, hint="pass --registry HOST/REPOSITORY, or set `registry:` in the matrix"
        )
    if how.through == "here":
        message = (
            "--through here cannot be used, because jobs test images and not the active environment"
        )
        raise InputError(message, hint="omit --through, or specify an engine")
    if how.sign_key is not None and how.keyless:
        message = "--sign-key and --keyless cannot be combined"
        raise InputError(message, hint="omit one of these options")
    slurm = how.on == "slurm"
    if not slurm and request != AllocationOptions():
        message = "Slurm options require --on slurm"
        raise InputError(message, hint="add --on slurm, or omit the Slurm options")
    selected = [*(f"--arch={arch}" for arch in selection.arches)]
    selected += [f"--gate={tier}" for tier in how.gate or ()] + ["--no-gpu"] * how.no_gpu
    return ScriptOptions(
        results=_ci_options.results_folder(project, how.results),
        registry="" if how.no_push else str(parse_repository(place)),
        through=how.through or "",
        timeout_factor=how.timeout_factor,
        key=how.sign_key,
        keyless=how.keyless,
        plain_http=tuple(how.plain_http or ()),
        slurm=_submission(request) if slurm else None,
        published=not how.all_published,
        selection=tuple(selected),
    )


def _submission(request: AllocationOptions) -> tuple[str, ...]:
    _allocation.requested_allocation(request)
    given = {"partition": request.partition, "account": request.account, "time": request.time}
    words = [f"--{name}={value}" for name, value in given.items() if value]
    return (*words, *(f"--sbatch={word}" for word in request.sbatch or ()))
