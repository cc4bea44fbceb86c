"""The names of a layer, without its contents: most of those need not even be inflated.

Comes in: a layer file. Goes out: its members, as `Reader` gives them. imgbuild's own layers hold
each larger file as a gzip member of its own (`oci.layer`), whose end can be found without what lies
before it: the file's size stands there, and behind it a member in which nothing is compressed. In a
plain tar contents are passed over as well. What is found so is a guess, if hardly ever a wrong one:
where it cannot be right the layer is read as any other is, and whoever reads contents afterwards
compares the members (`Seen`).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import BinaryIO, cast

from isal import isal_zlib

from imgbuild.errors import IntegrityError
from imgbuild.oci.layer import GZIP_HEADER
from imgbuild.oci.unpack import DAMAGED, GZIP, Entry, Reader, inflated

LEAST = 1 << 16  # bytes: a content that is smaller is inflated as soon as looked for
FIRST, MOST = 1 << 10, 1 << 20  # bytes of a gzip member that are inflated at once
STORED = struct.Struct("<BHH")  # of a block: its kind, its length, and that turned around
SIZE = struct.Struct("<I")  # the last bytes of a gzip member
TRAILER = 8  # bytes of its end: a checksum, and its size
BESIDE = SIZE.size + len(GZIP_HEADER) + STORED.size
WRAP = 1 << 32  # sizes are counted modulo this


class Seen:
    """The members of a layer in a row, as one number of this process: equal if all were equal."""

    def __init__(self) -> None:
        self.value = 0

    def add(self, entry: Entry) -> None:
        """One member more."""
        self.value = hash((
            self.value, entry.path, entry.type, entry.mode, entry.uid, entry.gid, entry.size,
            entry.mtime, entry.target, entry.device, *entry.xattrs.items(),
        ))  # fmt: skip


def entries(path: Path) -> list[Entry]:
    """The members of a layer; IntegrityError if it is damaged."""
    try:
        with path.open("rb", buffering=0) as file:
            compressed = os.pread(file.fileno(), len(GZIP), 0) == GZIP
            return list(_Names((_Gzip if compressed else _Plain)(file), str(path)))
    except (IntegrityError, *DAMAGED):
        with inflated(path) as stream_:
            return list(Reader(stream_, str(path)))


class _Plain:
    """A tar as it lies there."""

    def __init__(self, file: FileIO) -> None:
        self._file = file.fileno()
        self._size = os.fstat(self._file).st_size
        self._at = 0

    def read(self, length: int) -> bytes:
        """The next bytes; fewer at the end."""
        piece = os.pread(self._file, length, self._at)
        self._at += len(piece)
        return piece

    def skip(self, length: int) -> None:
        """Pass over `length` bytes."""
        self._at += length
        if self._at > self._size:
            raise EOFError


class _Gzip:
    """A tar in gzip members, one after another."""

    def __init__(self, file: FileIO) -> None:
        self._file = file.fileno()
        self._size = os.fstat(self._file).st_size
        self._at = 0  # in the file: what has not been given to a decompressor
        self._piece = b""  # of the tar: what was inflated last
        self._read = 0  # bytes of it that were read
        self._inflater: isal_zlib.Decompress | None = None  # none between members
        self._step = FIRST

    def read(self, length: int) -> bytes:
        """The next bytes; fewer at the end."""
        piece = self._piece[self._read : self._read + length]
        self._read += len(piece)
        while len(piece) < length and self._more():
            self._read = min(length - len(piece), len(self._piece))
            piece += self._piece[: self._read]
        return piece

    def skip(self, length: int) -> None:
        """Pass over `length` bytes, a content or its padding."""
        while length:
            passed = min(length, len(self._piece) - self._read)
            self._read += passed
            length -= passed
            if length >= LEAST and self._inflater is None and (end := self._end(length)):
                self._at = end
                return
            if length and not self._more():
                raise EOFError

    def _end(self, size: int) -> int:
        """Where the member that begins here ends, if it holds `size` bytes alone; 0 if not."""
        at = self._at + len(GZIP_HEADER) + TRAILER - SIZE.size
        last = at + size  # it would not be compressed if it were larger so
        while at < last:
            window = os.pread(self._file, MOST + BESIDE, at)
            found = SIZE.size - 1
            while (found := window.find(GZIP_HEADER, found + 1)) >= 0:
                if self._fits(window, found, size):
                    return at + found
            if len(window) < MOST + BESIDE:
                return 0
            at += MOST
        return 0

    def _fits(self, window: bytes, found: int, size: int) -> bool:
        """Whether a member of `size` bytes ends at `found`, and one that is stored begins."""
        block = found + len(GZIP_HEADER)
        if block + STORED.size > len(window):
            return False
        (told,) = SIZE.unpack_from(window, found - SIZE.size)
        kind, length, turned = STORED.unpack_from(window, block)
        return told == size % WRAP and kind in (0, 1) and length ^ turned == 0xFFFF

    def _more(self) -> bool:
        """Inflate the next bytes of the tar, as many as come; whether there were any."""
        while self._at < self._size or self._inflater is not None:
            if self._inflater is None:
                self._inflater, self._step = isal_zlib.decompressobj(31), FIRST
            given = os.pread(self._file, self._step, self._at)
            if not given:
                raise EOFError
            self._piece, self._read = self._inflater.decompress(given), 0
            self._at += len(given)
            self._step = min(self._step * 8, MOST)
            if self._inflater.eof:
                self._at -= len(self._inflater.unused_data)
                self._inflater = None
            if self._piece:
                return True
        return False


class _Names(Reader):
    """A reader that passes over contents."""

    def __init__(self, stream: _Gzip | _Plain, label: str) -> None:
        super().__init__(cast("BinaryIO", stream), label)  # of which it is only read
        self._skip = stream.skip

    def content(self) -> Iterator[bytes]:
        """Nothing: it is passed over."""
        self._skip(self._left)
        self._skip(self._pad)
        self._left = self._pad = 0
        return iter(())
