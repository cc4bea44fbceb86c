"""`imgbuild ci nightly`: build, test and publish targets on your own machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from imgbuild.cli import _ci_options
from imgbuild.cli._allocation import ON, AllocationOptions
from imgbuild.cli._ci_options import Strict, WayOptions
from imgbuild.cli._options import ALL, KEEP, TARGET, Record, Where
from imgbuild.cli._output import aligned, answer
from imgbuild.cli._targets import Names
from imgbuild.cli._verb import SELECT, option, verb
from imgbuild.system.console import console


@verb
def nightly(
    how: WayOptions,
    request: AllocationOptions,
    names: Names = None,
    target: Annotated[list[str] | None, TARGET()] = None,
    everything: Annotated[bool, ALL()] = False,
    on: Annotated[
        Where,
        ON(
            "local: this machine. slurm: jobs with a GPU on nodes of Slurm, which must have the"
            " folder of the matrix and imgbuild at the same paths; others on this machine."
        ),
    ] = Where.LOCAL,
    all_published: Annotated[
        bool,
        option(
            "--all-published", "Also targets whose tag has the locked digest already.", panel=SELECT
        ),
    ] = False,
    keep: Annotated[
        bool | None,
        KEEP("Here: images in build/. Default: keep for one target, remove for several."),
    ] = None,
    record: Record = False,
    strict: Strict = False,
) -> None:
    """Build, test and publish targets: all CI jobs in order, without a CI.

    A target whose tag has the locked digest is skipped. The others are checked, audited, built,
    tested, pushed by digest, tested on GPUs, and then tagged. If one fails, the others continue. An
    interrupted run continues where it stopped: steps that have passed for a digest are not
    repeated. Exit status 1 if a target failed or is not finished.

    Examples:

        imgbuild ci nightly --all --registry registry.example/rl

        imgbuild ci nightly 'cu130-*' --registry registry.example/rl --on slurm --partition gpu
    """
    from imgbuild import codec
    from imgbuild.ci import nightly as nights
    from imgbuild.ci import report as reports
    from imgbuild.ci.choosing import JobQuery

    way = _ci_options.way(how, no_push=False)
    if record:
        way.project.require_writable("imgbuild ci nightly --record")
    chosen = _ci_options.chosen(
        [*(names or []), *(target or [])], how.matrix, how.gate or [],
        JobQuery(arches=way.arches, labels=False),
        None if all_published else way.registry, how.plain_http or [], everything=everything,
    )  # fmt: skip
    for one in chosen.passed:
        console.info(f"{one.target}: {one.outcome}, {one.reason}")
    machines = nights.Machines(
        slurm=on is Where.SLURM,
        options=_sbatch(request),
        drop=len(chosen.targets) > 1 if keep is None else not keep,
    )
    codec.write(way.results / _ci_options.JOBS, chosen)  # for `ci report`
    found = nights.night(way, chosen, machines)
    if record:
        _ci_options.record(how.matrix, how.results, chosen)
    answer(found, aligned([reports.HEAD, *reports.rows(found)]))
    if found.wrong(strict=strict):
        raise typer.Exit(1)


def _sbatch(request: AllocationOptions) -> tuple[str, ...]:
    """The options for sbatch."""
    asked: Sequence[tuple[str, str]] = (
        ("partition", request.partition), ("account", request.account), ("time", request.time),
    )  # fmt: skip
    given = (f"--{name}={value}" for name, value in asked if value)
    return (*given, *(request.sbatch or ()))
