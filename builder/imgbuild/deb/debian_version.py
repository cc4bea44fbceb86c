"""Compares Debian version numbers such as `1:2.36-9+deb12u10` (Debian policy 5.6.12)."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable

END = 0  # the end of letters sorts after "~" and before all other characters
RELATIONS: dict[str, Callable[[int], bool]] = {
    "<<": lambda order: order < 0,
    "<=": lambda order: order <= 0,
    "=": lambda order: order == 0,
    ">=": lambda order: order >= 0,
    ">>": lambda order: order > 0,
}

VersionPiece = tuple[tuple[int, ...], int]  # ranks of letters, and the number after them
EMPTY_PIECE: VersionPiece = (
    (END,),
    0,
)  # the end of a version: no letters, and missing digits count as 0


def compare_versions(left: str, right: str) -> int:
    """Return -1, 0 or 1 if `left` is older than, equal to, or newer than `right`."""
    parts, other = _parts(left), _parts(right)
    for mine, theirs in zip(parts, other, strict=True):
        for first, second in itertools.zip_longest(mine, theirs, fillvalue=EMPTY_PIECE):
            if first != second:
                return 1 if first > second else -1
    return 0


version_key = functools.cmp_to_key(compare_versions)


def satisfies_relation(version: str, relation: str, bound: str) -> bool:
    """Return whether `version` has the `relation` (`<<`, `<=`, `=`, `>=`, `>>`) to `bound`.

    Raises ValueError for any other relation.
    """
    if relation not in RELATIONS:
        message = f"unknown version relation {relation!r}"
        raise ValueError(message)
    return RELATIONS[relation](compare_versions(version, bound))


@functools.lru_cache(maxsize=4096)
def _parts(version: str) -> tuple[tuple[VersionPiece, ...], ...]:
    """Split a version into epoch, upstream version and revision.

    Raises ValueError for an epoch that is not a number.
    """
    epoch, colon, rest = version.partition(":")
    if not colon:
        epoch, rest = "0", version
    upstream, hyphen, revision = rest.rpartition("-")
    if not hyphen:
        upstream, revision = rest, ""
    return ((EMPTY_PIECE[0], int(epoch)),), _pieces(upstream), _pieces(revision)


def _pieces(text: str) -> tuple[VersionPiece, ...]:
    return tuple(
        (_letters(letters), int(digits or "0"))
        for letters, digits in re.findall(r"(\D*)(\d*)", text)
    )


def _letters(text: str) -> tuple[int, ...]:
    return (*(_rank(letter) for letter in text), END)


def _rank(letter: str) -> int:
    if letter == "~":
        return -1
    return ord(letter) if letter.isalpha() else ord(letter) + 256
