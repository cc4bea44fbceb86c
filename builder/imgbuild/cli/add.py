"""Implements `imgbuild add`, which adds packages to the image of a project."""

from __future__ import annotations

from typing import Annotated

import typer
from packaging.requirements import InvalidRequirement, Requirement

from imgbuild.cli._help import create_command
from imgbuild.cli._options import SYSTEM, TARGET, Offline
from imgbuild.cli._output import print_result
from imgbuild.cli._targets import MatrixFile
from imgbuild.cli._verb import create_verb
from imgbuild.errors import InputError, NoSolution
from imgbuild.pipeline import added
from imgbuild.pipeline.session import SessionOptions, open_session
from imgbuild.resolve import edit_row
from imgbuild.system.console import console
from imgbuild.system.syntax import parse_requirement

RequirementsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="REQUIREMENT...",
        help="Packages to add, such as wandb, 'peft>=0.15', 'ray[default]', 'x @"
        " https://example.org/x.whl' or git+https://example.org/x.git.",
        show_default=False,
    ),
]
SystemOption = Annotated[list[str] | None, SYSTEM()]
TargetOption = Annotated[
    list[str] | None,
    TARGET("The command changes its row in the matrix. Default: the only row."),
]


@create_verb
def add(
    requirements: RequirementsArgument = None,
    system: SystemOption = None,
    target: TargetOption = None,
    matrix: MatrixFile = None,
    offline: Offline = False,
) -> None:
    """Add packages to the image of a project.

    Use this command for requirements that no file of the project declares. Checks names and
    versions, and writes requirements to `add:` and Debian packages to `packages:` of the row in
    matrix.yaml. Comments are kept. A new requirement for a package replaces the earlier one.

    Examples:

        imgbuild add wandb 'peft>=0.15'

        imgbuild add 'ray[default]>=2.45' --system rsync

        imgbuild add einops --target my-image
    """
    if not requirements and not system:
        message = "no package to add is specified"
        raise InputError(
            message, hint="specify a package: imgbuild add wandb, or imgbuild add --system rsync"
        )
    session = open_session(matrix, SessionOptions(offline=offline))
    name = added.find_row(session, target or [], "imgbuild add")
    parsed = [_parse_requirement(text) for text in added.add_names(session, requirements or [])]
    with console.step("checking the added packages"):
        problems = added.addition_problems(session, name, parsed, system or [])
    if problems:
        message = f"the packages cannot be added to {name}"
        raise NoSolution(
            message,
            reasons=tuple(problems),
            hint="change versions or packages, or set a later `as_of` in the row",
        )
    changes = edit_row.add_to_row(session.project.matrix, name, parsed, system or [])
    console.info(f"next: imgbuild lock {name}")
    print_result(changes, changes)


def _parse_requirement(text: str) -> Requirement:
    try:
        return parse_requirement(text)
    except InvalidRequirement as error:
        message = f"invalid requirement: {text!r}"
        hint = "write NAME, NAME[EXTRA], 'NAME>=LOW,<HIGH' or 'NAME @ URL'"
        raise InputError(message, hint=hint) from error


COMMAND = create_command(add)
