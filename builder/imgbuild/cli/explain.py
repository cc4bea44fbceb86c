"""Implements `imgbuild explain`, which explains the code of a finding."""

from __future__ import annotations

import textwrap
from typing import Annotated

import typer

from imgbuild.cli._help import command
from imgbuild.cli._output import answer
from imgbuild.cli._verb import verb
from imgbuild.diagnose import codes
from imgbuild.errors import InputError
from imgbuild.matrix.notes import nearest

CODE = Annotated[str, typer.Argument(metavar="CODE", help="The code of a finding, such as IMG504.")]
WIDTH = 80


@verb
def explain(code: CODE) -> None:
    """Explain a finding of diagnose or audit by its code.

    Prints the cause, the cure and an example. Codes are in the output of `imgbuild diagnose` and
    `imgbuild audit`.

    Examples:

        imgbuild explain IMG504

        imgbuild explain IMG504 --json
    """
    every = codes.every()
    explanation = every.get(code.upper())
    if explanation is None:
        near = nearest(code.upper(), every)
        hint = (
            f"did you mean {near}?"
            if near
            else "copy the code from the output of diagnose or audit"
        )
        message = f"no finding has the code {code}"
        raise InputError(message, hint=hint)
    lines = [
        f"{explanation.code}: {explanation.title}",
        "",
        *_wrapped(explanation.text),
    ]
    if explanation.example:
        lines += ["", "Example:", *(f"  {line}" for line in explanation.example.splitlines())]
    answer(explanation, lines)


def _wrapped(text: str) -> list[str]:
    paragraphs = [textwrap.fill(each, WIDTH) for each in text.strip().split("\n\n")]
    return "\n\n".join(paragraphs).splitlines()


COMMAND = command(explain)
