"""METADATA of a wheel, local or remote.

Comes in: an open file that can seek. Goes out: the bytes of `NAME-VERSION.dist-info/METADATA`.
"""

from __future__ import annotations

import zipfile
from typing import IO

from imgbuild.errors import IntegrityError


def read_metadata(file: IO[bytes], name: str) -> bytes:
    """METADATA of the wheel `name` opened as `file`; IntegrityError if it has none or is no zip."""
    try:
        with zipfile.ZipFile(file) as wheel:
            found = [
                member
                for member in wheel.namelist()
                if member.endswith(".dist-info/METADATA") and member.count("/") == 1
            ]
            if len(found) != 1:
                message = f"{name}: {len(found)} files .dist-info/METADATA in it, expected one"
                raise IntegrityError(message)
            return wheel.read(found[0])
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        message = f"{name} is not a readable wheel: {error}"
        raise IntegrityError(message) from error
