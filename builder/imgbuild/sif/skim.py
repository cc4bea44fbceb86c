"""Lists a layer's members without decompressing their contents.

In imgbuild's layers, each larger file is a gzip member (`oci.layer`). The end of a member is
located without decompressing it: the trailer contains the size of the file, and an uncompressed
member follows. In an uncompressed tar, contents are skipped, too. If the result is inconsistent,
the layer is read in full. The result can be wrong in rare cases, so callers that read the contents
later compare the members (`MembersHash`).
"""

# A separate module: an algorithm.
from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from io import FileIO
from typing import BinaryIO, cast

from isal import isal_zlib

from imgbuild.errors import IntegrityError
from imgbuild.oci.layer import GZIP_HEADER
from imgbuild.oci.reader import DAMAGE_ERRORS, GZIP, LayerFile, TarEntry, TarReader, open_inflated
from imgbuild.system.boundary import open_regular

MINIMUM_SKIP = 1 << 16  # bytes: inflating a smaller content is as fast as searching for its end
FIRST, MOST = 1 << 10, 1 << 20  # bytes of a gzip member that are inflated at once
STORED_STRUCT = struct.Struct("<BHH")  # of a stored block: type, length, and its complement
SIZE = struct.Struct("<I")  # the last bytes of a gzip member
TRAILER = 8  # bytes of a gzip trailer: a checksum, and the size
OVERHEAD_SIZE = SIZE.size + len(GZIP_HEADER) + STORED_STRUCT.size
SIZE_MODULUS = 1 << 32  # sizes are counted modulo this


class MembersHash:
    """A hash of a layer's members in order, for comparisons within this process."""

    def __init__(self) -> None:
        self.value = 0

    def add(self, entry: TarEntry) -> None:
        """Add a member to the hash."""
        self.value = hash((
            self.value, entry.path, entry.type, entry.mode, entry.uid, entry.gid, entry.size,
            entry.mtime, entry.target, entry.device, *entry.xattrs.items(),
        ))  # fmt: skip


def layer_entries(layer: LayerFile) -> list[TarEntry]:
    """Return the members of a layer. Raises IntegrityError if it is damaged.

    The diff ID is checked only if the layer is read in full.
    """
    try:
        with FileIO(layer.path, opener=open_regular) as file:
            compressed = os.pread(file.fileno(), len(GZIP), 0) == GZIP
            return list(_NameReader((_GzipTar if compressed else _PlainTar)(file), str(layer.path)))
    except (IntegrityError, *DAMAGE_ERRORS):
        with open_inflated(layer) as stream_:
            return list(TarReader(stream_, str(layer.path)))


class _PlainTar:
    def __init__(self, file: FileIO) -> None:
        self._file = file.fileno()
        self._size = os.fstat(self._file).st_size
        self._at = 0

    def read(self, length: int) -> bytes:
        piece = os.pread(self._file, length, self._at)
        self._at += len(piece)
        return piece

    def skip(self, length: int) -> None:
        """Skip `length` bytes. Raises EOFError if there are fewer."""
        self._at += length
        if self._at > self._size:
            raise EOFError


class _GzipTar:
    def __init__(self, file: FileIO) -> None:
        self._file = file.fileno()
        self._size = os.fstat(self._file).st_size
        self._at = 0  # offset in the file of the next bytes to inflate
        self._piece = b""  # bytes of the tar that were inflated last
        self._read = 0  # how many of them were read
        self._inflater: isal_zlib.Decompress | None = None  # none between members
        self._step = FIRST

    def read(self, length: int) -> bytes:
        piece = self._piece[self._read : self._read + length]
        self._read += len(piece)
        while len(piece) < length and self._inflate_more():
            self._read = min(length - len(piece), len(self._piece))
            piece += self._piece[: self._read]
        return piece

    def skip(self, length: int) -> None:
        """Skip `length` bytes of content or padding. Raises EOFError if there are fewer."""
        while length:
            available = min(length, len(self._piece) - self._read)
            self._read += available
            length -= available
            if (
                length >= MINIMUM_SKIP
                and self._inflater is None
                and (end := self._member_end(length))
            ):
                self._at = end
                return
            if length and not self._inflate_more():
                raise EOFError

    def _member_end(self, size: int) -> int:
        """Return the end of the gzip member of `size` bytes at the current offset, or 0."""
        at = self._at + len(GZIP_HEADER) + TRAILER - SIZE.size
        last = at + size  # a content that compression makes larger is not compressed
        while at < last:
            window = os.pread(self._file, MOST + OVERHEAD_SIZE, at)
            offset = SIZE.size - 1
            while (offset := window.find(GZIP_HEADER, offset + 1)) >= 0:
                if self._member_fits(window, offset, size):
                    return at + offset
            if len(window) < MOST + OVERHEAD_SIZE:
                return 0
            at += MOST
        return 0

    def _member_fits(self, window: bytes, offset: int, size: int) -> bool:
        """Return whether `size` bytes end at `offset`, where a stored member starts."""
        block = offset + len(GZIP_HEADER)
        if block + STORED_STRUCT.size > len(window):
            return False
        (stated,) = SIZE.unpack_from(window, offset - SIZE.size)
        kind, length, complement = STORED_STRUCT.unpack_from(window, block)
        return stated == size % SIZE_MODULUS and kind in (0, 1) and length ^ complement == 0xFFFF

    def _inflate_more(self) -> bool:
        """Inflate more bytes of the tar. Returns False at the end."""
        while self._at < self._size or self._inflater is not None:
            if self._inflater is None:
                self._inflater, self._step = isal_zlib.decompressobj(31), FIRST
            given = os.pread(self._file, self._step, self._at)
            if not given and len(self._piece) < MOST:  # after a full piece there may be more
                raise EOFError
            self._piece, self._read = self._inflater.decompress(given, MOST), 0
            self._at += len(given)
            self._step = min(self._step * 8, MOST)
            if self._inflater.eof:
                self._at -= len(self._inflater.unused_data)
                self._inflater = None
            else:
                self._at -= len(self._inflater.unconsumed_tail)
            if self._piece:
                return True
        return False


class _NameReader(TarReader):
    def __init__(self, stream: _GzipTar | _PlainTar, label: str) -> None:
        super().__init__(cast("BinaryIO", stream), label)  # it only calls `read`
        self._skip = stream.skip

    def content(self) -> Iterator[bytes]:
        self._skip(self._left)
        self._skip(self._pad)
        self._left = self._pad = 0
        return iter(())
