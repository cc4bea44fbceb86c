"""Reads the contents of layer members in pieces of at most 1 MiB, and checks sizes and CRCs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Self, cast

from isal import isal_zlib

from imgbuild.errors import IntegrityError
from imgbuild.oci.tar import FileSlice
from imgbuild.system.boundary import open_regular

CHUNK = 1 << 20
INFLATE_ERROR = cast("type[Exception]", isal_zlib.IsalError)  # its type stub declares an instance
OPEN_FILES = 64
REMEDY = "the file is damaged or malicious; download it again, or use another version"


class FileReader:
    """Reads from files at given offsets. At most `OPEN_FILES` files are open at a time."""

    def __init__(self) -> None:
        self._open: dict[Path, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()

    def read(self, path: Path, offset: int, length: int) -> bytes:
        """Read exactly `length` bytes at `offset`. Raises IntegrityError on failure."""
        try:
            data = os.pread(self._descriptor(path), length, offset)
        except OSError as error:
            message = f"cannot read {path}: {error.strerror}"
            raise IntegrityError(message, hint="check that the file is readable") from error
        if len(data) != length:
            message = f"{path} is truncated: it ends at byte {offset + len(data)}, inside a member"
            raise IntegrityError(message, hint=REMEDY)
        return data

    def chunks(self, part: FileSlice) -> Iterator[bytes]:
        """Yield the stored bytes of `part`, without inflating them, in pieces of `CHUNK`."""
        for start in range(0, part.length, CHUNK):
            yield self.read(part.path, part.offset + start, min(CHUNK, part.length - start))

    def _descriptor(self, path: Path) -> int:
        descriptor = self._open.get(path)
        if descriptor is None:
            if len(self._open) >= OPEN_FILES:
                os.close(self._open.pop(next(iter(self._open))))
            descriptor = self._open[path] = open_regular(path)
        return descriptor


class ContentChecker:
    """Checks the size and CRC of content while it is read. Raises IntegrityError for a mismatch."""

    def __init__(self, where: str, size: int, crc: int) -> None:
        self._where = where
        self._size = size
        self._crc = crc
        self._seen = 0
        self._sum = 0

    def add_piece(self, piece: bytes) -> bytes:
        """Count and return `piece`. Raises IntegrityError if the content is too large."""
        self._seen += len(piece)
        if self._seen > self._size:
            message = f"{self._where} has more than the expected {self._size} bytes"
            raise IntegrityError(message, hint=REMEDY)
        self._sum = isal_zlib.crc32(piece, self._sum)
        return piece

    def finish(self) -> None:
        """Check the size and CRC at the end of the content."""
        if self._seen != self._size:
            message = f"{self._where} has {self._seen} bytes (expected {self._size})"
            raise IntegrityError(message, hint=REMEDY)
        if self._sum != self._crc:
            message = f"{self._where} has CRC {self._sum:08x} (expected {self._crc:08x})"
            raise IntegrityError(message, hint=REMEDY)


class DeflateInflater:
    """Inflates a raw deflate stream, and checks its length and the output's size and CRC."""

    def __init__(self, where: str, size: int, crc: int) -> None:
        self._where = where
        self._checker = ContentChecker(where, size, crc)
        self._stream = isal_zlib.decompressobj(-15)

    def inflate(self, data: bytes) -> Iterator[bytes]:
        """Inflate `data`, the next bytes of the stream, in pieces of at most `CHUNK`."""
        while True:
            if self._stream.eof:
                message = f"{self._where}: the deflate stream is shorter than its compressed length"
                raise IntegrityError(message, hint=REMEDY)
            try:
                piece = self._stream.decompress(data, CHUNK)
            except INFLATE_ERROR as error:
                message = f"{self._where} is not a valid deflate stream ({error})"
                raise IntegrityError(message, hint=REMEDY) from error
            if piece:
                yield self._checker.add_piece(piece)
            data = self._stream.unconsumed_tail
            # After a full piece the decoder may hold more output, though all input is consumed.
            if self._has_ended() or (not data and len(piece) < CHUNK):
                return

    def _has_ended(self) -> bool:
        return self._stream.eof

    def finish(self) -> None:
        """Check that the stream ends at its compressed length."""
        if not self._stream.eof:
            message = f"{self._where}: the deflate stream is longer than its compressed length"
            raise IntegrityError(message, hint=REMEDY)
        if self._stream.unused_data:
            message = f"{self._where}: the deflate stream is shorter than its compressed length"
            raise IntegrityError(message, hint=REMEDY)
        self._checker.finish()


def content_pieces(
    content: bytes | FileSlice, size: int, where: str, files: FileReader
) -> Iterator[bytes]:
    """Yield the content, inflated if necessary, and check its size and CRC.

    Raises IntegrityError, with `where` in the message, if size or CRC differ from the expected
    values.
    """
    if isinstance(content, bytes):
        if len(content) != size:
            message = f"{where} has {len(content)} bytes (expected {size})"
            raise IntegrityError(message, hint="this is a bug in imgbuild; please report it")
        yield content
        return
    if content.deflated:
        inflater = DeflateInflater(where, size, content.crc)
        for chunk in files.chunks(content):
            yield from inflater.inflate(chunk)
        inflater.finish()
        return
    checker = ContentChecker(where, size, content.crc)
    for chunk in files.chunks(content):
        yield checker.add_piece(chunk)
    checker.finish()
