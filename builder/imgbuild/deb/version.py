"""Debian version numbers, compared as policy 5.6.12 says.

Comes in: version strings such as `1:2.36-9+deb12u10`. Goes out: keys that sort, and yes or no.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

END = 0  # the end of a part sorts after "~" and before everything else
RELATIONS: dict[str, Callable[[int], bool]] = {
    "<<": lambda order: order < 0,
    "<=": lambda order: order <= 0,
    "=": lambda order: order == 0,
    ">=": lambda order: order >= 0,
    ">>": lambda order: order > 0,
}

Part = tuple[tuple[tuple[int, ...], int], ...]


def compare(left: str, right: str) -> int:
    """-1, 0 or 1 as `left` is older than, the same as, or newer than `right`."""
    one, other = key(left), key(right)
    return (one > other) - (one < other)


def satisfies(version: str, relation: str, bound: str) -> bool:
    """Whether `version` stands in `relation` (`<<`, `<=`, `=`, `>=`, `>>`) to `bound`.

    Raises ValueError for any other relation.
    """
    if relation not in RELATIONS:
        message = f"unknown version relation {relation!r}"
        raise ValueError(message)
    return RELATIONS[relation](compare(version, bound))


@functools.lru_cache(maxsize=4096)
def key(version: str) -> tuple[int, Part, Part]:
    """Epoch, upstream version and revision as values that sort; ValueError for a bad epoch."""
    epoch, colon, rest = version.partition(":")
    if not colon:
        epoch, rest = "0", version
    upstream, hyphen, revision = rest.rpartition("-")
    if not hyphen:
        upstream, revision = rest, ""
    return int(epoch), _part(upstream), _part(revision)


def _part(text: str) -> Part:
    pieces = re.findall(r"(\D*)(\d*)", text)
    # findall ends with an empty match; it also says where the part ends, so one is always kept.
    return tuple((_letters(letters), int(digits or "0")) for letters, digits in pieces)


def _letters(text: str) -> tuple[int, ...]:
    return (*(_rank(letter) for letter in text), END)


def _rank(letter: str) -> int:
    if letter == "~":
        return -1
    return ord(letter) if letter.isalpha() else ord(letter) + 256
