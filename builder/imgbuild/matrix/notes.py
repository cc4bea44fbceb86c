"""Collects problems of a matrix or lock, by the paths of values.

This module does not import the YAML parser, which is not needed to read a lock.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from imgbuild.codec import dotted_path
from imgbuild.errors import InputProblem

ValuePath = tuple[str | int, ...]
PlaceLookup = Callable[[ValuePath, bool], tuple[int, int] | None]


class ProblemNotes:
    """The problems of a file.

    `place_of` returns the line and column of the value at a path or, with True, of the key.
    `refused` contains the paths of values that do not match their types, where `()` is the whole
    file. No other problem is recorded at or below these paths.
    """

    def __init__(self, file: str, place_of: PlaceLookup | None = None) -> None:
        self.file = file
        self.place_of = place_of or (lambda path, key: None)
        self.problems: list[InputProblem] = []
        self.refused: set[ValuePath] = set()

    def note(
        self,
        path: ValuePath,
        message: str,
        *,
        key: bool = False,
        value: object = None,
        expected: str | None = None,
        near: str | None = None,
        of: ValuePath = (),
    ) -> None:
        """Record a problem with the value at `path`, or with its key.

        If the problem depends on the value at `of`, it is recorded only if that value matches its
        type.
        """
        if self._is_refused(path) or self._is_refused(of):
            return
        line, column = self.place_of(path, key) or (None, None)
        self.problems.append(
            InputProblem(
                file=self.file,
                message=message,
                line=line,
                column=column,
                path=dotted_path(path) or None,
                value=None if value is None else str(value),
                expected=expected,
                nearest=near,
            )
        )

    def _is_refused(self, path: ValuePath) -> bool:
        return any(path[:end] in self.refused for end in range(len(path) + 1))

    def check_choice(
        self, path: ValuePath, name: str, names: Iterable[str], what: str, *, of: ValuePath = ()
    ) -> None:
        """Record a problem if `name` is not one of `names`.

        `what` is the kind of the names, which are defined at `of`.
        """
        choices = list(names)
        if name not in choices:
            expected = f"one of {', '.join(choices)}" if choices else f"{what}, but none is defined"
            near = nearest_choice(name, choices)
            self.note(path, f"unknown {what}", value=name, expected=expected, near=near, of=of)

    def check_form(
        self, path: ValuePath, text: str, pattern: str, expected: str, *, key: bool = False
    ) -> None:
        """Record a problem if `text` does not match `pattern`."""
        if not re.fullmatch(pattern, text):
            message = (
                "the name does not have the expected format"
                if key
                else "the text does not have the expected format"
            )
            self.note(path, message, key=key, value=text, expected=expected)

    def check_duplicates(self, path: ValuePath, items: Sequence[str]) -> None:
        """Record duplicate items of a list."""
        for item in [item for item, count in Counter(items).items() if count > 1]:
            last = max(number for number, other in enumerate(items) if other == item)
            self.note((*path, last), f"{item} is listed twice", expected="each item once")


def nearest_choice(word: str, choices: Iterable[str]) -> str | None:
    """Return the choice most similar to `word`, or None if no choice is similar."""
    best, match = 0.6, None
    matcher = difflib.SequenceMatcher()
    matcher.set_seq2(word)  # as difflib.get_close_matches, which compares less similar ones, too
    for choice in choices:
        matcher.set_seq1(choice)
        if matcher.real_quick_ratio() >= best and matcher.quick_ratio() >= best:
            best, match = max((best, match or ""), (matcher.ratio(), choice))
    return match or None
