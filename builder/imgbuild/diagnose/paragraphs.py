"""Joins the lines of messages from resolvers and CMake."""

# A separate module: several lines.
from __future__ import annotations

import re

STARTS = re.compile(
    r"No solution found when resolving|The conflict is caused by:|"
    r"^\W{0,6}(?:cause: )?Because [\w.`'-]+|"
    r"CMake Error(?: at |:)|undefined symbol:\s*$"
)
ENDS = re.compile(
    r"\s*(?:hint|help|error|warning|note): |-- |Call Stack|Traceback|To fix this|"
    r".{0,9}ResolutionImpossible"
)
MOST_LINES = 30
MOST_CHARACTERS = 4000


class MessageParagraph:
    """The lines of the message that is being read."""

    def __init__(self) -> None:
        self._open = 0

    def starts(self, text: str) -> bool:
        """Whether a line is the first one of a message."""
        if not STARTS.search(text):
            return False
        self._open = MOST_LINES
        return True

    def continues(self, text: str, length: int) -> bool:
        """Whether a line continues the message, which has `length` characters."""
        if not self._open:
            return False
        self._open -= 1
        if not text.strip() or ENDS.match(text) or length > MOST_CHARACTERS:
            self._open = 0
            return False
        return True
