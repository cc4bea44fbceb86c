"""Implements `imgbuild shell`, which opens a shell in the image of a target."""

from __future__ import annotations

import functools
from typing import Annotated

from imgbuild.cli._help import create_command
from imgbuild.cli._options import DRY_RUN, LayoutFolder, OneArch
from imgbuild.cli._targets import OneTarget
from imgbuild.cli._verb import RunOutput, create_verb
from imgbuild.cli.run import RunOptions, RunPlace, ThroughOption, run_in_container

SHELL = ("bash",)


@functools.partial(create_verb, output=RunOutput)
def shell(
    selection: OneTarget,
    container: RunOptions,
    arch: OneArch = None,
    layout: LayoutFolder = None,
    through: ThroughOption = None,
    dry_run: Annotated[bool, DRY_RUN("Print the command line for the container engine.")] = False,
) -> None:
    """Open a shell in the image of a target.

    Equivalent to `imgbuild run TARGET -- bash`: the current folder is mounted, and the shell runs
    as the current user. In a project with one target, the name can be omitted. The exit status is
    the status of the shell.

    Examples:

        imgbuild shell

        imgbuild shell cu124-vllm --gpus 0

        imgbuild shell -v /data:/data:ro
    """
    where = RunPlace(arch=arch, layout=layout, through=through, dry_run=dry_run)
    run_in_container(selection.matrix, selection.split(())[0], SHELL, container, where)


COMMAND = create_command(shell)
