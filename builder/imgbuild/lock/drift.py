"""Describes differences between matrix and lock in one line per key."""

# A separate module: only messages.
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from imgbuild import codec

LINES = 8  # differences of one field; further ones are counted
WIDTH = 100  # characters of a value that are shown
CONTEXT_BEFORE = 20  # of them before the first difference, where a value is cut


def difference_lines(field: str, expected: object, locked: object) -> list[str]:
    """Return a line for each difference between `expected`, from the matrix, and `locked`.

    `field` is the name of the values in the lines.
    """
    differences = list(_differences(field, codec.to_builtins(expected), codec.to_builtins(locked)))
    if len(differences) <= LINES:
        return differences
    shown = differences[: LINES - 1]
    return [*shown, f"{field}: {len(differences) - len(shown)} more differences"]


def _differences(path: str, expected: Any, locked: Any) -> Iterator[str]:
    if expected == locked:
        return
    if isinstance(expected, dict) and isinstance(locked, dict):
        for key in sorted(expected.keys() | locked.keys()):
            place = f"{path}.{key}"
            if key not in expected:
                yield f"{place}: exists only in the lock"
            elif key not in locked:
                yield f"{place}: exists only in the matrix"
            else:
                yield from _differences(place, expected[key], locked[key])
        return
    ours, theirs = codec.encode_compact(expected).decode(), codec.encode_compact(locked).decode()
    if (
        isinstance(expected, list)
        and isinstance(locked, list)
        and max(len(ours), len(theirs)) > WIDTH
    ):
        yield from _items(path, expected, locked)
        return
    start = _common_prefix(ours, theirs)
    yield (
        f"{path}: the matrix has {_cut_text(ours, start)}, but the lock has"
        f" {_cut_text(theirs, start)}"
    )


def _items(path: str, expected: list[Any], locked: list[Any]) -> Iterator[str]:
    more = [item for item in expected if item not in locked]
    less = [item for item in locked if item not in expected]
    for owner, items in (("matrix", more), ("lock", less)):
        for item in items:
            yield (
                f"{path}: only the {owner} has {_cut_text(codec.encode_compact(item).decode(), 0)}"
            )
    if not more and not less:
        yield f"{path}: the items are the same, but their order or number differs"


def _common_prefix(text: str, other: str) -> int:
    pairs = zip(text, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(text), len(other)))


def _cut_text(text: str, start: int) -> str:
    if len(text) <= WIDTH:
        return text
    first = max(0, min(start - CONTEXT_BEFORE, len(text) - WIDTH))
    part = text[first : first + WIDTH]
    return f"{'…' if first else ''}{part}{'…' if first + WIDTH < len(text) else ''}"
