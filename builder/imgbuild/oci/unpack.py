"""Unpacks the layers of an image to a root file system on disk.

Files have the image's owners if the caller is root; otherwise the caller owns them. One thread
inflates, another one writes. No file is written outside the folder, even for malicious layers (see
`tree`).

`keep` unpacks a layer for repeated use, as a list of members and numbered regular files. `stack`
creates a root folder from such layers with hard links.
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
    Entry,
    LayerFile,
    Parts,
    Reader,
    hidden_by,
    inflated,
)
from imgbuild.oci.tree import RootFolder
from imgbuild.system.boundary import reading
from imgbuild.system.files import FULL
from imgbuild.system.reporter import SILENT, ProgressBar, Reporter

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MEMBERS = "members"  # the list in the folder of a kept layer; its files are named 0, 1, 2, …
Folders = dict[Parts, tuple[int, int]]  # path → mode and time


class Members(Protocol):
    """The members of one layer, in its order."""

    def __iter__(self) -> Iterator[Entry]:
        """Iterate over the members."""

    def create(self, entry: Entry, name: str, parent: int) -> None:
        """Create the file of the current member `entry` as `name` in the folder open as `parent`.

        FileExistsError if the name exists.
        """


def unpack(layers: Sequence[LayerFile], root: Path, *, reporter: Reporter = SILENT) -> None:
    """Unpack `layers`, bottom first, into the folder `root`, which is new or empty.

    IntegrityError if a layer is damaged or unsafe, OSError if the disk is full, WorkFailed for
    other errors of the file system.
    """
    with _plain_errors(root), _progress(f"unpacking {root.name}", layers, reporter) as bar:
        _make_root(root, (_Inflated(layer, bar, reporter) for layer in layers), reporter)


def keep(folders: Mapping[LayerFile, Path], *, reporter: Reporter = SILENT) -> None:
    """Unpack each layer of `folders` to its folder, which is new, for `stack`.

    Raises the errors of `unpack`.
    """
    with _progress("unpacking layers", list(folders), reporter) as bar:
        for layer, folder in folders.items():
            with _plain_errors(folder):
                _keep(_Inflated(layer, bar, reporter), folder)


def _keep(layer: Members, folder: Path) -> None:
    folder.mkdir(parents=True)
    parent = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        members = []
        for number, entry in enumerate(layer):
            members.append(entry)
            if entry.type in FILES:
                layer.create(entry, str(number), parent)
    finally:
        os.close(parent)
    (folder / _MEMBERS).write_bytes(msgspec.msgpack.encode(members))


def _progress(
    title: str, layers: Sequence[LayerFile], reporter: Reporter
) -> contextlib.AbstractContextManager[ProgressBar]:
    """A progress bar over the compressed bytes of `layers`."""
    return reporter.progress(title, sum(layer.path.stat().st_size for layer in layers))


def stack(layers: Sequence[Path], root: Path, *, reporter: Reporter = SILENT) -> None:
    """Create a root folder from layers that `keep` unpacked, bottom first.

    The result is the same as with `unpack`. Regular files are hard links to files in `layers`,
    which must not be modified in place.
    """
    with _plain_errors(root):
        _make_root(root, (_UnpackedLayer(layer) for layer in layers), reporter)


def _make_root(root: Path, layers: Iterable[Members], reporter: Reporter) -> None:
    root.mkdir(parents=True, exist_ok=True)
    if any(root.iterdir()):
        message = f"{root} is not empty"
        raise InputError(message, hint="choose another folder, or empty this folder")
    root.chmod(0o755)
    with RootFolder(root) as tree:
        folders: Folders = {}
        for layer in layers:
            _Writer(tree, folders, reporter).write(layer)
        _set_folder_metadata(tree, folders)


@contextlib.contextmanager
def _plain_errors(folder: Path) -> Iterator[None]:
    try:
        with reading(f"a layer that is unpacked to {folder}"):
            yield
    except OSError as error:
        if error.errno in FULL:
            raise
        place = f"{folder}: {error.filename}" if error.filename else str(folder)
        message = f"cannot unpack to {place}: {error.strerror or error}"
        raise WorkFailed(message) from error


class _Inflated:
    """The members of a layer file, inflated."""

    def __init__(self, layer: LayerFile, bar: ProgressBar, reporter: Reporter) -> None:
        self._layer = layer
        self._bar = bar
        self._reporter = reporter
        self._root = os.geteuid() == 0
        self._content: Callable[[], Iterator[bytes]] = lambda: iter(())

    def __iter__(self) -> Iterator[Entry]:
        with inflated(self._layer, advance=self._bar.advance) as stream:
            reader = Reader(stream, str(self._layer.path))
            self._content = reader.content
            yield from reader

    def create(self, entry: Entry, name: str, parent: int) -> None:
        file = os.open(name, _CREATE, 0o600, dir_fd=parent)
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
            self._reporter.detail(f"attribute {key} skipped: {error.strerror}")


class _UnpackedLayer:
    """The members of a layer that `keep` unpacked."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0

    def __iter__(self) -> Iterator[Entry]:
        data = (self._folder / _MEMBERS).read_bytes()
        for self._number, entry in enumerate(msgspec.msgpack.decode(data, type=list[Entry])):
            yield entry

    def create(self, entry: Entry, name: str, parent: int) -> None:
        os.link(f"{self._folder}/{self._number}", name, dst_dir_fd=parent)


class _Writer:
    """Writes the members of one layer; `folders` collects attributes to be set at the end."""

    def __init__(self, tree: RootFolder, folders: Folders, reporter: Reporter) -> None:
        self._tree = tree
        self._folders = folders
        self._reporter = reporter
        self._own: set[tuple[str, ...]] = set()  # written by this layer: whiteouts do not remove it
        self._root = os.geteuid() == 0

    def write(self, layer: Members) -> None:
        for entry in layer:
            parts = self._tree.parts(entry.path)
            hidden = hidden_by(parts, self._tree.names)
            if hidden is not None:
                self._white_out(hidden)
                continue
            # Before anything is removed: a link in the path may be what the entry replaces.
            place = self._tree.place(parts) if parts else ()
            if entry.type == tarfile.DIRTYPE:
                self._folder(place, entry)
            elif place:
                try:
                    self._make(place, entry, layer)
                except FileExistsError:
                    self._remove(place)
                    self._make(place, entry, layer)
            while place and place not in self._own:
                self._own.add(place)
                place = place[:-1]

    def _white_out(self, hidden: Iterable[Parts]) -> None:
        with contextlib.suppress(FileNotFoundError):
            for path in hidden:
                self._hide(self._tree.place(path, make=False))

    def _hide(self, place: Parts) -> None:
        """Remove the entries of lower layers at `place`, and keep entries of this layer."""
        if place not in self._own:
            self._remove(place, make=False)
        elif self._tree.is_folder(place):
            for child in self._tree.names(place):
                self._hide((*place, child))

    def _remove(self, parts: Parts, *, make: bool = True) -> None:
        """Remove the entry at `parts`, whose mode and time a later folder does not inherit."""
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
            status = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode):
                self._tree.remove(parts)
                parent = self._tree.folder(parts[:-1])
                os.mkdir(name, 0o700, dir_fd=parent)
        self._chown(name, parent, entry)
        # Mode and time are set at the end: it may forbid writing, and writing moves its time.
        self._folders[parts] = (entry.mode, entry.mtime)

    def _make(self, parts: Parts, entry: Entry, layer: Members) -> None:
        parent, name = self._tree.folder(parts[:-1]), parts[-1]
        if entry.type in FILES:
            layer.create(entry, name, parent)
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
                self._reporter.detail(f"{entry.path}: only root can create devices; skipped")
                return
            kind = stat.S_IFCHR if entry.type == tarfile.CHRTYPE else stat.S_IFBLK
            os.mknod(name, kind | entry.mode, os.makedev(*entry.device), dir_fd=parent)
        else:
            message = f"{entry.path!r} has the unknown type {entry.type!r}"
            raise IntegrityError(message, hint="the layer is not for Linux")
        self._chown(name, parent, entry)
        if entry.type != tarfile.SYMTYPE:
            os.chmod(name, entry.mode, dir_fd=parent)
        times = (entry.mtime, entry.mtime)
        os.utime(name, times, dir_fd=parent, follow_symlinks=False)

    def _hard_link(self, name: str, parent: int, entry: Entry) -> None:
        *above, last = self._tree.parts(entry.target) or ("",)
        try:
            source = self._tree.folder(tuple(above), make=False)
            os.link(last, name, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError as error:
            message = f"{entry.path!r} is a hard link to {entry.target!r}, which does not exist"
            raise IntegrityError(message, hint=REMEDY) from error

    def _chown(self, name: str, parent: int, entry: Entry) -> None:
        if self._root:
            os.chown(name, entry.uid, entry.gid, dir_fd=parent, follow_symlinks=False)


def _set_folder_metadata(tree: RootFolder, folders: Folders) -> None:
    """Set mode and time of existing folders, deepest first."""
    for parts, (mode, mtime) in sorted(folders.items(), reverse=True):
        with contextlib.suppress(FileNotFoundError, IntegrityError):
            here = Path(f"/proc/self/fd/{tree.folder(parts, make=False)}")
            here.chmod(mode)
            os.utime(here, (mtime, mtime))
