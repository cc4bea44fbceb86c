"""Reads METADATA of a local or remote wheel."""

from __future__ import annotations

import zipfile
from typing import IO

from imgbuild.errors import IntegrityError
from imgbuild.system.boundary import reads_untrusted

LIMIT = 16 << 20  # bytes of METADATA


@reads_untrusted("name")
def read_metadata(file: IO[bytes], name: str) -> bytes:
    """Read `NAME-VERSION.dist-info/METADATA` of the wheel `name` from the seekable `file`.

    Raises IntegrityError if the file is not a zip or has no METADATA.
    """
    try:
        with zipfile.ZipFile(file) as wheel:
            members = [
                member
                for member in wheel.namelist()
                if member.endswith(".dist-info/METADATA") and member.count("/") == 1
            ]
            if len(members) != 1:
                message = f"{name}: expected one .dist-info/METADATA, found {len(members)}"
                raise IntegrityError(message)
            size = wheel.getinfo(members[0]).file_size
            if size > LIMIT:
                message = f"{name}: {members[0]} has {size} bytes (limit {LIMIT})"
                raise IntegrityError(message)
            return wheel.read(members[0])
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        message = f"{name} is not a valid wheel: {error}"
        raise IntegrityError(message) from error
