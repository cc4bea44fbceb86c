"""Defines options that the commands of `imgbuild ci` share, and selects jobs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from imgbuild.ci import choosing, published, settings
from imgbuild.ci.choosing import JobPlan, JobQuery
from imgbuild.ci.settings import CiSettings
from imgbuild.cli._options import Tier
from imgbuild.cli._verb import option
from imgbuild.matrix.project_paths import Project
from imgbuild.pipeline.session import Session
from imgbuild.registry.client import RegistryClient
from imgbuild.registry.image_reference import parse_repository
from imgbuild.system.console import console

Gate = Annotated[
    list[Tier] | None,
    option(
        "--gate",
        "Require this tier of smoke tests to pass before an image is tagged. Can be repeated. "
        "Default: the tiers in ci.yaml.",
        metavar="TIER",
    ),
]
NoGpu = Annotated[
    bool, option("--no-gpu", "Skip tiers that need a GPU, for example for a change under review.")
]
Results = Annotated[
    Path | None,
    option(
        "--results",
        "The folder for results. Jobs on several machines must use the same folder, or copies of "
        "it. Default: build/ci next to the matrix.",
        metavar="FOLDER",
        often=True,
    ),
]


def choose_ci_jobs(
    session: Session,
    patterns: list[str],
    query: JobQuery,
    settings: CiSettings,
    registry: str | None,
    plain_http: Sequence[str],
    *,
    everything: bool = False,
) -> JobPlan:
    """Return the jobs of selected targets, except for targets already published in `registry`.

    A retired target has jobs only if it is selected by name.
    """
    selected = session.select_targets(patterns, everything=everything, arches=[])
    if everything:
        retired = [item.name for item in selected if item.target.retired]
        selected = [item for item in selected if item.name not in retired]
        if retired:
            console.info(
                f"retired targets, not selected unless specified by name: {', '.join(retired)}"
            )
    there = {}
    if registry is not None:
        client = RegistryClient(plain_http=plain_http, origin=True, reporter=console)
        there = published.read_published_state(
            client, parse_repository(registry), selected, sifs=settings.sif
        )
    plan = choosing.choose_jobs(session.project, selected, settings, query, there, console)
    for skipped in plan.passed:
        console.info(f"{skipped.target}: {skipped.outcome}, {skipped.reason}")
    return plan


def ci_settings(session: Session, gate: Sequence[Tier] | None, *, gpu: bool) -> CiSettings:
    return settings.read_ci_settings(session.project).with_required_tiers(
        tuple(tier.value for tier in gate or ()), gpu=gpu
    )


def results_folder(project: Project, results: Path | None) -> Path:
    """Return the folder for results, by default `build/ci` in the project."""
    return results or project.output_path("build/ci")
