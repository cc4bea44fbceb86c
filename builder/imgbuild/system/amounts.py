"""Formats sizes, counts, lists and paragraphs: 1.5 GB, 2 packages, a, b and 3 more."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence


def size_text(size: int) -> str:
    """Format a number of bytes: 1.5 GB."""
    number, unit = float(size), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if number < 1000:
            break
        number, unit = number / 1000, larger
    return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"


def format_count(number: int, noun: str, plural: str = "") -> str:
    """Format a number with its noun: 1 package, 2 packages; `plural` if it does not end in "s"."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def join_first(texts: Sequence[str], most: int, separator: str = ", ") -> str:
    """The first `most` of the texts, and the number of others: a, b and 3 more."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return separator.join(texts[:most]) + more


def wrap_paragraph(text: str, width: int, first: str = "", others: str = "") -> list[str]:
    """Wrap `text` at `width` columns; lines begin with `first`, then with `others`.

    Words are not broken.
    """
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )
