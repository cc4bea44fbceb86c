"""Formats sizes ("1.5 GB"), counts ("2 packages"), lists ("a, b and 3 more") and paragraphs."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence


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


def wrap_paragraph(text: str, width: int, first: str = "", others: str = "") -> list[str]:
    """Return `text` as lines of at most `width` columns, without breaking long words.

    `first` is the prefix of the first line, and `others` the prefix of all other lines.
    """
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )
