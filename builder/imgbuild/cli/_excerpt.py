"""The line of a file that a problem is in, with carets below the place, as compilers show it."""

from __future__ import annotations

from imgbuild.errors import Problem
from imgbuild.system.quoting import visible

WIDTH = 72  # columns of an excerpt
BEFORE = 40  # of these at most before the place


def excerpt(problem: Problem) -> list[str]:
    """Three lines: a margin, the line with its number, the carets. Empty without a source."""
    if problem.source is None or problem.line is None or problem.column is None:
        return []
    at = problem.column - 1
    first = max(0, at - BEFORE) if len(problem.source) > WIDTH else 0
    shown = problem.source[first : first + WIDTH].rstrip()
    before = visible(shown[: at - first])
    value = problem.value or ""
    length = len(value) if problem.source.startswith(value, at) else 1
    carets = "^" * max(1, min(length, WIDTH - (at - first)))
    indent = "".join("\t" if one == "\t" else " " for one in before)
    number = str(problem.line)
    margin = " " * len(number)
    return [f"{margin} |", f"{number} | {visible(shown)}", f"{margin} | {indent}{carets}"]
