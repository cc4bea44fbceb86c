"""Unpacks the layers of an image to a root file system on disk, with or without root.

As root, files have the image's owners; otherwise all belong to the caller. One thread inflates, one
writes. Nothing is written outside the folder, whatever a layer says (see `tree`).
"""

from __future__ import annotations

import contextlib
import os
import stat
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from imgbuild.errors import InputError, IntegrityError, WorkFailed
from imgbuild.oci.reader import FILES, REMEDY, Entry, Parts, Reader, hidden_by, inflated
from imgbuild.oci.tree import RootFolder
from imgbuild.system.reporter import SILENT, ProgressBar, Reporter

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
Folders = dict[Parts, tuple[int, int]]  # path → mode and time


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
            hidden = hidden_by(parts, self._tree.names)
            if hidden is not None:
                self._white_out(hidden)
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

    def _white_out(self, hidden: Iterable[Parts]) -> None:
        with contextlib.suppress(FileNotFoundError):
            for path in hidden:
                self._hide(self._tree.place(path, make=False))

    def _hide(self, place: Parts) -> None:
        """Remove what lower layers have there; what this layer wrote stays."""
        if place not in self._own:
            self._remove(place, make=False)
        elif self._tree.is_folder(place):
            for child in self._tree.names(place):
                self._hide((*place, child))

    def _remove(self, parts: Parts, *, make: bool = True) -> None:
        """Remove the entry at `parts`; a later folder does not inherit its modes and times."""
        place = self._tree.place(parts, make=make)
        if self._tree.remove(parts, make=make):
            for gone in [folder for folder in self._folders if folder[: len(place)] == place]:
                del self._folders[gone]

    def _folder(self, parts: Parts, entry: Entry) -> None:
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

    def _make(self, parts: Parts, entry: Entry, reader: Reader) -> None:
        parent, name = self._tree.folder(parts[:-1]), parts[-1]
        if entry.type in FILES:
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
    """Set mode and time of folders, deepest first; skips those that no longer exist."""
    for parts, (mode, mtime) in sorted(folders.items(), reverse=True):
        with contextlib.suppress(FileNotFoundError, IntegrityError):
            here = Path(f"/proc/self/fd/{tree.folder(parts, make=False)}")
            here.chmod(mode)
            os.utime(here, (mtime, mtime))
