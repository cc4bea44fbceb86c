"""Finds the texts that every match of a regular expression contains.

Most patterns can be excluded with these texts, without a search.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache
from importlib import import_module
from typing import Any

# Used by re.compile; the type stubs of the standard library omit them.
_constants: Any = import_module("re._constants")
_parser: Any = import_module("re._parser")
SHORTEST_TEXT = 3  # characters; shorter texts are in most lines
NO_TEXTS: frozenset[str] = frozenset()


class LinePattern:
    """A pattern that is searched only in texts that contain its required texts.

    A search that finds nothing may take long: it starts at every character of a long line.
    """

    def __init__(self, pattern: str, flags: int = 0) -> None:
        self._pattern = re.compile(pattern, flags)
        self._texts = required_texts(pattern)

    def search(self, text: str) -> re.Match[str] | None:
        """Return the first match in `text`, as `re.Pattern.search` does."""
        low = text.lower()
        if self._texts and not any(map(low.__contains__, self._texts)):
            return None
        return self._pattern.search(text)


class WordIndex:
    """Indexes patterns by the texts that they require.

    The patterns that may match a text are found without a search for each.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        places: defaultdict[str, set[int]] = defaultdict(set)
        self._always: set[int] = set()
        for number, pattern in enumerate(patterns):
            words = required_texts(pattern)
            if not words:
                self._always.add(number)
            for word in words:
                places[word].add(number)
        self._words: defaultdict[str, list[tuple[str, set[int]]]] = defaultdict(list)
        for word, numbers in places.items():
            self._words[word[:SHORTEST_TEXT]].append((word, numbers))

    def candidate_patterns(self, text: str) -> list[int]:
        """Return the numbers of the patterns whose required texts are in `text`, in order."""
        low, candidates = text.lower(), set(self._always)
        starts = {low[at : at + SHORTEST_TEXT] for at in range(len(low) - SHORTEST_TEXT + 1)}
        for start in starts & self._words.keys():
            for word, numbers in self._words[start]:
                if word in low:
                    candidates |= numbers
        return sorted(candidates)


@lru_cache(maxsize=4096)
def required_texts(pattern: str) -> frozenset[str]:
    """Return lower-case texts, at least one of which is in each match.

    The result is empty if they are unknown.
    """
    return _most_selective(_parser.parse(pattern))


def _most_selective(tokens: Iterable[Any]) -> frozenset[str]:
    """Return the most selective alternatives in a sequence.

    These are the alternatives whose shortest text is the longest.
    """
    choices: list[frozenset[str]] = []
    run = ""
    for operation, argument in tokens:
        if operation is _constants.LITERAL:
            run += chr(argument).lower()
            continue
        if len(run) >= SHORTEST_TEXT:
            choices.append(frozenset((run,)))
        run = ""
        inner = _texts_within(operation, argument)
        if inner:
            choices.append(inner)
    if len(run) >= SHORTEST_TEXT:
        choices.append(frozenset((run,)))
    return max(choices, key=lambda choice: min(map(len, choice)), default=NO_TEXTS)


def _texts_within(operation: Any, argument: Any) -> frozenset[str]:
    """Return the texts that a part of a pattern requires."""
    if operation is _constants.SUBPATTERN:
        return _most_selective(argument[3])
    if operation is _constants.BRANCH:
        parts = [_most_selective(branch) for branch in argument[1]]
        return frozenset().union(*parts) if all(parts) else NO_TEXTS
    if operation in (_constants.MAX_REPEAT, _constants.MIN_REPEAT) and argument[0] > 0:
        return _most_selective(argument[2])
    return NO_TEXTS
