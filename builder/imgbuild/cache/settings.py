"""Reads the location and size limit of the cache from the environment."""

from __future__ import annotations

import os
import re
from pathlib import Path

from imgbuild.errors import InputError
from imgbuild.system import files

_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_size(text: str, place: str) -> int:
    """Parse a size, such as "500M", "20GB" (powers of 1000) or "20GiB" (of 1024), to bytes.

    Raises InputError if `text` is invalid. `place` is the option or variable that contains `text`.
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(i?)b?", text.strip().lower())
    if match is None or (match[3] and not match[2]):
        message = f"{place}: invalid size {text!r}"
        raise InputError(
            message, hint="specify a number of bytes, or a size such as 500M, 20G or 20GiB"
        )
    return int(float(match[1]) * (1024 if match[3] else 1000) ** _UNITS[match[2]])


def default_root() -> Path:
    """Return $IMGBUILD_CACHE or, if it is not set, $XDG_CACHE_HOME/imgbuild.

    The default of $XDG_CACHE_HOME is ~/.cache.
    """
    named = os.environ.get("IMGBUILD_CACHE")
    if named:
        return files.expand_home(named).absolute()
    return files.xdg_folder("XDG_CACHE_HOME", ".cache") / "imgbuild"


def size_limit() -> int | None:
    """Return the cache size limit in bytes, from $IMGBUILD_CACHE_SIZE, or None if it is unset."""
    text = os.environ.get("IMGBUILD_CACHE_SIZE", "")
    return parse_size(text, "IMGBUILD_CACHE_SIZE") if text else None
