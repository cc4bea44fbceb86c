"""Implements `imgbuild remove`, which removes added packages from the image of a project."""

from __future__ import annotations

from typing import Annotated

import typer

from imgbuild.cli._help import create_command
from imgbuild.cli._options import SYSTEM, TARGET
from imgbuild.cli._output import print_result
from imgbuild.cli._targets import MatrixFile
from imgbuild.cli._verb import create_verb
from imgbuild.errors import InputError
from imgbuild.pipeline import added
from imgbuild.pipeline.session import open_session
from imgbuild.resolve import edit_row
from imgbuild.system.console import console


@create_verb
def remove(
    packages: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PACKAGE...", help="The names of the packages to remove.", show_default=False
        ),
    ] = None,
    system: Annotated[list[str] | None, SYSTEM()] = None,
    target: Annotated[
        list[str] | None,
        TARGET("The command changes its row in the matrix. Default: the only row."),
    ] = None,
    matrix: MatrixFile = None,
) -> None:
    """Remove packages that were added to the image of a project.

    Removes Python packages from `add:`, `requires:` and `pins:` of the row in matrix.yaml, and
    Debian packages from `packages:`. Comments are kept. Packages that files of the project require
    are not removed.

    Examples:

        imgbuild remove wandb

        imgbuild remove --system rsync --target my-image
    """
    if not packages and not system:
        message = "no package to remove is specified"
        raise InputError(
            message,
            hint="specify a package: imgbuild remove wandb, or imgbuild remove --system rsync",
        )
    session = open_session(matrix)
    name = added.find_row(session, target or [], "imgbuild remove")
    changes = edit_row.remove_from_row(session.project.matrix, name, packages or [], system or [])
    console.info(f"next: imgbuild lock {name}")
    print_result(changes, changes)


COMMAND = create_command(remove)
