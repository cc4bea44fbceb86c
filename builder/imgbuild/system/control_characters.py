"""Escapes control sequences, invisible characters and invalid bytes in untrusted texts."""

from __future__ import annotations

import json
import os
import re

from imgbuild.values import CONTROLS

HIDDEN_IN_LINES = re.compile(rf"(?![\t\n])[{CONTROLS}]")  # a text of several lines may have tabs
# A regular expression set: format characters (Unicode 15.1, category Cf), which are invisible
# or change the display of adjacent text, and so can disguise it.
FORMATS = (
    r"\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u202a-\u202e"
    r"\u2060-\u206f\ufeff\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f"
    r"\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e007f"
)
_HIDDEN = re.compile(rf"(?![\t\n])[{CONTROLS}{FORMATS}]")
_HIDDEN_IN_PATHS = re.compile(rf"[{CONTROLS}{FORMATS}]")


def escape_control(text: str) -> str:
    """Replace control and format characters in `text`, except tab and newline, with escapes.

    Otherwise, text from servers and files could control the terminal or mislead readers.
    """
    return _HIDDEN.sub(_escape_match, text)


def _escape_match(match: re.Match[str]) -> str:
    number = ord(match[0])
    if number > 0xFFFF:
        return f"\\U{number:08x}"
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"


def ascii_controls(document: str) -> str:
    """Replace control and format characters in the strings of a JSON document with JSON escapes."""
    return _HIDDEN.sub(
        lambda match: json.dumps(match[0])[1:-1].replace("\x7f", "\\u007f"), document
    )


def shown_path(text: str) -> str:
    """Return a path for display in a line.

    Control characters, also tab and newline, format characters and bytes that are not valid UTF-8
    are escaped.
    """
    valid = os.fsencode(text).decode("utf-8", "backslashreplace")
    return _HIDDEN_IN_PATHS.sub(_escape_match, valid)
