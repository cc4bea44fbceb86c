"""Options of how jobs are done, which `ci` and `nightly` share, and what they come to."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from imgbuild.cli import _options, _smoke_import
from imgbuild.cli import push as pushes
from imgbuild.cli import smoke as smokes
from imgbuild.cli._smoke_image import Place
from imgbuild.cli.smoke import Tier
from imgbuild.errors import InputError
from imgbuild.system.console import console
from imgbuild.values import Arch

if TYPE_CHECKING:
    from imgbuild.ci.choosing import Asked, Chosen
    from imgbuild.ci.jobs import Jobs
    from imgbuild.ci.running import Way
    from imgbuild.ci.settings import Settings
    from imgbuild.pipeline.targets import Session

JOBS = "jobs.json"  # in the folder of results: what the last night was to do
Date = pushes.Date
TimeoutFactor = smokes.TimeoutFactor
Gate = Annotated[
    list[Tier] | None,
    typer.Option(
        "--gate",
        metavar="TIER",
        help="A tier of smoke tests that an image must pass before a tag names it; repeatable. By"
        " default what ci.yaml says.",
        rich_help_panel=_options.WORK,
        show_default=False,
    ),
]
NoGpu = Annotated[
    bool,
    typer.Option(
        "--no-gpu",
        help="Leave out the tiers that need a GPU: for a change that is under review.",
        rich_help_panel=_options.WORK,
    ),
]
Registry = Annotated[
    str | None,
    typer.Option(
        "--registry",
        metavar="HOST/REPOSITORY",
        help="Where images go; by default the `registry` of the matrix.",
        rich_help_panel=_options.REGISTRY,
        show_default=False,
    ),
]
NoPush = Annotated[
    bool,
    typer.Option(
        "--no-push",
        help="Nothing leaves this machine: the steps before a push, for a change that is under"
        " review.",
        rich_help_panel=_options.REGISTRY,
    ),
]
Results = Annotated[
    Path | None,
    typer.Option(
        "--results",
        metavar="FOLDER",
        help="Where results lie; by default build/ci beside the matrix. Jobs on several machines"
        " share this folder, or a copy of it.",
        rich_help_panel=_options.WORK,
        show_default=False,
    ),
]
Key = Annotated[
    Path | None,
    typer.Option(
        "--key",
        metavar="FILE",
        help="Sign what is published with this private key (see `imgbuild sign`).",
        rich_help_panel=_options.REGISTRY,
        show_default=False,
    ),
]
Keyless = Annotated[
    bool,
    typer.Option(
        "--keyless",
        help="Sign with the identity that the CI gives its jobs, by the cosign program.",
        rich_help_panel=_options.REGISTRY,
    ),
]
Through = Annotated[
    Place | None,
    typer.Option(
        "--through",
        help="What smoke tests run in (see `imgbuild smoke`), but for `here`, which is no image.",
        rich_help_panel=_options.WORK,
        show_default=False,
    ),
]

Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Exit status 1 also if there is no machine for a job of a target: by default that is"
        " said and no failure, as nothing but another ci.yaml mends it.",
        rich_help_panel=_options.WORK,
    ),
]
Record = Annotated[
    bool,
    typer.Option(
        "--record",
        help="Put each tier of smoke tests that ran into images/TARGET/smoke.json, passed or failed"
        " (see `imgbuild smoke --import`).",
        rich_help_panel=_options.TALK,
    ),
]


def way(
    matrix: Path | None,
    registry: str | None,
    results: Path | None,
    gate: Sequence[Tier],
    date: datetime.date,
    plain_http: Sequence[str],
    *,
    arches: Sequence[Arch],
    no_push: bool,
    key: Path | None,
    keyless: bool,
    through: Place | None,
    patience: float,
    jobs: int,
    offline: bool,
    gpu: bool = True,
) -> Way:
    """How jobs are to be done; InputError if two options contradict each other."""
    from imgbuild.ci import running
    from imgbuild.registry.reference import parse_repository

    session = _session(matrix)
    named = registry or session.matrix.registry or ""
    if no_push and (registry or key or keyless):
        message = "--no-push: nothing goes to a registry, and nothing is signed"
        raise InputError(message, hint="leave out --registry, --key and --keyless")
    if not no_push and not named:
        message = "no registry is named, and images are pushed to one"
        raise InputError(message, hint="--registry HOST/REPOSITORY, or registry: in the matrix")
    if through is Place.HERE:
        message = "--through here: the active environment is no image, and proves none"
        raise InputError(message, hint="leave it out, or say what an image is to run in")
    if key is not None and keyless:
        message = "--key and --keyless are two ways to sign"
        raise InputError(message, hint="leave one of them out")
    return running.Way(
        project=session.project,
        settings=_settings(session, gate, gpu=gpu),
        results=folder(matrix, results),
        registry="" if no_push else str(parse_repository(named)),
        date=date,
        arches=tuple(arches),
        key=key.absolute() if key else None,
        keyless=keyless,
        through=through.value if through else "",
        patience=patience,
        jobs=jobs,
        offline=offline,
        plain_http=tuple(plain_http),
        reporter=console,
    )


def chosen(
    wanted: list[str],
    matrix: Path | None,
    gate: Sequence[Tier],
    asked: Asked,
    registry: str | None,
    plain_http: Sequence[str],
    *,
    everything: bool,
    gpu: bool = True,
) -> Chosen:
    """The targets that are wanted, and the jobs that they have; `registry` has published ones."""
    from imgbuild.ci import choosing
    from imgbuild.registry.client import Client
    from imgbuild.registry.reference import parse_repository

    session = _session(matrix)
    selected = session.select(wanted, everything=everything, arches=[])
    there = {}
    told = _settings(session, gate, gpu=gpu)
    if registry is not None:
        client = Client(plain_http=plain_http, origin=True, reporter=console)
        place = parse_repository(registry)
        there = choosing.published(client, place, selected, sifs=told.sif)
    return choosing.choose(session.project, selected, told, asked, there, console)


def jobs_of(way: Way, matrix: Path | None, job: str) -> Jobs:
    """All jobs of the target of `job`, wherever they may run."""
    from imgbuild.ci import choosing

    session = _session(matrix)
    target, _, place = job.partition("@")
    [item] = session.select([target], arches=[])
    asked = choosing.Asked(arches=way.arches, labels=False, again=True)
    sealed = choosing.read_seal(session.project, item.name)
    told = choosing.bare(way.settings) if choosing.is_sif(place) else way.settings
    return choosing.of_target(item, sealed, told, asked)


def folder(matrix: Path | None, results: Path | None) -> Path:
    """Where results lie."""
    return results or _session(matrix).project.root / "build" / "ci"


def record(matrix: Path | None, results: Path | None, found: Chosen) -> None:
    """Put what the smoke tests of the jobs of `found` said into the ledgers, and say so."""
    from imgbuild.cache.store import Store
    from imgbuild.ci import recording

    project = _session(matrix).project
    _smoke_import.tell(
        recording.record(project, folder(matrix, results), found.targets, Store.open(), console)
    )


def _settings(session: Session, gate: Sequence[Tier], *, gpu: bool) -> Settings:
    from imgbuild.ci import settings

    return settings.read(session.project).gated(tuple(tier.value for tier in gate), gpu=gpu)


def _session(matrix: Path | None) -> Session:
    from imgbuild.pipeline import targets

    return targets.open_session(matrix, targets.Options())
