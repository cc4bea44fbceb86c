"""Implements `imgbuild explain`, which explains the code of a finding."""

from __future__ import annotations

import textwrap
from typing import Annotated

import typer

from imgbuild.cli._help import create_command
from imgbuild.cli._output import print_result
from imgbuild.cli._verb import create_verb
from imgbuild.diagnose import codes
from imgbuild.errors import InputError
from imgbuild.matrix.notes import nearest_choice
from imgbuild.system.console import console

CODE = Annotated[str, typer.Argument(metavar="CODE", help="The code of a finding, such as IMG504.")]
WIDTH = 80


@create_verb
def explain(code: CODE) -> None:
    """Explain a code from the output of diagnose or audit.

    Prints the cause, the fix and an example of the finding.

    Examples:

        imgbuild explain IMG504

        imgbuild explain IMG504 --json
    """
    every = codes.all_explanations()
    named = code.upper() if code.upper().startswith("IMG") else f"IMG{code}"
    explanation = every.get(codes.current_code(named))
    if explanation is None:
        near = nearest_choice(named, every)
        hint = (
            f"did you mean {near}?"
            if near
            else "copy the code from the output of diagnose or audit"
        )
        message = f"no finding has the code {code}"
        raise InputError(message, hint=hint)
    if explanation.code != named:
        console.info(f"{named} is now {explanation.code}")
    lines = [
        f"{explanation.code}: {explanation.title}",
        "",
        *_wrap_text(explanation.text),
    ]
    if explanation.example:
        lines += ["", "Example:", *(f"  {line}" for line in explanation.example.splitlines())]
    print_result(explanation, lines)


def _wrap_text(text: str) -> list[str]:
    paragraphs = [textwrap.fill(each, WIDTH) for each in text.strip().split("\n\n")]
    return "\n\n".join(paragraphs).splitlines()


COMMAND = create_command(explain)
