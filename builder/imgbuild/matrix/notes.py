"""Problems of a file, by the path of a value in it; for matrices and locks.

Does not load YAML: a lock is read without it.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from imgbuild.codec import dotted
from imgbuild.errors import Problem

Path = tuple[str | int, ...]
Places = Mapping[Path, tuple[int, int]]


class Notes:
    """Collects the problems of a file.

    `keys` and `places` are the lines and columns of keys and of values by their path, as far as
    they are known.
    """

    def __init__(self, file: str, keys: Places | None = None, places: Places | None = None) -> None:
        self.file = file
        self.keys = keys or {}
        self.places = places or {}
        self.problems: list[Problem] = []

    def note(
        self,
        path: Path,
        message: str,
        *,
        key: bool = False,
        value: object = None,
        expected: str | None = None,
        near: str | None = None,
    ) -> None:
        """Note a problem with the value at `path`, or with its key."""
        places = self.keys if key else self.places
        line, column = places.get(path) or self.keys.get(path) or (None, None)
        self.problems.append(
            Problem(
                file=self.file,
                message=message,
                line=line,
                column=column,
                path=dotted(path) or None,
                value=None if value is None else str(value),
                expected=expected,
                nearest=near,
            )
        )

    def choice(self, path: Path, name: Any, names: Iterable[str], what: str) -> None:
        """Note a problem if `name` is not one of `names`, each of which names a `what`."""
        choices = list(names)
        if isinstance(name, str) and name not in choices:
            expected = (
                f"one of {', '.join(choices)}" if choices else f"{what}, of which there are none"
            )
            near = nearest(name, choices)
            self.note(path, f"unknown {what}", value=name, expected=expected, near=near)

    def form(
        self, path: Path, text: Any, pattern: str, expected: str, *, key: bool = False
    ) -> None:
        """Note a problem if `text` does not match `pattern`."""
        if isinstance(text, str) and not re.fullmatch(pattern, text):
            message = "the name has another form" if key else "the text has another form"
            self.note(path, message, key=key, value=text, expected=expected)

    def once(self, path: Path, items: Any) -> None:
        """Note each item that is in a list more than once."""
        twice = [item for item, count in Counter(texts(items)).items() if count > 1]
        for item in twice:
            places = [number for number, other in enumerate(items) if other == item]
            self.note((*path, places[-1]), f"{item} is listed twice", expected="each item once")


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """The choice that is most similar to `word`; None if none is similar."""
    matches = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.6)
    return matches[0] if matches else None


def table(value: Any) -> Mapping[str, Any]:
    """A mapping, or an empty one in place of a gap."""
    return value if isinstance(value, dict) else {}


def texts(value: Any) -> list[str]:
    """The texts of a list, without its gaps."""
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
