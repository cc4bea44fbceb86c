"""Sizes and counts as text: 1.5 GB, 2 packages."""

from __future__ import annotations


def size_text(size: int) -> str:
    """Format a number of bytes: 1.5 GB."""
    number, unit = float(size), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if number < 1000:
            break
        number, unit = number / 1000, larger
    return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"


def count(number: int, noun: str, plural: str = "") -> str:
    """Format a number with its noun: 1 package, 2 packages; `plural` if it does not end in "s"."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
