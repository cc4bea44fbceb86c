"""Options of how jobs are done, which `ci` and `ci nightly` share."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from imgbuild.cli import _smoke_import
from imgbuild.cli._options import (
    REGISTRY_PLACE,
    THROUGH,
    Arches,
    Date,
    Jobs,
    Keyless,
    Offline,
    PlainHttp,
    SignKey,
    Through,
    Tier,
    TimeoutFactor,
)
from imgbuild.cli._output import aligned, answer
from imgbuild.cli._targets import MatrixFile
from imgbuild.cli._verb import REGISTRY, Group, option
from imgbuild.errors import InputError
from imgbuild.system import files
from imgbuild.system.console import console

if TYPE_CHECKING:
    from imgbuild.ci.choosing import JobPlan, JobQuery
    from imgbuild.ci.context import RunContext
    from imgbuild.ci.jobs import TargetJobs
    from imgbuild.ci.report import Overview
    from imgbuild.ci.settings import CiSettings
    from imgbuild.pipeline.targets import Session
    from imgbuild.project import Project

JOBS = "jobs.json"  # in the folder of results: the jobs of the last nightly run
Gate = Annotated[
    list[Tier] | None,
    option(
        "--gate",
        "A tier of smoke tests that an image must pass before it is tagged; repeatable. Default:"
        " as in ci.yaml.",
        metavar="TIER",
    ),
]
NoGpu = Annotated[
    bool, option("--no-gpu", "Leave out tiers that need a GPU: for a change under review.")
]
NoPush = Annotated[
    bool,
    option(
        "--no-push",
        "Leave out everything from the push on: for a change under review.",
        panel=REGISTRY,
        often=True,
    ),
]
Results = Annotated[
    Path | None,
    option(
        "--results",
        "Where results are. Default: build/ci beside the matrix. Jobs on several machines share"
        " this folder, or a copy of it.",
        metavar="FOLDER",
        often=True,
    ),
]
Strict = Annotated[
    bool,
    option(
        "--strict",
        "Also fail if no runner in ci.yaml can take a job (default: report only).",
    ),
]
Published = Annotated[
    str | None,
    option(
        "--skip-published",
        "Skip targets whose tag in this repository has the locked digest.",
        metavar="HOST/REPOSITORY",
        panel=REGISTRY,
        often=True,
    ),
]


class ExecutionOptions(Group, frozen=True, kw_only=True):
    """How jobs are done."""

    registry: Annotated[str | None, REGISTRY_PLACE("Default: `registry` of the matrix.")] = None
    results: Results = None
    arch: Arches = None
    gate: Gate = None
    date: Date = None
    sign_key: SignKey = None
    keyless: Keyless = False
    through: Annotated[
        Through | None, THROUGH("As in `imgbuild smoke`, except `here`: jobs test images.")
    ] = None
    timeout_factor: TimeoutFactor = 1.0
    plain_http: PlainHttp = None
    jobs: Jobs = 0
    offline: Offline = False
    matrix: MatrixFile = None


def way(asked: ExecutionOptions, *, no_push: bool, gpu: bool = True) -> RunContext:
    """How jobs are to be run; InputError if options cannot be combined."""
    from imgbuild.ci.context import RunContext
    from imgbuild.registry.reference import parse_repository

    session = _session(asked.matrix)
    named = asked.registry or session.matrix.registry or ""
    if no_push and (asked.registry or asked.sign_key or asked.keyless):
        message = "--no-push cannot be combined with a registry or a signature"
        raise InputError(message, hint="leave out --registry, --sign-key and --keyless")
    if not no_push and not named:
        message = "no repository is named to push images to"
        raise InputError(message, hint="--registry HOST/REPOSITORY, or registry: in the matrix")
    if asked.through is Through.HERE:
        message = "--through here: jobs test images, not the active environment"
        raise InputError(message, hint="leave it out, or name what runs the image")
    if asked.sign_key is not None and asked.keyless:
        message = "--sign-key and --keyless cannot be combined"
        raise InputError(message, hint="leave one of them out")
    results = folder(session.project, asked.results)
    files.require_writable([results], hint="choose another folder with --results")
    return RunContext(
        project=session.project,
        settings=_settings(session, asked.gate or [], gpu=gpu),
        results=results,
        registry="" if no_push else str(parse_repository(named)),
        date=asked.date or datetime.datetime.now(datetime.UTC).date(),
        arches=tuple(asked.arch or ()),
        key=asked.sign_key.absolute() if asked.sign_key else None,
        keyless=asked.keyless,
        through=asked.through.value if asked.through else "",
        timeout_factor=asked.timeout_factor,
        jobs=asked.jobs,
        offline=asked.offline,
        plain_http=tuple(asked.plain_http or ()),
        reporter=console,
    )


def chosen(
    wanted: list[str],
    matrix: Path | None,
    gate: Sequence[Tier],
    asked: JobQuery,
    registry: str | None,
    plain_http: Sequence[str],
    *,
    everything: bool,
    gpu: bool = True,
) -> JobPlan:
    """The wanted targets with their jobs, without those that `registry` has published.

    A retired target has jobs only if it is named.
    """
    from imgbuild.ci import choosing, published
    from imgbuild.registry.client import Client
    from imgbuild.registry.reference import parse_repository

    session = _session(matrix)
    selected = session.select(wanted, everything=everything, arches=[])
    if everything:
        retired = [item.name for item in selected if item.target.retired]
        selected = [item for item in selected if item.name not in retired]
        if retired:
            console.info(f"retired, and left out unless named: {', '.join(retired)}")
    there = {}
    settings = _settings(session, gate, gpu=gpu)
    if registry is not None:
        client = Client(plain_http=plain_http, origin=True, reporter=console)
        there = published.read(client, parse_repository(registry), selected, sifs=settings.sif)
    found = choosing.choose(session.project, selected, settings, asked, there, console)
    for one in found.passed:
        console.info(f"{one.target}: {one.outcome}, {one.reason}")
    return found


def jobs_of(way: RunContext, matrix: Path | None, job: str) -> TargetJobs:
    """All jobs of the target of `job`, wherever they may run."""
    from imgbuild.ci import choosing, jobs

    target, _, place = job.partition("@")
    [item] = _session(matrix).select([target], arches=[])
    arches = choosing.JobQuery(arches=way.arches).tested(item)
    sealed = choosing.read_seal(way.project, item.name)
    # The image of a SIF is published and not tested again: no machine with a GPU is needed.
    settings = way.settings.gated(("static",)) if place.endswith(f"-{jobs.SIF}") else way.settings
    return jobs.jobs(item.name, arches, sealed, settings, again=True)


def folder(project: Project, results: Path | None) -> Path:
    """The folder of results."""
    return results or project.work / "build" / "ci"


def finish(
    found: Overview, plan: JobPlan, results: Path, project: Project, *, record: bool, strict: bool
) -> None:
    """Print the outcome of each target of `plan`; exit status 1 if one needs attention.

    `record`: the smoke tests in `results` are added to the test records.
    """
    from imgbuild.cache.store import Store
    from imgbuild.ci import recording, report

    if record:
        recorded = recording.record(project, results, plan.targets, Store.open(), console)
        _smoke_import.report(recorded)
    answer(found, aligned([report.HEAD, *report.rows(found)]))
    if found.wrong(strict=strict):
        raise typer.Exit(1)


def _settings(session: Session, gate: Sequence[Tier], *, gpu: bool) -> CiSettings:
    from imgbuild.ci import settings

    return settings.read(session.project).gated(tuple(tier.value for tier in gate), gpu=gpu)


def _session(matrix: Path | None) -> Session:
    from imgbuild.pipeline import targets

    return targets.open_session(matrix, targets.Options())
