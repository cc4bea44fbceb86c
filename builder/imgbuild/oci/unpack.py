"""Unpacks the layers of an image to a root file system on disk.

If the caller is root, files have the owners from the image. Otherwise, the caller owns all files.
One thread decompresses while another writes. No file is written outside the folder, even for
malicious layers (see `tree`).

`unpack_folders` unpacks a layer for repeated use, as a list of members and numbered regular files.
`stack_layers` creates a root folder from such layers with hard links.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from imgbuild.errors import InputError, IntegrityError, WorkFailed
from imgbuild.oci.reader import (
    FILES,
    REMEDY,
    LayerFile,
    PathParts,
    TarEntry,
    TarReader,
    open_inflated,
    paths_hidden_by,
)
from imgbuild.oci.tree import RootFolder
from imgbuild.system import decoding
from imgbuild.system.boundary import convert_read_errors
from imgbuild.system.files import DISK_FULL_ERRORS
from imgbuild.system.reporter import SILENT_REPORTER, ProgressBar, Reporter

_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MEMBERS = "members"  # the list in the folder of a kept layer; its files are named 0, 1, 2, …
FolderTimes = dict[PathParts, tuple[int, int]]  # path → mode and time


class LayerMembers(Protocol):
    """The members of a layer, in their order."""

    def __iter__(self) -> Iterator[TarEntry]:
        """Iterate over the members."""

    def create_file(self, entry: TarEntry, name: str, parent: int) -> None:
        """Create the file `name` with the content of the current member, `entry`.

        `parent` is the descriptor of its folder. Raises FileExistsError if the file exists.
        """


def unpack_layers(
    layers: Sequence[LayerFile], root: Path, *, reporter: Reporter = SILENT_REPORTER
) -> None:
    """Unpack `layers`, bottom layer first, into the new or empty folder `root`.

    Raises IntegrityError if a layer is damaged or unsafe, OSError if the disk is full, and
    WorkFailed for other file system errors.
    """
    with _plain_errors(root), _progress(f"unpacking {root.name}", layers, reporter) as bar:
        _make_root(root, (_InflatedMembers(layer, bar, reporter) for layer in layers), reporter)


def unpack_folders(
    folders: Mapping[LayerFile, Path], *, reporter: Reporter = SILENT_REPORTER
) -> None:
    """Unpack each layer in `folders` to a new folder, which `stack_layers` can read.

    Raises the same errors as `unpack_layers`.
    """
    with _progress("unpacking layers", list(folders), reporter) as bar:
        for layer, folder in folders.items():
            with _plain_errors(folder):
                _unpack_layer(_InflatedMembers(layer, bar, reporter), folder)


def _unpack_layer(layer: LayerMembers, folder: Path) -> None:
    folder.mkdir(parents=True)
    parent = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        members = []
        for number, entry in enumerate(layer):
            members.append(entry)
            if entry.type in FILES:
                layer.create_file(entry, str(number), parent)
    finally:
        os.close(parent)
    (folder / _MEMBERS).write_bytes(msgspec.msgpack.encode(members))


def _progress(
    title: str, layers: Sequence[LayerFile], reporter: Reporter
) -> contextlib.AbstractContextManager[ProgressBar]:
    return reporter.progress(title, sum(layer.path.stat().st_size for layer in layers))


def stack_layers(
    layers: Sequence[Path], root: Path, *, reporter: Reporter = SILENT_REPORTER
) -> None:
    """Create a root folder from the folders that `unpack_folders` wrote, bottom layer first.

    The result is the same as for `unpack_layers`. Regular files are hard links to files in
    `layers`, so they must not be modified in place.
    """
    with _plain_errors(root):
        _make_root(root, (_UnpackedLayer(layer) for layer in layers), reporter)


def _make_root(root: Path, layers: Iterable[LayerMembers], reporter: Reporter) -> None:
    root.mkdir(parents=True, exist_ok=True)
    if any(root.iterdir()):
        message = f"{root} is not empty"
        raise InputError(message, hint="choose another folder, or empty this folder")
    root.chmod(0o755)
    with RootFolder(root) as tree:
        folders: FolderTimes = {}
        for layer in layers:
            _RootWriter(tree, folders, reporter).write(layer)
        _set_folder_metadata(tree, folders)


@contextlib.contextmanager
def _plain_errors(folder: Path) -> Iterator[None]:
    try:
        with convert_read_errors(f"a layer to unpack to {folder}"):
            yield
    except OSError as error:
        if error.errno in DISK_FULL_ERRORS:
            raise
        place = f"{folder}: {error.filename}" if error.filename else str(folder)
        message = f"cannot unpack to {place}: {error.strerror or error}"
        raise WorkFailed(message) from error


class _InflatedMembers:
    def __init__(self, layer: LayerFile, bar: ProgressBar, reporter: Reporter) -> None:
        self._layer = layer
        self._bar = bar
        self._reporter = reporter
        self._root = os.geteuid() == 0
        self._content: Callable[[], Iterator[bytes]] = lambda: iter(())

    def __iter__(self) -> Iterator[TarEntry]:
        with open_inflated(self._layer, advance=self._bar.advance) as stream:
            reader = TarReader(stream, str(self._layer.path))
            self._content = reader.content
            yield from reader

    def create_file(self, entry: TarEntry, name: str, parent: int) -> None:
        file = os.open(name, _CREATE_FLAGS, 0o600, dir_fd=parent)
        try:
            for chunk in self._content():
                view = memoryview(chunk)
                while view:
                    view = view[os.write(file, view) :]
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
            self._reporter.detail(f"skipped attribute {key}: {error.strerror}")


class _UnpackedLayer:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0

    def __iter__(self) -> Iterator[TarEntry]:
        data = (self._folder / _MEMBERS).read_bytes()
        for self._number, entry in enumerate(decoding.decode_msgpack(data, list[TarEntry])):
            yield entry

    def create_file(self, entry: TarEntry, name: str, parent: int) -> None:
        os.link(f"{self._folder}/{self._number}", name, dst_dir_fd=parent)


class _RootWriter:
    def __init__(self, tree: RootFolder, folders: FolderTimes, reporter: Reporter) -> None:
        self._tree = tree
        self._folders = folders
        self._reporter = reporter
        self._own: set[tuple[str, ...]] = set()  # written by this layer: whiteouts do not remove it
        self._root = os.geteuid() == 0

    def write(self, layer: LayerMembers) -> None:
        for entry in layer:
            parts = self._tree.path_parts(entry.path)
            hidden = paths_hidden_by(parts, self._tree.names)
            if hidden is not None:
                self._apply_whiteout(hidden)
                continue
            # Before anything is removed: a link in the path may be what the entry replaces.
            place = self._tree.place(parts) if parts else ()
            if entry.type == tarfile.DIRTYPE:
                self._folder(place, entry)
            elif place:
                try:
                    self._make_entry(place, entry, layer)
                except FileExistsError:
                    self._remove_entry(place)
                    self._make_entry(place, entry, layer)
            while place and place not in self._own:
                self._own.add(place)
                place = place[:-1]

    def _apply_whiteout(self, hidden: Iterable[PathParts]) -> None:
        with contextlib.suppress(FileNotFoundError):
            for path in hidden:
                self._hide_entries(self._tree.place(path, make=False))

    def _hide_entries(self, place: PathParts) -> None:
        if place not in self._own:
            self._remove_entry(place, make=False)
        elif self._tree.is_folder(place):
            for child in self._tree.names(place):
                self._hide_entries((*place, child))

    def _remove_entry(self, parts: PathParts, *, make: bool = True) -> None:
        """Remove the entry at `parts`, so that a new folder does not inherit its mode and time."""
        place = self._tree.place(parts, make=make)
        if self._tree.remove(parts, make=make):
            for gone in [folder for folder in self._folders if folder[: len(place)] == place]:
                del self._folders[gone]

    def _folder(self, parts: PathParts, entry: TarEntry) -> None:
        if not parts:
            self._folders[parts] = (entry.mode, entry.mtime)
            return
        parent, name = self._tree.folder(parts[:-1]), parts[-1]
        try:
            os.mkdir(name, 0o700, dir_fd=parent)
        except FileExistsError:
            status = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode):
                self._tree.remove(parts)
                parent = self._tree.folder(parts[:-1])
                os.mkdir(name, 0o700, dir_fd=parent)
        self._change_owner(name, parent, entry)
        # Mode and time are set at the end: it may forbid writing, and writing moves its time.
        self._folders[parts] = (entry.mode, entry.mtime)

    def _make_entry(self, parts: PathParts, entry: TarEntry, layer: LayerMembers) -> None:
        parent, name = self._tree.folder(parts[:-1]), parts[-1]
        if entry.type in FILES:
            layer.create_file(entry, name, parent)
            return
        if entry.type == tarfile.LNKTYPE:
            self._hard_link(name, parent, entry)
            return
        if entry.type == tarfile.SYMTYPE:
            os.symlink(entry.target, name, dir_fd=parent)
        elif entry.type == tarfile.FIFOTYPE:
            os.mkfifo(name, entry.mode, dir_fd=parent)
        elif entry.type in (tarfile.CHRTYPE, tarfile.BLKTYPE):
            if not self._root:
                self._reporter.detail(f"skipped device {entry.path}: only root can create devices")
                return
            kind = stat.S_IFCHR if entry.type == tarfile.CHRTYPE else stat.S_IFBLK
            os.mknod(name, kind | entry.mode, os.makedev(*entry.device), dir_fd=parent)
        else:
            message = f"{entry.path!r} has the unknown type {entry.type!r}"
            raise IntegrityError(message, hint="use a Linux image")
        self._change_owner(name, parent, entry)
        if entry.type != tarfile.SYMTYPE:
            os.chmod(name, entry.mode, dir_fd=parent)
        times = (entry.mtime, entry.mtime)
        os.utime(name, times, dir_fd=parent, follow_symlinks=False)

    def _hard_link(self, name: str, parent: int, entry: TarEntry) -> None:
        *above, last = self._tree.path_parts(entry.target) or ("",)
        try:
            source = self._tree.folder(tuple(above), make=False)
            os.link(last, name, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError as error:
            message = f"{entry.path!r} is a hard link to {entry.target!r}, which does not exist"
            raise IntegrityError(message, hint=REMEDY) from error

    def _change_owner(self, name: str, parent: int, entry: TarEntry) -> None:
        if self._root:
            os.chown(name, entry.uid, entry.gid, dir_fd=parent, follow_symlinks=False)


def _set_folder_metadata(tree: RootFolder, folders: FolderTimes) -> None:
    for parts, (mode, mtime) in sorted(folders.items(), reverse=True):
        with contextlib.suppress(FileNotFoundError, IntegrityError):
            here = Path(f"/proc/self/fd/{tree.folder(parts, make=False)}")
            here.chmod(mode)
            os.utime(here, (mtime, mtime))
