"""Writes, moves, locks and removes files, and adds hints to errors of the operating system.

A lock is released when its process ends. Written files are complete or missing, even if the process
is killed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path
from typing import BinaryIO

from imgbuild.errors import ImgbuildError, InputError, WorkFailed
from imgbuild.system.amounts import size_text
from imgbuild.system.folder import OTHERS_WRITE, OpenFolder, regular_file, remove_folder, try_lock

NO_SPACE_HINT = (
    "free some space with `imgbuild cache prune --max-size 20G`, or set IMGBUILD_CACHE to a folder"
    " on another disk"
)

CACHE_HINT = "set IMGBUILD_CACHE to a writable folder"
FULL_HINT = "free some space on this file system"
OUTPUT_HINT = "choose another folder with --output"

DISK_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT)
_DENIED_ERRORS = (errno.EACCES, errno.EPERM, errno.EROFS)
_FOLDER_ERRORS = (errno.EEXIST, errno.ENOTDIR)
# Errors from a network file system that is mounted without locks.
_LOCKLESS_ERRORS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP)


def data(name: str) -> Path:
    """Return the path of `name` in the package's folder `data`, which is always unpacked."""
    return Path(str(resources.files("imgbuild").joinpath("data", name)))


def home_folder() -> Path:
    """Return the user's home folder. Raises InputError if neither HOME nor /etc/passwd has one."""
    try:
        return Path.home()
    except RuntimeError as error:
        message = (
            f"no home folder found: HOME is not set, and user ID {os.getuid()} has no passwd entry"
        )
        raise InputError(message, hint="set HOME, or IMGBUILD_CACHE and XDG_CONFIG_HOME") from error


def expand_home(path: str | Path) -> Path:
    """Expand `~` or `~USER` in `path`. Returns `path` unchanged if there is no home folder."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - pathlib raises RuntimeError


def xdg_folder(variable: str, default: str) -> Path:
    """Return the folder in the environment variable `variable`, or `default` in the home folder.

    Relative paths in the variable are ignored, as the XDG specification requires. Raises InputError
    if there is no home folder.
    """
    named = os.environ.get(variable, "")
    return Path(named) if named.startswith("/") else home_folder() / default


def convert_os_error(error: OSError, place: Path, *, hint: str | None = None) -> ImgbuildError:
    """Convert `error`, which occurred at `place`, to an error with a hint.

    `hint` is used if `place` is full or not writable. The default is a hint for the cache.
    """
    reason = error.strerror or str(error)
    if error.errno in DISK_FULL_ERRORS:
        message = f"no space left for {place}: {reason}"
        if error.errno == errno.ENOSPC and (free := free_bytes(place)) is not None:
            message += f" ({size_text(free)} free)"
        return WorkFailed(message, hint=hint or NO_SPACE_HINT)
    if error.errno in _DENIED_ERRORS:
        message = f"cannot write to {place}: {reason}"
        return InputError(message, hint=hint or CACHE_HINT)
    if error.errno in _FOLDER_ERRORS:
        message = f"cannot write to {place}: it is not a folder, or a parent is a file"
        return InputError(message, hint=hint or CACHE_HINT)
    if error.errno in _LOCKLESS_ERRORS:
        message = f"the file system of {place} does not support file locks: {reason}"
        return InputError(message, hint="set IMGBUILD_CACHE to a folder on a local disk")
    return WorkFailed(f"cannot use {place}: {reason}")


def free_bytes(place: Path) -> int | None:
    """Return the free bytes on the file system of `place`, or None if they are unknown.

    `place` can be missing. For root, reserved blocks are included.
    """
    for folder in (place.absolute(), *place.absolute().parents):
        with contextlib.suppress(OSError):
            status = os.statvfs(folder)
            free = status.f_bavail if os.geteuid() else status.f_bfree
            return status.f_frsize * free if status.f_blocks else None
    return None


def fullest_disk(places: Iterable[Path]) -> Path:
    """Return the path in `places` whose file system has the least free space."""
    return min(places, key=lambda place: free_bytes(place) or 0)


@contextlib.contextmanager
def plain_errors(place: Path, *, hint: str | None = None) -> Iterator[None]:
    """Convert OSErrors in the block with `convert_os_error`, except FileNotFoundError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise convert_os_error(error, place, hint=hint) from error


@contextlib.contextmanager
def require_readable(
    path: Path, kind: type[ImgbuildError] = InputError, *, hint: str | None = None
) -> Iterator[None]:
    """Convert OSErrors in the block, which reads `path`, to `kind`."""
    try:
        yield
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}"
        raise kind(message, hint=hint) from error


@contextlib.contextmanager
def name_full_disk(place: Path) -> Iterator[None]:
    """Add the path `place` to disk-full errors that have no path, such as those of open files."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL_ERRORS and error.filename is None:
            raise convert_os_error(error, place) from error
        raise


def require_writable(paths: Iterable[Path], *, hint: str) -> None:
    """Raise an error before long work if one of `paths` is not writable.

    A path is an existing folder, or a file or folder to create or replace. Raises InputError if a
    path is not writable, and WorkFailed if the file system is full.
    """
    for path in paths:
        folder = path.absolute()
        if not folder.is_dir():
            folder = folder.parent
        while not os.path.lexists(folder):
            folder = folder.parent
        if not folder.is_dir():
            message = f"cannot write {path}: {folder} is not a folder"
            raise InputError(message, hint=hint)
        if not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
            read_only = os.statvfs(folder).f_flag & os.ST_RDONLY
            reason = "is on a read-only file system" if read_only else "is not writable"
            message = f"cannot write {path}: {folder} {reason}"
            raise InputError(message, hint=hint)
        if free_bytes(folder) == 0:
            error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            raise convert_os_error(error, path, hint=FULL_HINT)


def is_own(folder: Path, *, hint: str) -> bool:
    """Return whether `folder` is missing or only the current user can change its content.

    Raises InputError with `hint` if another user owns the folder, or if the path is not a folder.
    """
    try:
        status = folder.lstat()
    except FileNotFoundError:
        return True
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        message = f"{folder} does not belong to the current user (user ID {os.geteuid()})"
        raise InputError(message, hint=hint)
    return not status.st_mode & OTHERS_WRITE


def same_file(descriptor: int, path: Path) -> bool:
    """Return whether `path` still refers to the open file, and was not removed or replaced."""
    try:
        named = path.lstat()
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(descriptor), named)


def open_locked(path: Path) -> int | None:
    """Open or create `path`, and lock it exclusively.

    Returns None if another process holds the lock. Raises InputError if the path is a link or not a
    regular file.
    """
    while True:
        descriptor = _lock_file(path)
        try:
            if not try_lock(descriptor):
                os.close(descriptor)
                return None
            if same_file(descriptor, path):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # removed between open and lock: try again


def _lock_file(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    return regular_file(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)


@contextlib.contextmanager
def lock_file(path: Path, *, shared: bool = False) -> Iterator[None]:
    """Wait for the lock of the file at `path`, and hold it in the block.

    The file is not removed.
    """
    descriptor = _lock_file(path)  # threads and forked processes must not share a descriptor
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def sync_path(path: Path) -> None:
    """Flush the file or folder at `path` to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def move_file(source: Path, destination: Path) -> None:
    """Rename the complete file `source` to `destination` atomically, and make it read-only.

    The file is read-only because layouts contain hard links to it. Content and name are flushed to
    disk.
    """
    source.chmod(0o444)
    sync_path(source)
    destination.parent.mkdir(parents=True, exist_ok=True)
    source.replace(destination)
    sync_path(destination.parent)


@contextlib.contextmanager
def replace_file(path: Path) -> Iterator[BinaryIO]:
    """Open a new file that replaces `path` at the end (see `OpenFolder.replace_file`).

    A missing parent folder is created. Links in the path of the parent folder are followed.
    """
    with OpenFolder.open(path.parent, make=True) as folder, folder.replace_file(path.name) as file:
        yield file


def unshared_size(folder: Path) -> int:
    """Return the size in bytes of the files in `folder` that have no other hard links."""
    total = 0
    for parent, folders, names in os.walk(folder):
        for name in (*folders, *names):
            try:
                status = os.lstat(f"{parent}/{name}")
            except FileNotFoundError:  # removed meanwhile
                continue
            if not stat.S_ISREG(status.st_mode) or status.st_nlink == 1:
                total += status.st_size
    return total


def remove_tree(place: Path) -> None:
    """Remove a folder and its content as far as possible. A missing folder is not an error."""
    with contextlib.suppress(OSError):
        remove_folder(place)
