"""The content of members, read piece by piece and checked while it is inflated.

Comes in: bytes or a `Slice` of a file on disk. Goes out: pieces of at most a MiB, so that memory
does not grow with the size of a file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self, cast

from isal import isal_zlib

from imgbuild.errors import IntegrityError
from imgbuild.oci.tar import Slice

CHUNK = 1 << 20
BROKEN = cast("type[Exception]", isal_zlib.IsalError)  # its type stub has an instance
OPEN_FILES = 64
REMEDY = "the file is damaged or was made to mislead: fetch it again, or use another version"


class Files:
    """Files that are open for reading at given offsets; at most `OPEN_FILES` at a time."""

    def __init__(self) -> None:
        self._open: dict[Path, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()

    def read(self, path: Path, offset: int, length: int) -> bytes:
        """Exactly `length` bytes at `offset`; IntegrityError if that cannot be read."""
        try:
            data = os.pread(self._descriptor(path), length, offset)
        except OSError as error:
            message = f"cannot read {path}: {error.strerror}"
            raise IntegrityError(message, hint="check that the file is readable") from error
        if len(data) != length:
            message = f"{path} ends at byte {offset + len(data)}, in the middle of a member"
            raise IntegrityError(message, hint=REMEDY)
        return data

    def chunks(self, part: Slice) -> Iterator[bytes]:
        """The bytes of `part` as they lie in the file, in pieces of `CHUNK`."""
        for start in range(0, part.length, CHUNK):
            yield self.read(part.path, part.offset + start, min(CHUNK, part.length - start))

    def _descriptor(self, path: Path) -> int:
        descriptor = self._open.get(path)
        if descriptor is None:
            if len(self._open) >= OPEN_FILES:
                os.close(self._open.pop(next(iter(self._open))))
            descriptor = self._open[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return descriptor


class Checker:
    """Watches content go by: IntegrityError if its size or CRC is not what was stated."""

    def __init__(self, where: str, size: int, crc: int) -> None:
        self._where = where
        self._size = size
        self._crc = crc
        self._seen = 0
        self._sum = 0

    def feed(self, piece: bytes) -> bytes:
        """Count `piece` and hand it back; stops as soon as the stated size is passed."""
        self._seen += len(piece)
        if self._seen > self._size:
            message = f"{self._where} holds more than the {self._size} bytes that are stated"
            raise IntegrityError(message, hint=REMEDY)
        self._sum = isal_zlib.crc32(piece, self._sum)
        return piece

    def finish(self) -> None:
        """The content has ended."""
        if self._seen != self._size:
            message = f"{self._where} holds {self._seen} bytes; {self._size} are stated"
            raise IntegrityError(message, hint=REMEDY)
        if self._sum != self._crc:
            message = f"{self._where} has CRC {self._sum:08x}; {self._crc:08x} is stated"
            raise IntegrityError(message, hint=REMEDY)


class Inflater:
    """Inflates one raw deflate stream; checks its end, and size and CRC of what comes out."""

    def __init__(self, where: str, size: int, crc: int) -> None:
        self._where = where
        self._checker = Checker(where, size, crc)
        self._stream = isal_zlib.decompressobj(-15)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """What the next `data` of the stream inflates to, in pieces of at most `CHUNK`."""
        while True:
            if self._stream.eof:
                message = f"{self._where}: its deflate stream ends before its compressed length"
                raise IntegrityError(message, hint=REMEDY)
            try:
                piece = self._stream.decompress(data, CHUNK)
            except BROKEN as error:
                message = f"{self._where} is no valid deflate stream ({error})"
                raise IntegrityError(message, hint=REMEDY) from error
            if piece:
                yield self._checker.feed(piece)
            data = self._stream.unconsumed_tail
            # A full piece may mean that more waits inside the decoder though all input is consumed.
            if self._ended() or (not data and len(piece) < CHUNK):
                return

    def _ended(self) -> bool:
        return self._stream.eof

    def finish(self) -> None:
        """The stream's compressed length is reached."""
        if not self._stream.eof:
            message = f"{self._where}: its deflate stream goes on past its compressed length"
            raise IntegrityError(message, hint=REMEDY)
        if self._stream.unused_data:
            message = f"{self._where}: its deflate stream ends before its compressed length"
            raise IntegrityError(message, hint=REMEDY)
        self._checker.finish()


def pieces(content: bytes | Slice, size: int, where: str, files: Files) -> Iterator[bytes]:
    """The content itself, inflated where it is a deflate stream, checked against its size and CRC.

    `where` names the member in errors (IntegrityError).
    """
    if isinstance(content, bytes):
        if len(content) != size:
            message = f"{where} holds {len(content)} bytes and is said to hold {size}"
            raise IntegrityError(message, hint="this is a fault of imgbuild: report it")
        yield content
        return
    if content.deflated:
        inflater = Inflater(where, size, content.crc)
        for chunk in files.chunks(content):
            yield from inflater.feed(chunk)
        inflater.finish()
        return
    checker = Checker(where, size, content.crc)
    for chunk in files.chunks(content):
        yield checker.feed(chunk)
    checker.finish()
