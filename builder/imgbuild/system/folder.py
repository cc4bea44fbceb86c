"""Reads, writes and removes files relative to open folders, without following links.

A checkout or shared folder can contain symbolic links, pipes or folders of other users at any path
that imgbuild writes. Therefore, names are resolved component by component, relative to the
descriptor of a folder that the user specifies (the project, `--output`, the cache), and links are
errors. Links are followed only in the path of this folder. Only regular files are replaced or
removed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Self

from imgbuild.errors import ImgbuildError, InputError
from imgbuild.values import Sha256

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a folder",
    stat.S_IFREG: "a file",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
LEVELS = 100  # of folders
CHUNK = 1 << 20
OTHERS_WRITE = 0o022  # the modes with which other users may write
REMEDY = "remove this entry, or move it to another folder"
LINK_REMEDY = "remove the link, because links are not followed there"


class OpenFolder:
    """An open folder. `path` is the path to show in messages.

    Names are relative to the folder, and have one or several components. Methods raise InputError
    if a parent component is a link or not a folder, if the last component is not a regular file, or
    if a name is absolute or contains `..`.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.descriptor)

    @classmethod
    def open(cls, path: Path, *, make: bool = False) -> Self:
        """Open the folder at `path`, which the user specifies. Links are followed.

        With `make`, the folder and its parents are created. Otherwise, OSError is raised if it is
        missing.
        """
        if make:
            path.mkdir(parents=True, exist_ok=True)
        return cls(path, os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def folder(self, name: str, *, make: bool = False, mode: int = 0o777) -> OpenFolder:
        """Open the folder `name`. Raises FileNotFoundError if it is missing and `make` is false."""
        place, descriptor = self.path, os.dup(self.descriptor)
        try:
            for part in self._parts(name):
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, mode, dir_fd=descriptor)
                place, above = place / part, descriptor
                try:
                    descriptor = os.open(part, _FOLDER, dir_fd=above)
                except OSError as error:
                    if error.errno in (errno.ENOTDIR, errno.ELOOP):
                        raise _refusal(place, _status(part, above), "a folder") from error
                    raise
                os.close(above)
        except BaseException:
            os.close(descriptor)
            raise
        return OpenFolder(place, descriptor)

    def status(self, name: str) -> os.stat_result | None:
        """Return the status of `name` without following links.

        Returns None if `name` or a parent is missing.
        """
        try:
            with self._open_parent(name) as (above, last):
                return _status(last, above.descriptor)
        except FileNotFoundError:
            return None

    def require_file(self, name: str) -> os.stat_result | None:
        """Return the same as `status`. Raises InputError if `name` is not a regular file."""
        status = self.status(name)
        if status is not None and not stat.S_ISREG(status.st_mode):
            raise _refusal(self.path / name, status, "a file")
        return status

    def file(self, name: str, flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
        """Open the regular file `name`. Returns the descriptor.

        Raises OSError if the file cannot be opened.
        """
        with self._open_parent(name) as (above, last):
            return regular_file(self.path / name, flags, mode, name=last, above=above.descriptor)

    def read(self, name: str) -> bytes:
        """Read the bytes of the file `name`. Raises OSError if it cannot be read."""
        with os.fdopen(self.file(name), "rb") as file:
            return file.read()

    def write(self, name: str, data: bytes) -> bool:
        """Write `data` to the file `name`, and create missing parent folders.

        Returns False if the current user's file `name` already contains `data`. The file is
        complete or missing, even after a power failure.
        """
        status = self.require_file(name)
        if status is not None and status.st_uid == os.geteuid() and status.st_size == len(data):
            with contextlib.suppress(OSError):
                if self.read(name) == data:
                    return False
        with self.replace_file(name) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return True

    @contextlib.contextmanager
    def replace_file(self, name: str) -> Iterator[BinaryIO]:
        """Open a new file that is renamed to `name` at the end, or removed after an error.

        The attribute `name` of the file object is the random temporary path. If several processes
        write `name`, the last rename takes effect.
        """
        with self._open_parent(name, make=True) as (above, last):
            above.require_file(last)
            above.remove_leftovers(last)
            while True:
                temporary = f".{last}.{secrets.token_hex(8)}.tmp"
                file = above.new_file(temporary)
                status = os.fstat(file.fileno())
                locked = True  # so that the next writer removes only files of killed processes
                with contextlib.suppress(OSError):
                    locked = try_lock(file.fileno())
                if locked:
                    present = _status(temporary, above.descriptor)
                    if present is not None and os.path.samestat(status, present):
                        break
                file.close()  # another process has removed it before it was locked
            try:
                with file:
                    yield file
                    file.flush()
                    above.rename(temporary, last)
            finally:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=above.descriptor)

    def new_file(self, name: str) -> BinaryIO:
        """Create the file `name` in this folder. Raises FileExistsError if the name exists."""

        def _open_unnamed(_: str, flags: int) -> int:
            return os.open(name, flags | os.O_CLOEXEC, 0o666, dir_fd=self.descriptor)

        return open(self.path / name, "x+b", opener=_open_unnamed)

    def rename(self, name: str, other: str) -> None:
        """Rename the file `name` in this folder to `other`.

        An existing regular file is replaced.
        """
        self.require_file(other)
        os.replace(name, other, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def rename_folder(self, name: str, other: str) -> None:
        """Rename the folder `name` to `other`.

        Raises OSError unless `other` is missing or an empty folder.
        """
        os.rename(name, other, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def create_link(self, descriptor: int, name: str) -> None:
        """Create the hard link `name` to the open file `descriptor`. Raises OSError if that fails.

        The link refers to the open file, even if the file was replaced at its former path.
        """
        source = f"/proc/self/fd/{descriptor}"
        os.link(source, name, dst_dir_fd=self.descriptor, follow_symlinks=True)

    def remove(self, name: str) -> bool:
        """Remove the regular file `name`. Returns False if it is missing."""
        if self.require_file(name) is None:
            return False
        with self._open_parent(name) as (above, last), contextlib.suppress(FileNotFoundError):
            os.unlink(last, dir_fd=above.descriptor)
            return True
        return False

    def remove_folder(self, name: str) -> None:
        """Remove the empty folder `name`. Raises OSError if it is not empty."""
        with self._open_parent(name) as (above, last):
            os.rmdir(last, dir_fd=above.descriptor)

    def names(self) -> list[str]:
        """Return the sorted names of all entries."""
        return sorted(os.listdir(self.descriptor))  # noqa: PTH208 - no path

    def file_paths(self, levels: int = LEVELS) -> Iterator[str]:
        """Yield the paths of all regular files below this folder.

        Raises InputError for a link, pipe or device, or if folders are nested deeper than `levels`.
        """
        if not levels:
            message = f"{self.path} is nested deeper than {LEVELS} folders"
            raise InputError(message, hint=REMEDY)
        for name in self.names():
            status = _status(name, self.descriptor)
            if status is None:
                continue
            if stat.S_ISDIR(status.st_mode):
                with self.folder(name) as below:
                    yield from (f"{name}/{each}" for each in below.file_paths(levels - 1))
            elif stat.S_ISREG(status.st_mode):
                yield name
            else:
                raise _refusal(self.path / name, status, "a file")

    def remove_leftovers(self, name: str) -> None:
        """Remove the unlocked temporary files that killed processes left for `name`."""
        pattern = re.compile(rf"\.{re.escape(name)}\.[0-9a-f]{{16}}\.tmp")
        for leftover in filter(pattern.fullmatch, self.names()):
            with (
                contextlib.suppress(OSError, ImgbuildError),
                os.fdopen(self.file(leftover), "rb") as file,
            ):
                if try_lock(file.fileno()):
                    os.unlink(leftover, dir_fd=self.descriptor)

    @contextlib.contextmanager
    def _open_parent(self, name: str, *, make: bool = False) -> Iterator[tuple[OpenFolder, str]]:
        """Yield the parent folder of `name` and the last component of `name`."""
        *folders, last = self._parts(name)
        if not folders:
            yield self, last
            return
        with self.folder("/".join(folders), make=make) as above:
            yield above, last

    def _parts(self, name: str) -> list[str]:
        parts = name.split("/")
        if any(part in ("", ".", "..") or "\0" in part for part in parts):
            message = f"{self.path}: {name!r} is not a path inside this folder"
            raise InputError(
                message, hint="use a relative path without empty components, `.` or `..`"
            )
        return parts


def regular_file(
    path: Path,
    flags: int = os.O_RDONLY,
    mode: int = 0o666,
    *,
    name: str | None = None,
    above: int | None = None,
    links: bool = False,
) -> int:
    """Open the regular file at `path`, or `name` in the folder with the descriptor `above`.

    Returns the descriptor. Links are followed only if `links` is set. Raises InputError for a link,
    pipe, device or folder, without blocking, and OSError if the file cannot be opened.
    """
    name = os.fspath(path) if name is None else name
    flags |= os.O_NONBLOCK | os.O_CLOEXEC | (0 if links else os.O_NOFOLLOW)
    try:
        descriptor = os.open(name, flags, mode, dir_fd=above)
    except OSError as error:
        refused = (errno.EISDIR, errno.ENXIO, errno.ENODEV) + (() if links else (errno.ELOOP,))
        if error.errno in refused:
            raise _refusal(path, _status(name, above), "a file") from error
        raise
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode):
        return descriptor
    os.close(descriptor)
    raise _refusal(path, status, "a file")


def remove_folder(place: str | Path, above: int | None = None) -> None:
    """Remove the folder at `place`, relative to the descriptor `above`, with its content.

    Read-only folders are made writable. The first OSError is raised after all other entries are
    removed. If `place` is a link, it is not removed, and OSError is raised.
    """
    # Only one descriptor is open: a tree can be deeper than the limit of open files.
    errors: list[OSError] = []
    descriptor = _open_writable(place, above)
    try:
        levels = [(os.fstat(descriptor), _remove_files(descriptor, errors))]
        while True:
            names = levels[-1][1]
            if names:
                try:
                    below = _open_writable(names[-1], descriptor)
                except OSError as error:
                    names.pop()
                    errors.append(error)
                    continue
                os.close(descriptor)
                descriptor = below
                levels.append((os.fstat(descriptor), _remove_files(descriptor, errors)))
                continue
            levels.pop()
            if not levels:
                break
            outer = os.open("..", _FOLDER, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = outer
            status, names = levels[-1]
            if not os.path.samestat(status, os.fstat(descriptor)):  # moved in the meantime
                break
            _collect_error(errors, os.rmdir, names.pop(), descriptor)
    finally:
        os.close(descriptor)
    try:
        os.rmdir(place, dir_fd=above)
    except OSError as error:
        raise (errors or [error])[0] from None


def _open_writable(name: str | Path, above: int | None) -> int:
    try:
        descriptor = os.open(name, _FOLDER, dir_fd=above)
    except PermissionError:
        closed = os.open(name, _FOLDER | os.O_PATH, dir_fd=above)
        try:
            os.chmod(f"/proc/self/fd/{closed}", 0o700)  # noqa: PTH101 - by descriptor
            return os.open(".", _FOLDER, dir_fd=closed)
        finally:
            os.close(closed)
    if os.fstat(descriptor).st_mode & 0o700 != 0o700:
        with contextlib.suppress(OSError):
            os.fchmod(descriptor, 0o700)
    return descriptor


def _remove_files(descriptor: int, errors: list[OSError]) -> list[str]:
    """Remove all entries of the open folder except folders. Returns the names of the folders."""
    with os.scandir(descriptor) as scanned:
        entries = list(scanned)
    folders = []
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            folders.append(entry.name)
        else:
            _collect_error(errors, os.unlink, entry.name, descriptor)
    return folders


def _collect_error(
    errors: list[OSError], remove: Callable[..., None], name: str, above: int
) -> None:
    try:
        remove(name, dir_fd=above)
    except FileNotFoundError:
        pass
    except OSError as error:
        errors.append(error)


def require_below(top: Path, path: Path) -> Path:
    """Return `path`, a default output location below `top`. The location can be missing.

    Raises InputError if `path`, or a folder between `top` and `path`, is a link.
    """
    try:
        with contextlib.suppress(FileNotFoundError), OpenFolder.open(top) as folder:
            status = folder.status(path.relative_to(top).as_posix())
            if status is not None and stat.S_ISLNK(status.st_mode):
                raise _refusal(path, status, "a folder")
    except InputError as error:
        hint = "remove the link, or choose another folder with --output, which may be a link"
        raise InputError(error.message, hint=hint) from error
    return path


def make_private(top: Path, *names: str, make: bool = True) -> bool:
    """Make `top`, and the nested folders `names` below it, writable only by the current user.

    Returns False if a mode had to be changed. With `make`, missing folders are created. Otherwise,
    FileNotFoundError is raised. Raises InputError if a folder belongs to another user or, below
    `top`, is a link.
    """
    private = True
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(OpenFolder.open(top))
        private &= _is_made_private(folder)
        for name in names:
            folder = stack.enter_context(folder.folder(name, make=make, mode=0o755))
            private &= _is_made_private(folder)
    return private


def is_shared(path: Path) -> bool:
    """Return whether `path` is a folder with mode 1777 that all users share, such as /tmp.

    The owner must be this user or root, because the owner can rename all entries.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    sticky = bool(status.st_mode & stat.S_ISVTX and status.st_mode & OTHERS_WRITE)
    return sticky and status.st_uid in (0, os.geteuid())


def make_own(top: Path, name: str) -> Path:
    """Return this user's folder `name` in the shared folder `top`. A missing folder is created."""
    with OpenFolder.open(top) as shared, shared.folder(name, make=True, mode=0o755) as folder:
        _is_made_private(folder)
        return folder.path


def _is_made_private(folder: OpenFolder) -> bool:
    status = os.fstat(folder.descriptor)
    if status.st_uid != os.geteuid():
        message = (
            f"{folder.path} belongs to user ID {status.st_uid}, who could change builds of "
            f"the current user (user ID {os.geteuid()})"
        )
        hint = (
            "set IMGBUILD_CACHE to a folder of the current user, or to a shared folder (owned by"
            " root, mode 1777)"
        )
        raise InputError(message, hint=hint)
    if not status.st_mode & OTHERS_WRITE:
        return True
    with contextlib.suppress(PermissionError):
        os.fchmod(folder.descriptor, stat.S_IMODE(status.st_mode) & ~OTHERS_WRITE)
    # File systems without modes are left as they are.
    return bool(os.fstat(folder.descriptor).st_mode & OTHERS_WRITE)


def is_private(status: os.stat_result) -> bool:
    """Return whether a file with `status` is regular and only this user can have changed it."""
    exclusive = status.st_uid == os.geteuid() and not status.st_mode & OTHERS_WRITE
    return exclusive and stat.S_ISREG(status.st_mode)


def copy_and_hash(source: BinaryIO, target: BinaryIO) -> Sha256:
    """Copy the rest of `source` to `target`. Returns the hash of the copied bytes."""
    copied = hashlib.sha256()
    while piece := source.read(CHUNK):
        copied.update(piece)
        target.write(piece)
    return copied.hexdigest()


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Lock an open file without waiting. Returns False if another process holds the lock.

    Raises OSError if the file system does not support locks.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _status(name: str, above: int | None) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=above, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _refusal(path: Path, status: os.stat_result | None, expected: str) -> InputError:
    kind = 0 if status is None else stat.S_IFMT(status.st_mode)
    message = f"cannot use {path}: it is {_KINDS.get(kind, 'something else')}, not {expected}"
    return InputError(message, hint=LINK_REMEDY if kind == stat.S_IFLNK else REMEDY)
