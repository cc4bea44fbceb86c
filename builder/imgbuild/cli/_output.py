"""Writes results to stdout: JSON, lines, and tables that fit the terminal's width."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from imgbuild import codec
from imgbuild.errors import WorkFailed
from imgbuild.system.amounts import format_count as format_count  # noqa: PLC0414 - verbs import it from here
from imgbuild.system.amounts import size_text as size_text  # noqa: PLC0414
from imgbuild.system.amounts import wrap_text
from imgbuild.system.console import console
from imgbuild.system.control_characters import ascii_controls, escape_control

GAP = "  "  # between the columns of a table, and before what is below them
WORD = re.compile(r"\S+(?: \*(?!\S))?")  # with the mark of a recommended target
MARK = re.compile(r" (?=\*(?!\S))")
NO_BREAK = "\u00a0"
PIECE = re.compile(r"[^\s,/@-]*[,/@-]|[^\s,/@-]+")  # of a word that is too long
CONTINUATION_INDENT = "    "  # before what continues a line


LineStyle = Callable[[str], Sequence[tuple[str, str]]]  # a line → its parts, with rich's styles


def print_result(value: Any, lines: Sequence[str], style: LineStyle | None = None) -> None:
    """Write the result of a command: `value` as canonical JSON with `--json`, or else `lines`.

    Control characters are escaped, because texts come from locks, servers and file names. `style`
    is used only on a terminal.
    """
    if console.json:
        write_stdout(ascii_controls(codec.encode(value).decode()))
    elif style is not None and lines and sys.stdout.isatty():
        console.print_styled(map(style, lines))
    elif lines:
        write_stdout(escape_control("\n".join(lines)))


def answer_file(value: Any, texts: Sequence[str]) -> None:
    """Write `texts` as the result of a command or, with `--json`, print `value`."""
    if console.json or not texts:
        print_result(value, [])
    else:
        write_stdout("\n".join(texts))


def write_stdout(text: str) -> None:
    """Write `text` to stdout. A pipe that the reader has closed is not an error.

    Raises WorkFailed if stdout cannot be written to, for example because the disk is full.
    """
    try:
        console.data(text)
    except BrokenPipeError:
        discard_stdout()
    except OSError as error:
        discard_stdout()
        raise stdout_error(error) from error


def stdout_error(error: OSError) -> WorkFailed:
    """Return the error for a stdout that is full or closed."""
    message = f"the result cannot be written to stdout: {error.strerror or error}"
    return WorkFailed(
        message, hint="the command completed; to see the result, write the output to another file"
    )


def discard_stdout() -> None:
    """Discard all further output to stdout, including the flush at exit."""
    with Path(os.devnull).open("wb") as nothing:
        os.dup2(nothing.fileno(), sys.stdout.fileno())


def align_columns(
    rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset(), width: int | None = None
) -> list[str]:
    """Format rows as lines with aligned columns. Columns in `right` are right-aligned.

    Line breaks and control characters in a cell are escaped. Lines wider than `width` (default: the
    terminal) are folded, preferably between words. If the table is still too wide, the column with
    the longest word is printed on separate lines. In a pipe, each row is one line.
    """
    if not rows:
        return []
    escaped = [[escape_control(cell).replace("\n", "\\n") for cell in row] for row in rows]
    blocks = _fold_rows(escaped, right, terminal_width() if width is None else width)
    return [line.rstrip() for block in blocks for line in block]


def terminal_width() -> int:
    """Return the width of the terminal in columns, or no limit if stdout is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize


def _fold_rows(
    rows: Sequence[Sequence[str]], right: frozenset[int], width: int
) -> Iterator[list[str]]:
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    room = width - len(GAP) * (len(columns) - 1)
    words = _longest_parts(columns, WORD)
    pieces = words if sum(words) <= room else _longest_parts(columns, PIECE)
    if len(columns) > 1 and sum(pieces) > room:
        yield from _drop_column(words.index(max(words)), rows, right, width)
        return
    while (over := sum(widths) - room) > 0 and len(columns) > 1:
        # The widest column that can be folded becomes as narrow as the next, if necessary.
        place = max(
            (i for i, need in enumerate(pieces) if widths[i] > need), key=widths.__getitem__
        )
        others = [each for each in widths if each < widths[place]]
        widths[place] -= max(1, min(over, widths[place] - max([pieces[place], *others])))
    widths = widths if len(columns) > 1 else [min(widths[0], room)]
    for row in rows:
        cells = [_wrap_text(cell, size) for cell, size in zip(row, widths, strict=True)]
        yield [
            GAP.join(
                cell.rjust(size) if place in right else cell.ljust(size)
                for place, (cell, size) in enumerate(zip(line, widths, strict=True))
            )
            for line in itertools.zip_longest(*cells, fillvalue="")
        ]


def _longest_parts(columns: Iterable[Sequence[str]], part: re.Pattern[str]) -> list[int]:
    return [max(len(piece) for cell in column for piece in (*part.findall(cell), ""))
            for column in columns]  # fmt: skip


def _drop_column(
    place: int, rows: Sequence[Sequence[str]], right: frozenset[int], width: int
) -> Iterator[list[str]]:
    """Yield the lines of each row, with the column at `place` on separate lines.

    The first column is moved above the other columns, and any other column below them. The last
    column stays on the right if it fits.
    """
    others = [[*row[:place], *row[place + 1 :]] for row in rows]
    right = frozenset(each - (each > place) for each in right if each != place)
    inner = max(width - len(GAP), 1)
    blocks = list(_fold_rows(others, right, width if place else inner))
    taken = max(len(line) for block in blocks for line in block) + len(GAP)
    for block, row in zip(blocks, rows, strict=True):
        if place == 0:
            yield [*_wrap_text(row[0], width), *(GAP + line for line in block)]
        elif place == len(row) - 1 and len(row[-1]) <= width - taken:
            yield [block[0].ljust(taken) + row[-1], *block[1:]]
        else:
            below = _wrap_text(row[place], inner)
            yield [*block, *(GAP + line for line in below)]


def _wrap_text(text: str, width: int) -> list[str]:
    """Fold `text` between words, and long words after a comma, slash, @ or hyphen."""
    if len(text) <= width:
        return [text]
    lines = []
    joined = MARK.sub(NO_BREAK, text)
    for line in textwrap.wrap(joined, width, break_long_words=False, break_on_hyphens=False):
        left = line.replace(NO_BREAK, " ")
        while len(left) > width:
            end = max(left.rfind(mark, 0, width) for mark in ",/@") + 1
            end = end or left.rfind("-", 0, width) + 1 or width
            lines.append(left[:end])
            left = left[end:]
        lines.append(left)
    return lines


def fold_lines(lines: Iterable[str]) -> list[str]:
    """Fold `lines` to the width of the terminal, but not inside words and commands.

    Lines are unchanged if stdout is not a terminal.
    """
    width = terminal_width()
    indent = len(CONTINUATION_INDENT)
    return [part for line in lines for part in wrap_text(line, width, indent=indent).split("\n")]


def fit_lines(lines: Iterable[str]) -> list[str]:
    """Cut `lines` to the terminal's width. Lines are unchanged if stdout is not a terminal."""
    width = terminal_width()
    return [_cut_text(line, width) for line in lines]


def _cut_text(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
