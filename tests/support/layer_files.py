"""Reads layer files together with the diff IDs of their content."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO, cast

from imgbuild.oci.reader import GZIP, LayerFile
from imgbuild.oci.unpack import unpack_layers

FALSE_DIGEST = f"sha256:{'f' * 64}"


def layer_file(path: Path, part: tuple[int, int] | None = None) -> LayerFile:
    """The layer at `path`, or the layer at `part` (offset, length) of the archive at `path`.

    A layer that cannot be decompressed has the diff ID of an empty tar.
    """
    hashed = hashlib.sha256()
    if path.is_file():
        with path.open("rb") as file, contextlib.suppress(OSError, EOFError, zlib.error):
            raw: IO[bytes] = file
            if part is not None:
                file.seek(part[0])
                raw = io.BytesIO(file.read(part[1]))
            start = raw.tell()
            packed = raw.read(len(GZIP)) == GZIP
            raw.seek(start)
            stream = cast("IO[bytes]", gzip.GzipFile(fileobj=raw)) if packed else raw
            while chunk := stream.read(1 << 20):
                hashed.update(chunk)
    return LayerFile(path=path, part=part, diff_id=f"sha256:{hashed.hexdigest()}")


def unpack_layer_files(blobs: Iterable[Path], root: Path) -> None:
    """Unpack the layers at `blobs`, bottom layer first, to the folder `root`."""
    unpack_layers([layer_file(blob) for blob in blobs], root)
