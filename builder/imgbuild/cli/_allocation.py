"""Options of what Slurm is asked for, which several verbs share."""

from __future__ import annotations

from typing import Annotated

import typer

SLURM = "What Slurm is asked for"

Partition = Annotated[
    str, typer.Option("--partition", metavar="NAME", help="Partition.", rich_help_panel=SLURM)
]
Account = Annotated[
    str, typer.Option("--account", metavar="NAME", help="Account.", rich_help_panel=SLURM)
]
Time = Annotated[
    str,
    typer.Option(
        "--time", metavar="TIME", help="Time limit: minutes, H:MM:SS, D-HH.", rich_help_panel=SLURM
    ),
]
Memory = Annotated[
    str,
    typer.Option(
        "--mem", metavar="SIZE", help="Memory of each node, such as 200G.", rich_help_panel=SLURM
    ),
]
Cpus = Annotated[
    int,
    typer.Option(
        "--cpus-per-task",
        metavar="N",
        min=0,
        help="CPUs of each task; 0 leaves it to the site.",
        rich_help_panel=SLURM,
    ),
]
Gpus = Annotated[
    int,
    typer.Option("--gpus", metavar="N", min=0, help="GPUs of each node.", rich_help_panel=SLURM),
]
Nodes = Annotated[
    int, typer.Option("--nodes", metavar="N", min=1, help="Nodes.", rich_help_panel=SLURM)
]
More = Annotated[
    list[str] | None,
    typer.Option(
        "--sbatch",
        metavar="OPTION",
        help="Another option of sbatch, such as --sbatch=--qos=high; repeatable.",
        rich_help_panel=SLURM,
        show_default=False,
    ),
]
