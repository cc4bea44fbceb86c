"""Reads the tar streams of layers, and interprets their headers and whiteouts."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import queue
import tarfile
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NoReturn, cast

import msgspec
from isal import igzip, isal_zlib

from imgbuild.errors import InputError, IntegrityError
from imgbuild.oci.tar import BLOCK, padding_size
from imgbuild.system.boundary import convert_read_errors, open_regular
from imgbuild.values import Digest

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

WHITEOUT = ".wh."
OPAQUE_NAME = ".wh..wh..opq"
CHUNK = 1 << 20
HEADER_LIMIT = 1 << 20  # bytes of one member's extended headers: paths and a few attributes
MEMBER_LIMIT = 1 << 20  # of one layer
NAMES_LIMIT = 256 << 20  # bytes of the paths, targets and attributes of one layer
ID_LIMIT = (1 << 32) - 1  # the last one means "no user" to the kernel
DEVICE_LIMIT = 1 << 20
LENGTH_DIGITS = 7  # of a PAX record, which is not longer than HEADER_LIMIT
XATTR = "SCHILY.xattr."
REMEDY = "the layer is damaged; run `imgbuild cache verify`, then build or pull the image again"
TIME_LIMIT = 1 << 33  # seconds: the range of every file system
GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
# isal's type stub declares its error class as an instance.
DAMAGE_ERRORS = (EOFError, zlib.error, cast("type[Exception]", isal_zlib.error))
FILES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
DEVICES = (tarfile.CHRTYPE, tarfile.BLKTYPE)

PathParts = tuple[str, ...]


class LayerFile(msgspec.Struct, frozen=True, kw_only=True):
    """A layer on disk: a file, or a `part` (offset, length) of an archive.

    `diff_id` is the digest of the tar according to the image configuration.
    """

    path: Path
    diff_id: Digest
    part: tuple[int, int] | None = None


class TarEntry(msgspec.Struct, frozen=True):
    """A member of a layer, with its extended headers applied. `mtime` is in whole seconds."""

    path: str
    type: bytes
    mode: int
    uid: int
    gid: int
    size: int
    mtime: int
    target: str
    device: tuple[int, int]
    xattrs: dict[str, str]


def paths_hidden_by(
    parts: PathParts, names: Callable[[PathParts], Iterable[str]]
) -> list[PathParts] | None:
    """Return the lower-layer paths that the member at `parts` hides, or None for no whiteout.

    `names` returns the names in a folder. It is called for opaque whiteouts. Raises IntegrityError
    if a path is outside of the image.
    """
    if not parts or not parts[-1].startswith(WHITEOUT):
        return None
    folder, name = parts[:-1], parts[-1]
    if name == OPAQUE_NAME:
        return [(*folder, child) for child in names(folder)]
    hidden = name.removeprefix(WHITEOUT)
    if hidden == "..":
        message = f"{'/'.join(parts)!r} points outside the image"
        raise IntegrityError(message, hint=REMEDY)
    if hidden.startswith(WHITEOUT) or hidden in ("", "."):  # the former are internal files of aufs
        return []
    return [(*folder, hidden)]


class TarReader:
    """Reads the members of a tar stream with ustar, GNU and PAX headers. Rejects sparse files."""

    def __init__(self, stream: BinaryIO, label: str, *, hint: str = REMEDY) -> None:
        self._stream = stream
        self._label = label
        self._hint = hint
        self._left = 0  # unread bytes of the current member's content
        self._pad = 0
        self._headers = 0  # bytes of extended headers: of all members, or of the current one
        self._members = 0
        self._names = 0

    def __iter__(self) -> Iterator[TarEntry]:
        with convert_read_errors(self._label, hint=self._hint):
            yield from self._entries()

    def _entries(self) -> Iterator[TarEntry]:
        fixed: dict[str, str] = {}
        fixed_size = 0
        while True:
            for _ in self.content():
                pass
            extended = dict(fixed)
            self._headers = fixed_size
            info = self._header()
            while info is not None and info.type in b"xgLK":
                text = self._text(info)
                fixed_size += info.size if info.type == b"g" else 0
                if info.type == b"g":
                    fixed |= self._records(text)
                    extended = {**fixed, **extended}
                elif info.type == b"x":
                    extended |= self._records(text)
                else:
                    key = "path" if info.type == b"L" else "linkpath"
                    extended[key] = os.fsdecode(text.rstrip(b"\0"))
                info = self._header()
            if info is None:
                return
            entry = self._entry(info, extended)
            self._count_entry(entry)
            yield entry

    def _count_entry(self, entry: TarEntry) -> None:
        self._members += 1
        self._names += len(entry.path) + len(entry.target)
        self._names += sum(len(key) + len(value) for key, value in entry.xattrs.items())
        if self._members > MEMBER_LIMIT or self._names > NAMES_LIMIT:
            self._refuse_archive(
                f"more than {MEMBER_LIMIT} members, or {NAMES_LIMIT} bytes of names"
            )

    def content(self) -> Iterator[bytes]:
        """Yield the remaining content of the current member."""
        while self._left:
            chunk = self._read_exactly(min(CHUNK, self._left))
            self._left -= len(chunk)
            yield chunk
        if self._pad:
            self._read_exactly(self._pad)
            self._pad = 0

    def _entry(self, info: tarfile.TarInfo, extended: dict[str, str]) -> TarEntry:
        if info.type == tarfile.GNUTYPE_SPARSE or any("GNU.sparse" in key for key in extended):
            name = extended.get("GNU.sparse.name", extended.get("path", info.name))
            self._refuse_archive(f"{name!r} is sparse")
        try:
            size = int(extended.get("size", info.size))
            entry = TarEntry(
                path=extended.get("path", info.name),
                type=info.type,
                mode=info.mode & 0o7777,
                uid=int(extended.get("uid", info.uid)),
                gid=int(extended.get("gid", info.gid)),
                size=size if info.type in FILES else 0,
                mtime=max(0, min(int(float(extended.get("mtime", info.mtime))), TIME_LIMIT)),
                target=extended.get("linkpath", info.linkname),
                device=(info.devmajor, info.devminor) if info.type in DEVICES else (0, 0),
                xattrs={
                    key.removeprefix(XATTR): value
                    for key, value in extended.items()
                    if key.startswith(XATTR)
                },
            )
        except (ValueError, OverflowError) as error:
            self._refuse_archive(f"{info.name!r} has a bad header: {error}")
        names = "".join((entry.target, *entry.xattrs))
        if not 0 <= min(entry.uid, entry.gid) <= max(entry.uid, entry.gid) < ID_LIMIT:
            self._refuse_archive(f"{entry.path!r} has the owner {entry.uid}:{entry.gid}")
        if not 0 <= min(entry.device) <= max(entry.device) < DEVICE_LIMIT:
            self._refuse_archive(f"{entry.path!r} has the device numbers {entry.device}")
        if entry.size < 0 or "\0" in names or "" in entry.xattrs:
            self._refuse_archive(f"{entry.path!r} has a bad header")
        if entry.type in FILES and entry.path.endswith("/"):  # the mark of a folder in old tars
            entry = msgspec.structs.replace(entry, type=tarfile.DIRTYPE)
        self._left, self._pad = entry.size, padding_size(entry.size)
        return entry

    def _header(self) -> tarfile.TarInfo | None:
        block = self._read_exactly(BLOCK)
        if not any(block):
            while self._stream.read(CHUNK):  # what a builder's record size left behind the end
                pass
            return None
        try:
            return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            self._refuse_archive(f"a tar header is damaged ({error})")

    def _text(self, info: tarfile.TarInfo) -> bytes:
        self._headers += max(0, info.size)
        if info.size < 0 or self._headers > HEADER_LIMIT:
            self._refuse_archive(f"an extended header of {info.size} bytes (limit {HEADER_LIMIT})")
        text = self._read_exactly(info.size)
        self._read_exactly(padding_size(info.size))
        return text

    def _records(self, data: bytes) -> dict[str, str]:
        """Parse PAX records: LENGTH, a space, KEY=VALUE and a line feed."""
        records = {}
        while data:
            digits, _, _ = data.partition(b" ")
            length = int(digits) if digits.isdigit() and len(digits) <= LENGTH_DIGITS else 0
            key, equals, value = data[len(digits) + 1 : length - 1].partition(b"=")
            if not equals or data[length - 1 : length] != b"\n":
                self._refuse_archive("a PAX header is damaged")
            records[os.fsdecode(key)] = os.fsdecode(value)
            data = data[length:]
        return records

    def _read_exactly(self, length: int) -> bytes:
        try:
            data = self._stream.read(length)
        except DAMAGE_ERRORS as error:
            self._refuse_archive(str(error))
        except OSError as error:
            if error.errno is not None:
                raise
            self._refuse_archive(str(error))  # gzip.BadGzipFile has no number
        if len(data) != length:
            self._refuse_archive("the archive is truncated")
        return data

    def _refuse_archive(self, text: str) -> NoReturn:
        message = f"{self._label}: {text}"
        raise IntegrityError(message, hint=self._hint)


@contextlib.contextmanager
def open_decompressed(
    path: Path,
    part: tuple[int, int] | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> Iterator[BinaryIO]:
    """Open a file, or the `part` (offset, length) of a file, and decompress it if it is gzipped.

    `advance` is called after each read with the number of bytes. Raises InputError if the file is
    compressed with zstd.
    """
    with contextlib.ExitStack() as opened:
        raw = opened.enter_context(io.FileIO(path, opener=open_regular))
        offset, length = part or (0, os.fstat(raw.fileno()).st_size)
        file = io.BufferedReader(_FilePart(raw, offset, length, advance), CHUNK)
        magic = file.peek(len(ZSTD))
        if magic.startswith(ZSTD):
            message = f"{path} is compressed with zstd, which is unsupported"
            raise InputError(message, hint="use an image with gzip layers")
        if magic.startswith(GZIP):
            yield cast("BinaryIO", igzip.IGzipFile(fileobj=file, mode="rb"))  # type: ignore[no-untyped-call]
        else:
            yield cast("BinaryIO", file)


@contextlib.contextmanager
def open_inflated(
    layer: LayerFile, advance: Callable[[int], None] = lambda _: None
) -> Iterator[BinaryIO]:
    """Open the tar in a layer file. A separate thread decompresses and hashes it.

    For `advance` and other errors, see `open_decompressed`. Raises IntegrityError at the end of the
    tar if its digest is not `layer.diff_id`.
    """
    with contextlib.ExitStack() as opened:
        plain = opened.enter_context(open_decompressed(layer.path, layer.part, advance))
        ahead = opened.enter_context(_ReadAhead(plain))
        tar = io.BufferedReader(ahead, CHUNK)
        yield cast("BinaryIO", tar)
        with convert_read_errors(str(layer.path), hint=REMEDY):
            while tar.read(CHUNK):
                pass
        if ahead.digest != layer.diff_id:
            message = (
                f"{layer.path}: the content has the digest {ahead.digest}, but the image's"
                f" configuration has the diff ID {layer.diff_id}"
            )
            raise IntegrityError(message, hint=REMEDY)


def check_digests(
    layer: LayerFile, digest: Digest, advance: Callable[[int], None] = lambda _: None
) -> None:
    """Raise IntegrityError if a layer's tar does not match the diff ID.

    The message contains `digest`, the digest of the layer.
    """
    try:
        with open_inflated(layer, advance):
            pass
    except IntegrityError as error:
        message = f"layer {digest}: {error.message}"
        raise IntegrityError(message, hint=error.hint) from error


class _ReadAhead(io.RawIOBase):
    """Reads and hashes the bytes of `stream` in a thread, at most two pieces ahead."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__()
        self._stream = stream
        self._hash = hashlib.sha256()
        self._pieces: queue.Queue[bytes | Exception] = queue.Queue(2)
        self._piece = memoryview(b"")
        self._ended = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read_in_thread, daemon=True)
        self._thread.start()

    @property
    def digest(self) -> Digest:
        """The digest of all bytes, available at the end."""
        return f"sha256:{self._hash.hexdigest()}"

    def _read_in_thread(self) -> None:
        piece: bytes | Exception = b"-"
        while piece and not isinstance(piece, Exception):
            try:
                piece = self._stream.read(CHUNK)
                self._hash.update(piece)
            except Exception as error:  # noqa: BLE001 - raised by the thread that reads
                piece = error
            while not self._stop.is_set():
                with contextlib.suppress(queue.Full):
                    self._pieces.put(piece, timeout=0.1)
                    break
            else:
                return

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        if not self._piece and not self._ended:
            piece = self._pieces.get()
            self._ended = not piece or isinstance(piece, Exception)
            if isinstance(piece, Exception):
                raise piece
            self._piece = memoryview(piece)
        view = memoryview(buffer).cast("B")
        size = min(len(view), len(self._piece))
        view[:size] = self._piece[:size]
        self._piece = self._piece[size:]
        return size

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        super().close()


class _FilePart(io.RawIOBase):
    def __init__(
        self, file: io.FileIO, offset: int, length: int, advance: Callable[[int], None]
    ) -> None:
        super().__init__()
        self._file = file
        self._offset = offset
        self._left = length
        self._advance = advance

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        size = os.preadv(self._file.fileno(), [view[: self._left]], self._offset)
        self._offset += size
        self._left -= size
        self._advance(size)
        return size
