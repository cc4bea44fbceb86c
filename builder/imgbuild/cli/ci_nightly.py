"""`imgbuild ci nightly`: the matrix built, proven and published on machines of one's own."""

from __future__ import annotations

import datetime
import enum
from collections.abc import Sequence
from typing import Annotated

import typer

from imgbuild.cli import _allocation, _ci_options, _options
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
        rich_help_panel=_options.WORK,
    ),
]
Again = Annotated[
    bool,
    typer.Option(
        "--published",
        help="Also targets whose tag names the sealed digest already.",
        rich_help_panel=_options.SELECT,
    ),
]
Keep = Annotated[
    bool | None,
    typer.Option(
        "--keep/--drop",
        help="Keep the images in build/, or remove each that this run has made when its target is"
        " through. Default: keep for one target, drop for several.",
        rich_help_panel=_options.WORK,
        show_default=False,
    ),
]


def nightly(
    names: _options.Names = None,
    target: _options.Targets = None,
    everything: _options.Everything = False,
    on: On = Where.LOCAL,
    registry: _ci_options.Registry = None,
    published: Again = False,
    results: _ci_options.Results = None,
    arch: _options.Arches = None,
    gate: _ci_options.Gate = None,
    date: _ci_options.Date = None,
    key: _ci_options.Key = None,
    keyless: _ci_options.Keyless = False,
    keep: Keep = None,
    record: _ci_options.Record = False,
    strict: _ci_options.Strict = False,
    through: _ci_options.Through = None,
    timeout_factor: _ci_options.TimeoutFactor = 1.0,
    partition: _allocation.Partition = "",
    account: _allocation.Account = "",
    time: _allocation.Time = "",
    sbatch: _allocation.More = None,
    plain_http: _options.PlainHttp = None,
    jobs: _options.Jobs = 0,
    offline: _options.Offline = False,
    matrix: _options.MatrixFile = None,
    json: _options.Json = False,
    quiet: _options.Quiet = False,
    verbose: _options.Verbose = False,
) -> None:
    """Build, prove and publish targets: the jobs of `imgbuild ci`, in order, without a CI.

    A target whose tag names the sealed digest is left alone. The others are checked, audited,
    built, tested, pushed by digest, tested on GPUs, and only then tagged. One that fails does not
    stop the others. An interrupted run goes on where it stopped: what has passed for a digest is
    not done again. Exit status 1 if a target failed or is not finished.

    Examples:

        imgbuild ci nightly --all --registry registry.example/rl

        imgbuild ci nightly 'cu130-*' --registry registry.example/rl --on slurm --partition gpu
    """
    from imgbuild import codec
    from imgbuild.ci import nightly as nights
    from imgbuild.ci import report as reports
    from imgbuild.ci.choosing import Asked

    _options.configure(json=json, quiet=quiet, verbose=verbose)
    way = _ci_options.way(
        matrix, registry, results, gate or [], date or datetime.datetime.now(datetime.UTC).date(),
        plain_http or [], arches=arch or [], no_push=False, key=key, keyless=keyless,
        through=through, patience=timeout_factor, jobs=jobs, offline=offline,
    )  # fmt: skip
    chosen = _ci_options.chosen(
        _options.wanted(names, target), matrix, gate or [],
        Asked(arches=way.arches, labels=False),
        None if published else way.registry, plain_http or [], everything=everything,
    )  # fmt: skip
    for one in chosen.passed:
        console.info(f"{one.target}: {one.outcome}, {one.reason}")
    machines = nights.Machines(
        slurm=on is Where.SLURM,
        options=_sbatch(partition, account, time, sbatch or []),
        drop=len(chosen.targets) > 1 if keep is None else not keep,
    )
    codec.write(way.results / _ci_options.JOBS, chosen)  # for `ci report`
    found = nights.night(way, chosen, machines)
    if record:
        _ci_options.record(matrix, results, chosen)
    _options.answer(found, _options.aligned([reports.HEAD, *reports.rows(found)]), json=json)
    if found.wrong(strict=strict):
        raise typer.Exit(1)


def _sbatch(partition: str, account: str, time: str, more: Sequence[str]) -> tuple[str, ...]:
    """What sbatch is told."""
    asked = {"partition": partition, "account": account, "time": time}
    return (*(f"--{name}={value}" for name, value in asked.items() if value), *more)
