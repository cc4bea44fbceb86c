"""The words of sources: which modules mention a word, without the sources themselves.

A word is a longest run of letters, digits and underscores. A text that is such a run is in a source
if, and only if, it is part of one of its words.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

_WORD = re.compile(rb"[0-9A-Za-z_]+")


class Words(msgspec.Struct, frozen=True, array_like=True):
    """The words of `modules`, which are those below `parents`: sorted, with line feeds between.

    `holders` are the numbers of the modules that have each word, as differences.
    """

    parents: tuple[str, ...]
    modules: tuple[str, ...]
    text: bytes
    holders: tuple[tuple[int, ...], ...]

    def mentioning(self, parent: str, text: str) -> tuple[str, ...] | None:
        """The modules below `parent` whose source has `text`; None if that is not known."""
        part = text.encode()
        covered = any(f"{parent}.".startswith(f"{each}.") for each in self.parents)
        if not covered or _WORD.fullmatch(part) is None:
            return None
        numbers: set[int] = set()
        at = self.text.find(part)
        while at >= 0:
            numbers.update(itertools.accumulate(self.holders[self.text.count(b"\n", 0, at)]))
            end = self.text.find(b"\n", at)
            at = self.text.find(part, end) if end >= 0 else -1
        names = (self.modules[number] for number in sorted(numbers))
        return tuple(name for name in names if name.startswith(f"{parent}."))


def words_of(parents: Iterable[str], sources: Mapping[str, bytes]) -> Words:
    """The words of `sources`, module → source: all below `parents`, in the order of the wheel."""
    modules = tuple(sources)
    holders: dict[bytes, list[int]] = {}
    for number, module in enumerate(modules):
        for word in set(_WORD.findall(sources[module])):
            holders.setdefault(word, []).append(number)
    words = sorted(holders)
    return Words(
        parents=tuple(sorted(parents)),
        modules=modules,
        text=b"\n".join(words),
        holders=tuple(_differences(holders[word]) for word in words),
    )


def _differences(numbers: Sequence[int]) -> tuple[int, ...]:
    return tuple(number - before for number, before in zip(numbers, (0, *numbers), strict=False))
