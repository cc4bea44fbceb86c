"""Control characters in texts from files, servers and programs."""

from __future__ import annotations

import re

from imgbuild.values import CONTROLS

IN_LINES = re.compile(rf"(?![\t\n])[{CONTROLS}]")  # a text of several lines may have tabs


def visible(text: str) -> str:
    """`text` with control characters, except tab and newline, replaced by visible escapes.

    Text from servers and files could otherwise control the terminal.
    """
    return IN_LINES.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    number = ord(match[0])
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"


def ascii_controls(document: str) -> str:
    """JSON with all control characters in its strings as JSON's own escapes."""
    return IN_LINES.sub(lambda match: f"\\u{ord(match[0]):04x}", document)
