"""Tracks processes that use a cache, and removes files of dead processes.

Each process locks a file in `live/`, and has a folder with the same name in `scratch/`.
"""

# A separate module: lock files.
from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from imgbuild.errors import InputError
from imgbuild.system import files
from imgbuild.system.folder import regular_file, try_lock


def leased_paths(root: Path, current: str | None) -> set[str]:
    """Return the paths below `root` that live processes use, except the process `current`."""
    names: set[str] = set()
    for path in _live_processes(root, current):
        with _open_descriptor(path, os.O_RDONLY) as descriptor:
            if descriptor is not None and not try_lock(descriptor, shared=True):
                names.update(path.read_text(encoding="utf-8").splitlines())
    return names


def remove_leftovers(root: Path, current: str | None) -> None:
    """Remove files of dead processes, whose files in `live/` are not locked."""
    for path in _live_processes(root, current):
        with _open_descriptor(path, os.O_RDWR) as descriptor:
            if descriptor is None or os.fstat(descriptor).st_uid != os.geteuid():
                continue
            if try_lock(descriptor) and files.same_file(descriptor, path):
                _remove_scratch(root, path.name)
                path.unlink(missing_ok=True)  # a process that has just created it discards it, too


def remove_process_files(root: Path, name: str, descriptor: int, process: int) -> None:
    """Remove the files of the process `name`, unless the current process is a fork of `process`."""
    if os.getpid() == process:  # a forked child must not remove the files of its parent
        _remove_scratch(root, name)
        (root / "live" / name).unlink(missing_ok=True)
        os.close(descriptor)


def _live_processes(root: Path, current: str | None) -> list[Path]:
    folder = root / "live"
    if folder.is_symlink():
        return []
    return [path for path in sorted(folder.glob("*")) if path.name != current]


@contextlib.contextmanager
def _open_descriptor(path: Path, flags: int) -> Iterator[int | None]:
    """Open `path`, or yield None if it is missing, not a file, or owned by another user."""
    try:
        descriptor = regular_file(path, flags)
    except (FileNotFoundError, PermissionError, InputError):
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _remove_scratch(root: Path, name: str) -> None:
    if not (root / "scratch").is_symlink():
        files.remove_tree(root / "scratch" / name)
