"""Reads the data in the scripts of a site."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any


def read_packed(script: bytes) -> Any:
    """The data in a script with one variable."""
    return json.loads(zlib.decompress(base64.b85decode(script.split(b'"')[1])))
