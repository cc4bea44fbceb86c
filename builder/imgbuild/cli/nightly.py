"""`imgbuild nightly`: the matrix built, proven and published on machines of one's own."""

from __future__ import annotations

import datetime
import enum
from collections.abc import Sequence
from typing import Annotated

import typer

from imgbuild.cli import allocation, options, ways
from imgbuild.system.console import console


class Where(enum.StrEnum):
    """Where jobs run."""

    LOCAL = "local"
    SLURM = "slurm"


On = Annotated[
    Where,
    typer.Option(
        "--on",
        help="local: all on this machine. slurm: what needs a GPU on nodes of Slurm's, which see"
        " the folder of the matrix and imgbuild at the same paths; the rest on this machine.",
        rich_help_panel=options.WORK,
    ),
]
Again = Annotated[
    bool,
    typer.Option(
        "--published",
        help="Also targets whose tag names the sealed digest already.",
        rich_help_panel=options.SELECT,
    ),
]
Keep = Annotated[
    bool | None,
    typer.Option(
        "--keep/--drop",
        help="Keep the images in build/, or remove each that this run has made when its target is"
        " through. Default: keep for one target, drop for several.",
        rich_help_panel=options.WORK,
        show_default=False,
    ),
]


def nightly(
    names: options.Names = None,
    target: options.Targets = None,
    everything: options.Everything = False,
    on: On = Where.LOCAL,
    registry: ways.Registry = None,
    published: Again = False,
    results: ways.Results = None,
    arch: options.Arches = None,
    gate: ways.Gate = None,
    date: ways.Date = None,
    key: ways.Key = None,
    keyless: ways.Keyless = False,
    keep: Keep = None,
    record: ways.Record = False,
    strict: ways.Strict = False,
    through: ways.Through = None,
    patience: ways.Patience = 1.0,
    partition: allocation.Partition = "",
    account: allocation.Account = "",
    time: allocation.Time = "",
    sbatch: allocation.More = None,
    plain_http: options.PlainHttp = None,
    jobs: options.Jobs = 0,
    offline: options.Offline = False,
    matrix: options.MatrixFile = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Build, prove and publish targets: the jobs of `imgbuild ci`, in order, without a CI.

    A target whose tag names the sealed digest is left alone. The others are checked, audited,
    built, tested, pushed by digest, tested on GPUs, and only then tagged. One that fails does not
    stop the others. An interrupted run goes on where it stopped: what has passed for a digest is
    not done again. Exit status 1 if a target failed or is not finished.

    Examples:

        imgbuild nightly --all --registry registry.example/rl

        imgbuild nightly 'cu130-*' --registry registry.example/rl --on slurm --partition gpu
    """
    from imgbuild import codec
    from imgbuild.ci import nightly as nights
    from imgbuild.ci import report as reports
    from imgbuild.ci.choosing import Asked

    options.configure(json=json, quiet=quiet, verbose=verbose)
    way = ways.way(
        matrix, registry, results, gate or [], date or datetime.datetime.now(datetime.UTC).date(),
        plain_http or [], arches=arch or [], no_push=False, key=key, keyless=keyless,
        through=through, patience=patience, jobs=jobs, offline=offline,
    )  # fmt: skip
    chosen = ways.chosen(
        options.wanted(names, target), matrix, gate or [],
        Asked(arches=way.arches, labels=False),
        None if published else way.registry, plain_http or [], everything=everything,
    )  # fmt: skip
    for one in chosen.passed:
        console.info(f"{one.target}: {one.outcome}, {one.reason}")
    machines = nights.Machines(
        slurm=on is Where.SLURM,
        options=_options(partition, account, time, sbatch or []),
        drop=len(chosen.targets) > 1 if keep is None else not keep,
    )
    codec.write(way.results / ways.JOBS, chosen)  # for `ci report`
    found = nights.night(way, chosen, machines)
    if record:
        ways.record(matrix, results, chosen)
    options.answer(found, options.aligned([reports.HEAD, *reports.rows(found)]), json=json)
    if found.wrong(strict=strict):
        raise typer.Exit(1)


def _options(partition: str, account: str, time: str, more: Sequence[str]) -> tuple[str, ...]:
    """What sbatch is told."""
    asked = {"partition": partition, "account": account, "time": time}
    return (*(f"--{name}={value}" for name, value in asked.items() if value), *more)
