"""Writes data for browsers as scripts, compressed."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from typing import Any

from imgbuild.system.control_characters import escape_control


def packed_script(variable: str, data: object) -> bytes:
    """Return a script that assigns `data` to a variable: JSON as zlib in base85.

    Control and format characters in texts are replaced by escapes, as on the pages.
    """
    text = json.dumps(_escape_texts(data), separators=(",", ":"))
    packed = base64.b85encode(zlib.compress(text.encode(), 9)).decode()
    return f'var {variable}="{packed}";\n'.encode()


def _escape_texts(value: Any) -> Any:
    """Escape the texts in `value`, which is nested a few levels deep."""
    if isinstance(value, str):
        return escape_control(value)
    if isinstance(value, Mapping):
        return {_escape_texts(key): _escape_texts(each) for key, each in value.items()}
    return [*map(_escape_texts, value)] if isinstance(value, (list, tuple)) else value
