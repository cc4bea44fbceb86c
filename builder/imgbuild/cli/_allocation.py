"""Defines options for Slurm allocations, such as partition, account, time and nodes."""

from __future__ import annotations

from typing import Annotated, Any

from imgbuild.cli._options import ExecutionPlace
from imgbuild.cli._verb import OptionDefinition, OptionGroup, option
from imgbuild.errors import InputError
from imgbuild.slurm.jobs import Allocation, allocation_problems

PANEL = "Slurm"
ON_OPTION = OptionDefinition(
    "--on", "Where to run the tasks: on this machine or on Slurm.", panel=PANEL, often=True
)


class AllocationOptions(OptionGroup, frozen=True, kw_only=True):
    """Options for the resources that every job requests."""

    partition: Annotated[
        str,
        option(
            "--partition", "The partition to submit to.", metavar="NAME", panel=PANEL, setting=True
        ),
    ] = ""
    account: Annotated[
        str,
        option("--account", "The account to charge.", metavar="NAME", panel=PANEL, setting=True),
    ] = ""
    time: Annotated[
        str,
        option(
            "--time",
            "The time limit, as minutes, H:MM:SS or D-HH.",
            metavar="TIME",
            panel=PANEL,
            setting=True,
        ),
    ] = ""
    sbatch: Annotated[
        list[str] | None,
        option(
            "--sbatch",
            "An additional option for sbatch, such as --sbatch=--qos=high. Can be repeated.",
            metavar="OPTION",
            panel=PANEL,
        ),
    ] = None


def requested_allocation(options: AllocationOptions) -> Allocation:
    """Return the resources to request for each task of a job array.

    Raises InputError for an option that imgbuild itself sets for arrays.
    """
    wrong = allocation_problems(resources := job_allocation(options), log=True)
    if wrong:
        raise InputError(
            "\n".join(wrong), hint="to show the accepted values, run the command with --help"
        )
    return resources


def job_allocation(options: AllocationOptions, **more: Any) -> Allocation:
    """Return the resources to request for a job. `more` contains more fields of `Allocation`."""
    return Allocation(
        partition=options.partition,
        account=options.account,
        time=options.time,
        more=tuple(options.sbatch or ()),
        **more,
    )


class Nodes(OptionGroup, frozen=True, kw_only=True):
    """Options for the number of nodes of a job, and the resources of each node."""

    nodes: Annotated[
        int,
        option(
            "--nodes",
            "The number of nodes.",
            metavar="N",
            min=1,
            panel=PANEL,
            often=True,
            setting=True,
        ),
    ] = 1
    cpus: Annotated[
        int,
        option(
            "--cpus-per-task",
            "The number of CPUs per task, or 0 for the default of the cluster.",
            metavar="N",
            min=0,
            panel=PANEL,
            setting=True,
        ),
    ] = 0
    memory: Annotated[
        str,
        option(
            "--mem", "The memory per node, such as 200G.", metavar="SIZE", panel=PANEL, setting=True
        ),
    ] = ""


class Cluster(AllocationOptions, frozen=True, kw_only=True):
    """The options of `--on slurm` for a job array."""

    on: Annotated[
        ExecutionPlace,
        ON_OPTION(
            "With slurm, submit an array job with one task per target, and collect the results. "
            "The current folder, the cache and imgbuild's Python must have the same paths on all "
            "nodes."
        ),
    ] = "local"
    throttle: Annotated[
        int,
        option(
            "--throttle",
            "With --on slurm, the maximum number of concurrent tasks, or 0 for no limit.",
            metavar="N",
            min=0,
            panel=PANEL,
            setting=True,
        ),
    ] = 0
    resume: Annotated[
        bool,
        option(
            "--resume/--no-resume",
            "With --on slurm, skip tasks that an earlier run has completed or queued.",
            panel=PANEL,
        ),
    ] = True
    wait: Annotated[
        bool,
        option(
            "--wait/--no-wait", "With --on slurm, wait until all tasks have ended.", panel=PANEL
        ),
    ] = True
    leave: Annotated[
        bool,
        option(
            "--leave",
            "With --on slurm, do not cancel the tasks on Ctrl-C.",
            panel=PANEL,
        ),
    ] = False
