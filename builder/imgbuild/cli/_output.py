"""The output of verbs on stdout: JSON or lines, tables, and words for sizes and counts."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from imgbuild import codec
from imgbuild.system.amounts import count as count  # noqa: PLC0414 - verbs import it from here
from imgbuild.system.amounts import size_text as size_text  # noqa: PLC0414
from imgbuild.system.console import console, visible


def answer(value: Any, lines: Sequence[str]) -> None:
    """Write the result of a verb: with `--json` canonical JSON of `value`, else `lines`."""
    if console.json:
        put(codec.encode(value).decode())
    elif lines:
        put("\n".join(lines))


def put(text: str) -> None:
    """Write `text` to stdout. A reader that closed the pipe, such as `head`, is not an error."""
    try:
        console.data(text)
    except BrokenPipeError:
        discard()


def discard() -> None:
    """Discard the rest of stdout, such as the flush at exit."""
    with Path(os.devnull).open("wb") as nothing:
        os.dup2(nothing.fileno(), sys.stdout.fileno())


def aligned(rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset()) -> list[str]:
    """Lines of columns as wide as their widest cell; the columns `right` are right-aligned.

    Line breaks and control characters in a cell are escaped. On a terminal, the cells of the widest
    column are cut so that a line fits.
    """
    rows = [[visible(cell).replace("\n", "\\n") for cell in row] for row in rows]
    if sys.stdout.isatty():
        widest = [max(map(len, column)) for column in zip(*rows, strict=True)]
        columns = shutil.get_terminal_size().columns
        rows = [list(row) for row in narrowed(rows, widest.index(max(widest)), columns)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def narrowed(rows: Sequence[Sequence[str]], place: int, width: int = 80) -> list[Sequence[str]]:
    """`rows` whose cells in the column `place` are cut so that `aligned` lines fit `width`."""
    widest = [max(map(len, column)) for column in zip(*rows, strict=True)]
    over = sum(widest) + 2 * (len(widest) - 1) - width
    limit = max(widest[place] - over, 8)
    return [
        [*row[:place], _cut(row[place], limit), *row[place + 1 :]] if over > 0 else row
        for row in rows
    ]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def fitted(lines: Sequence[str]) -> list[str]:
    """`lines` cut to the width of the terminal, with an ellipsis; whole if stdout is not one."""
    if not sys.stdout.isatty():
        return list(lines)
    width = shutil.get_terminal_size().columns
    return [_cut(line, width) for line in lines]
