"""Reads layer files together with the diff IDs of their content."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO, cast

from imgbuild.oci.reader import GZIP, LayerFile
from imgbuild.oci.unpack import unpack_layers

FALSE_DIGEST = f"sha256:{'f' * 64}"


def layer_file(path: Path) -> LayerFile:
    """The layer at `path`. If it cannot be decompressed, it has the diff ID of an empty tar."""
    hashed = hashlib.sha256()
    if path.is_file():
        with path.open("rb") as file, contextlib.suppress(OSError, EOFError, zlib.error):
            packed = file.read(len(GZIP)) == GZIP
            file.seek(0)
            stream = cast("IO[bytes]", gzip.GzipFile(fileobj=file)) if packed else file
            while chunk := stream.read(1 << 20):
                hashed.update(chunk)
    return LayerFile(path=path, diff_id=f"sha256:{hashed.hexdigest()}")


def unpack_layer_files(blobs: Iterable[Path], root: Path) -> None:
    """Unpack the layers at `blobs`, bottom layer first, to the folder `root`."""
    unpack_layers([layer_file(blob) for blob in blobs], root)
