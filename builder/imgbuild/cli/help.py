"""Implements `imgbuild help`, which shows the help of a command."""

from __future__ import annotations

from typing import Annotated

import typer

from imgbuild.cli import _app
from imgbuild.cli._help import create_command
from imgbuild.cli._verb import create_verb


@create_verb
def show_help(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND", help="A command, such as `build` or `registry ls`."),
    ] = None,
) -> None:
    """Show the help of a command.

    Equivalent to COMMAND --help.

    Example:

        imgbuild help build
    """
    _app.app([*(names or []), "--help"], prog_name="imgbuild", standalone_mode=False)


COMMAND = create_command(show_help)
