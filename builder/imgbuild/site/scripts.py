"""Writes data for browsers as scripts, compressed."""

from __future__ import annotations

import base64
import json
import zlib

from imgbuild.system.control_characters import json_escapes


def packed_script(variable: str, data: object) -> bytes:
    """Return a script that assigns `data` to a variable: JSON as zlib in base64.

    Control and format characters in texts are replaced by escapes, as on the pages.
    """
    text = json_escapes(json.dumps(data, separators=(",", ":"), ensure_ascii=False))
    packed = base64.b64encode(zlib.compress(text.encode(), 9)).decode()
    return f'var {variable}="{packed}";\n'.encode()
