"""Texts contained in every match of a regular expression.

With them, most patterns can be excluded without a search.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from importlib import import_module
from typing import Any

# Used by re.compile; the type stubs of the standard library omit them.
_constants: Any = import_module("re._constants")
_parser: Any = import_module("re._parser")
SHORTEST = 3  # characters; shorter texts are in most lines
NONE: frozenset[str] = frozenset()


@lru_cache(maxsize=4096)
def required(pattern: str) -> frozenset[str]:
    """Texts in lower case, at least one of which is in each match; empty if unknown."""
    return _best(_parser.parse(pattern))


def _best(tokens: Iterable[Any]) -> frozenset[str]:
    """The most selective texts of a sequence: those whose shortest is the longest."""
    choices: list[frozenset[str]] = []
    run = ""
    for operation, argument in tokens:
        if operation is _constants.LITERAL:
            run += chr(argument).lower()
            continue
        if len(run) >= SHORTEST:
            choices.append(frozenset((run,)))
        run = ""
        inner = _within(operation, argument)
        if inner:
            choices.append(inner)
    if len(run) >= SHORTEST:
        choices.append(frozenset((run,)))
    return max(choices, key=lambda choice: min(map(len, choice)), default=NONE)


def _within(operation: Any, argument: Any) -> frozenset[str]:
    """The texts that a part of a pattern requires."""
    if operation is _constants.SUBPATTERN:
        return _best(argument[3])
    if operation is _constants.BRANCH:
        parts = [_best(branch) for branch in argument[1]]
        return frozenset().union(*parts) if all(parts) else NONE
    if operation in (_constants.MAX_REPEAT, _constants.MIN_REPEAT) and argument[0] > 0:
        return _best(argument[2])
    return NONE
