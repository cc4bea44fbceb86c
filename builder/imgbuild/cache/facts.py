"""Reads and writes cached facts, which are small data derived from input files."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import time
from pathlib import Path

from imgbuild.errors import InputError
from imgbuild.system.folder import regular_file
from imgbuild.values import sha256

SUM = 65  # bytes of the line with the checksum


def fact_path(root: Path, kind: str, key: str) -> Path:
    """Return the file of a fact in the cache at `root`. Raises ValueError if `kind` is invalid."""
    if re.fullmatch(r"[a-z0-9][a-z0-9._-]*", kind) is None:
        message = f"invalid kind of fact: {kind!r}"
        raise ValueError(message)
    name = sha256(key.encode())
    return root / "facts" / kind / name[:2] / name


def read_fact(place: Path) -> bytes | None:
    """Return the fact at `place`, or None if it is missing or damaged.

    Returns None if another user owns the file, because this user could have written any data.
    """
    try:
        body = _body(place)
    except (FileNotFoundError, PermissionError, InputError):
        return None
    with contextlib.suppress(OSError):
        if body is not None and time.time() - place.stat().st_mtime > 3600:
            os.utime(place)
    return body


def write_fact(place: Path, data: bytes, scratch: Path) -> None:
    """Write a fact atomically to `place`, with a temporary file in `scratch`."""
    descriptor, name = tempfile.mkstemp(dir=scratch)
    with os.fdopen(descriptor, "wb") as file:
        file.write(sha256(data).encode() + b"\n" + data)
    Path(name).replace(place)


def is_damaged(place: Path) -> bool:
    """Return whether the fact at `place` has a wrong checksum or belongs to another user."""
    with contextlib.suppress(FileNotFoundError):
        return _body(place) is None
    return False


def _body(place: Path) -> bytes | None:
    with os.fdopen(regular_file(place), "rb") as file:
        is_own = os.fstat(file.fileno()).st_uid == os.geteuid()
        data = file.read()
    checksum, body = data[:SUM], data[SUM:]
    return body if is_own and checksum == sha256(body).encode() + b"\n" else None
