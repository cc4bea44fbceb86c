"""Layers to a root file system on disk, with or without root.

Comes in: layer files, bottom first. Goes out: a folder. As root it has the image's owners;
otherwise all is the caller's own. One thread inflates, one writes. Nothing is written outside the
folder, whatever a layer says (see `tree`).
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NoReturn, cast

import msgspec
from isal import igzip_threaded, isal_zlib

from imgbuild.errors import InputError, IntegrityError, WorkFailed
from imgbuild.oci.tar import BLOCK, padding
from imgbuild.oci.tree import RootFolder
from imgbuild.system.reporter import SILENT, ProgressBar, Reporter

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"
CHUNK = 1 << 20
HEADER_LIMIT = 1 << 20  # of a PAX header: paths and a few attributes
XATTR = "SCHILY.xattr."
REMEDY = "the layer is damaged: remove it and build or pull again"
TIME_LIMIT = 1 << 33  # seconds: what every file system can hold
GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# The stub of isal calls its error class an instance.
DAMAGED = (EOFError, zlib.error, cast("type[Exception]", isal_zlib.error))
_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)

Folders = dict[tuple[str, ...], tuple[int, int]]  # parts of a path → mode and time


class Entry(msgspec.Struct, frozen=True):
    """One member of a layer, its extended headers applied. `mtime` is in whole seconds."""

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


def unpack(
    blobs: Sequence[Path], root: Path, *, unpacked: int | None = None, reporter: Reporter = SILENT
) -> None:
    """Unpack `blobs`, bottom first, into the folder `root`, which is new or empty.

    `unpacked` is their size in bytes once inflated, for the progress bar. IntegrityError if a layer
    is damaged or unsafe, WorkFailed if the disk refuses.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        if any(root.iterdir()):
            message = f"{root} is not empty"
            raise InputError(message, hint="name another folder, or empty this one")
        root.chmod(0o755)
        with RootFolder(root) as tree, reporter.progress(f"unpacking {root.name}", unpacked) as bar:
            folders: Folders = {}
            for blob in blobs:
                with inflated(blob) as stream:
                    _Writer(tree, folders, bar, reporter).write(Reader(stream, str(blob)))
            _settle(tree, folders)
    except OSError as error:
        message = f"cannot unpack to {root}: {error.filename or ''}: {error.strerror or error}"
        raise WorkFailed(message, hint="make room, or name a folder on another disk") from error


class Reader:
    """The members of one tar stream: ustar, GNU and PAX headers; sparse files are refused."""

    def __init__(self, stream: BinaryIO, label: str) -> None:
        self._stream = stream
        self._label = label
        self._left = 0  # bytes of the current member's content that nobody has read
        self._pad = 0

    def __iter__(self) -> Iterator[Entry]:
        fixed: dict[str, str] = {}
        while True:
            for _ in self.content():
                pass
            extended = dict(fixed)
            info = self._header()
            while info is not None and info.type in b"xgLK":
                text = self._text(info)
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
            yield self._entry(info, extended)

    def content(self) -> Iterator[bytes]:
        """What is left of the content of the member that was just given."""
        while self._left:
            chunk = self._read(min(CHUNK, self._left))
            self._left -= len(chunk)
            yield chunk
        if self._pad:
            self._read(self._pad)
            self._pad = 0

    def _entry(self, info: tarfile.TarInfo, extended: dict[str, str]) -> Entry:
        if info.type == tarfile.GNUTYPE_SPARSE or any("GNU.sparse" in key for key in extended):
            self._refuse(f"{info.name!r} is sparse")
        try:
            size = int(extended.get("size", info.size))
            entry = Entry(
                path=extended.get("path", info.name),
                type=info.type,
                mode=info.mode & 0o7777,
                uid=int(extended.get("uid", info.uid)),
                gid=int(extended.get("gid", info.gid)),
                size=size if info.type in _FILES else 0,
                mtime=max(0, min(int(float(extended.get("mtime", info.mtime))), TIME_LIMIT)),
                target=extended.get("linkpath", info.linkname),
                device=(info.devmajor, info.devminor),
                xattrs={
                    key.removeprefix(XATTR): value
                    for key, value in extended.items()
                    if key.startswith(XATTR)
                },
            )
        except (ValueError, OverflowError) as error:
            self._refuse(f"{info.name!r} has a bad header: {error}")
        if min(entry.size, entry.uid, entry.gid) < 0 or "\0" in entry.target:
            self._refuse(f"{entry.path!r} has a bad header")
        if entry.type in _FILES and entry.path.endswith("/"):  # how old tars say folder
            entry = msgspec.structs.replace(entry, type=tarfile.DIRTYPE)
        self._left, self._pad = entry.size, padding(entry.size)
        return entry

    def _header(self) -> tarfile.TarInfo | None:
        block = self._read(BLOCK)
        if not any(block):
            while self._stream.read(CHUNK):  # what a builder's record size left behind the end
                pass
            return None
        try:
            return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            self._refuse(f"a tar header is damaged ({error})")

    def _text(self, info: tarfile.TarInfo) -> bytes:
        if info.size > HEADER_LIMIT:
            self._refuse(f"an extended header of {info.size} bytes")
        text = self._read(info.size)
        self._read(padding(info.size))
        return text

    def _records(self, data: bytes) -> dict[str, str]:
        """PAX records, each LENGTH, a space, KEY=VALUE and a line feed."""
        records = {}
        while data:
            digits, _, _ = data.partition(b" ")
            length = int(digits) if digits.isdigit() else 0
            key, equals, value = data[len(digits) + 1 : length - 1].partition(b"=")
            if not equals or data[length - 1 : length] != b"\n":
                self._refuse("a PAX header is damaged")
            records[os.fsdecode(key)] = os.fsdecode(value)
            data = data[length:]
        return records

    def _read(self, length: int) -> bytes:
        try:
            data = self._stream.read(length)
        except DAMAGED as error:
            self._refuse(str(error))
        except OSError as error:
            if error.errno is not None:
                raise
            self._refuse(str(error))  # gzip.BadGzipFile has no number
        if len(data) != length:
            self._refuse("ends in the middle of a member")
        return data

    def _refuse(self, text: str) -> NoReturn:
        message = f"{self._label}: {text}"
        raise IntegrityError(message, hint=REMEDY)


@contextlib.contextmanager
def inflated(blob: Path, part: tuple[int, int] | None = None) -> Iterator[BinaryIO]:
    """The tar in a layer file, inflated by a thread of its own if it is a gzip.

    `part` is offset and length of the layer in `blob`, where that is an archive of a whole image.
    InputError if it is compressed with zstd.
    """
    with contextlib.ExitStack() as opened:
        raw: io.RawIOBase = opened.enter_context(blob.open("rb", buffering=0))
        if part is not None:
            raw = _Part(cast("io.FileIO", raw), *part)
        file = io.BufferedReader(raw, CHUNK)
        magic = file.peek(len(ZSTD))
        if magic.startswith(ZSTD):
            message = f"{blob} is compressed with zstd, which imgbuild does not unpack"
            raise InputError(message, hint="use a base image whose layers are gzip")
        stream = cast("BinaryIO", file)
        if magic.startswith(GZIP):
            threaded = igzip_threaded.open(file, "rb", threads=1, block_size=CHUNK)  # type: ignore[no-untyped-call]
            stream = cast("BinaryIO", opened.enter_context(threaded))
        yield stream


class _Part(io.RawIOBase):
    """The bytes of `file` from `offset` on, `length` of them."""

    def __init__(self, file: io.FileIO, offset: int, length: int) -> None:
        super().__init__()
        self._file = file
        self._offset = offset
        self._left = length

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        data = os.pread(self._file.fileno(), min(len(view), self._left), self._offset)
        view[: len(data)] = data
        self._offset += len(data)
        self._left -= len(data)
        return len(data)


class _Writer:
    """Writes the members of one layer. `folders` gathers what is set when all layers are there."""

    def __init__(
        self, tree: RootFolder, folders: Folders, bar: ProgressBar, reporter: Reporter
    ) -> None:
        self._tree = tree
        self._folders = folders
        self._bar = bar
        self._reporter = reporter
        self._own: set[tuple[str, ...]] = set()  # what this layer wrote: whiteouts spare it
        self._root = os.geteuid() == 0

    def write(self, reader: Reader) -> None:
        for entry in reader:
            parts = self._tree.parts(entry.path)
            name = parts[-1] if parts else ""
            if name.startswith(WHITEOUT):
                self._white_out(parts)
                continue
            if entry.type == tarfile.DIRTYPE:
                self._folder(parts, entry)
            elif parts:
                try:
                    self._make(parts, entry, reader)
                except FileExistsError:
                    self._remove(parts)
                    self._make(parts, entry, reader)
            place = self._tree.place(parts) if parts else ()
            while place and place not in self._own:
                self._own.add(place)
                place = place[:-1]

    def _white_out(self, parts: tuple[str, ...]) -> None:
        parent, name = parts[:-1], parts[-1]
        if name == OPAQUE:
            hidden = [(*parent, child) for child in self._tree.names(parent)]
        elif name.startswith(WHITEOUT * 2):  # aufs keeps its own books in a layer
            return
        else:
            hidden = [(*parent, *self._tree.parts(name.removeprefix(WHITEOUT)))]
        with contextlib.suppress(FileNotFoundError):
            for path in hidden:
                if path != parent:
                    self._hide(self._tree.place(path, make=False))

    def _hide(self, place: tuple[str, ...]) -> None:
        """Take away what lower layers have there; what this layer wrote stays."""
        if place not in self._own:
            self._remove(place, make=False)
        elif self._tree.is_folder(place):
            for child in self._tree.names(place):
                self._hide((*place, child))

    def _remove(self, parts: tuple[str, ...], *, make: bool = True) -> None:
        """Remove what lies there; modes and times of folders in it are not those of a later one."""
        place = self._tree.place(parts, make=make)
        if self._tree.remove(parts, make=make):
            for gone in [folder for folder in self._folders if folder[: len(place)] == place]:
                del self._folders[gone]

    def _folder(self, parts: tuple[str, ...], entry: Entry) -> None:
        if not parts:
            self._folders[parts] = (entry.mode, entry.mtime)
            return
        parent, name = self._tree.folder(parts[:-1]), parts[-1]
        try:
            os.mkdir(name, 0o700, dir_fd=parent)
        except FileExistsError:
            found = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if not stat.S_ISDIR(found.st_mode):
                self._tree.remove(parts)
                parent = self._tree.folder(parts[:-1])
                os.mkdir(name, 0o700, dir_fd=parent)
        self._chown(name, parent, entry)
        # Mode and time are set at the end: it may forbid writing, and writing moves its time.
        self._folders[self._tree.place(parts)] = (entry.mode, entry.mtime)

    def _make(self, parts: tuple[str, ...], entry: Entry, reader: Reader) -> None:
        parent, name = self._tree.folder(parts[:-1]), parts[-1]
        if entry.type in _FILES:
            self._file(name, parent, entry, reader)
            return
        if entry.type == tarfile.LNKTYPE:
            self._hard(name, parent, entry)
            return
        if entry.type == tarfile.SYMTYPE:
            os.symlink(entry.target, name, dir_fd=parent)
        elif entry.type == tarfile.FIFOTYPE:
            os.mkfifo(name, entry.mode, dir_fd=parent)
        elif entry.type in (tarfile.CHRTYPE, tarfile.BLKTYPE):
            if not self._root:
                self._reporter.detail(f"{entry.path}: only root can make a device, left out")
                return
            kind = stat.S_IFCHR if entry.type == tarfile.CHRTYPE else stat.S_IFBLK
            os.mknod(name, kind | entry.mode, os.makedev(*entry.device), dir_fd=parent)
        else:
            message = f"{entry.path!r} is of the unknown type {entry.type!r}"
            raise IntegrityError(message, hint="the layer was not made for Linux")
        self._chown(name, parent, entry)
        if entry.type != tarfile.SYMTYPE:
            os.chmod(name, entry.mode, dir_fd=parent)
        times = (entry.mtime, entry.mtime)
        os.utime(name, times, dir_fd=parent, follow_symlinks=False)

    def _file(self, name: str, parent: int, entry: Entry, reader: Reader) -> None:
        file = os.open(name, _CREATE, 0o600, dir_fd=parent)
        try:
            for chunk in reader.content():
                view = memoryview(chunk)
                while view:
                    view = view[os.write(file, view) :]
                self._bar.advance(len(chunk))
            if self._root:
                os.fchown(file, entry.uid, entry.gid)
            os.fchmod(file, entry.mode)  # after the owner, whose change drops setuid
            for key, value in entry.xattrs.items():
                self._xattr(file, key, value)
            os.utime(file, (entry.mtime, entry.mtime))
        finally:
            os.close(file)

    def _xattr(self, file: int, key: str, value: str) -> None:
        try:
            os.setxattr(file, key, os.fsencode(value))
        except OSError as error:  # not root, or a file system that has none
            self._reporter.detail(f"attribute {key} left out: {error.strerror}")

    def _hard(self, name: str, parent: int, entry: Entry) -> None:
        *above, last = self._tree.parts(entry.target) or ("",)
        try:
            source = self._tree.folder(tuple(above), make=False)
            os.link(last, name, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError as error:
            message = f"{entry.path!r} is a hard link to {entry.target!r}, which is not there"
            raise IntegrityError(message, hint=REMEDY) from error

    def _chown(self, name: str, parent: int, entry: Entry) -> None:
        if self._root:
            os.chown(name, entry.uid, entry.gid, dir_fd=parent, follow_symlinks=False)


def _settle(tree: RootFolder, folders: Folders) -> None:
    """Give folders their mode and time, deepest first; passes over those that are gone by now."""
    for parts, (mode, mtime) in sorted(folders.items(), reverse=True):
        with contextlib.suppress(FileNotFoundError, IntegrityError):
            here = Path(f"/proc/self/fd/{tree.folder(parts, make=False)}")
            here.chmod(mode)
            os.utime(here, (mtime, mtime))
