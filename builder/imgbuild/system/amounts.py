"""Formats sizes ("1.5 GB"), counts ("2 packages"), lists ("a, b and 3 more") and paragraphs."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Units that are not broken: a word and a mark (`name *`), a backquoted span, a command of imgbuild,
# which ends with the line or with a word that ends in punctuation.
_UNIT = re.compile(
    r"( *)(`[^`]+`\S*|(?<!\S)imgbuild(?: \S*[^\s;,:.](?!\S))*(?: \S+[;,:.](?!\S))?"
    r"|\S+(?: \*(?!\S))?)"
)
_SPACE = re.compile(r"[\t\n\v\f\r]")


def size_text(size: int) -> str:
    """Format a number of bytes, for example as "1.5 GB"."""
    number, unit = float(size), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if number < 1000:
            break
        number, unit = number / 1000, larger
    return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"


def format_count(number: int, noun: str, plural: str = "") -> str:
    """Format a number with a noun ("1 package").

    `plural` is the plural unless it is `noun` + "s".
    """
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def join_first(texts: Sequence[str], most: int, separator: str = ", ") -> str:
    """Join the first `most` texts and append the number of the others: "a, b and 3 more"."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return separator.join(texts[:most]) + more


def wrap_text(text: str, width: int, *, taken: int = 0, indent: int = 2) -> str:
    """Wrap `text` at `width` columns. The first line is `taken` columns shorter.

    Words, backquoted spans and commands are not broken, even if they are too wide, so that they can
    be copied and pasted. Lines that fit are not changed. Continuation lines are indented.
    """
    lines = text.split("\n")
    return "\n".join(
        line if len(line) + (0 if number else taken) <= width
        else "\n".join(_break_line(line, width, 0 if number else taken,
                                   " " * (len(line) - len(line.lstrip()) + indent)))
        for number, line in enumerate(lines)
    )  # fmt: skip


def wrap_paragraph(text: str, width: int, first: str = "", others: str = "") -> list[str]:
    """Return `text` as lines of at most `width` columns, broken as `wrap_text` does.

    `first` is the prefix of the first line, and `others` the prefix of all other lines.
    """
    lines = _break_line(_SPACE.sub(" ", text).rstrip(), width, len(first), others)
    return [first + lines[0], *lines[1:]] if text.strip() else []


def _break_line(line: str, width: int, taken: int, below: str) -> list[str]:
    """Break a line. The first part is `taken` columns shorter, and others start with `below`."""
    lines = [""]
    column = taken
    for space, unit in _UNIT.findall(line):
        if column > taken and column + len(space) + len(unit) > width:
            lines.append(below + unit)
            column = taken = len(below)
        else:
            lines[-1] += space + unit
            column += len(space)
        column += len(unit)
    return lines
