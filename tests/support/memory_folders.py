"""Creates temporary folders of unit tests in memory, because removal is slow on disk.

The folders are in `/dev/shm` if it is large enough. As with pytest, folders of failed tests are
kept until the next run.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")
ROOM = 4_000_000_000  # bytes; the unit tests of five processes together write less than 1 GB
PREFIX = "imgbuild-pytest-"


def has_room() -> bool:
    """Whether a file system in memory has enough room."""
    try:
        return os.path.ismount(MEMORY) and shutil.disk_usage(MEMORY).free >= ROOM
    except OSError:
        return False


@contextlib.contextmanager
def memory_path_factory(session: pytest.Session) -> Iterator[pytest.TempPathFactory]:
    """Create temporary folders in memory, and remove them at the end if all tests passed."""
    _remove_abandoned()
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=MEMORY))
    yield pytest.TempPathFactory(
        folder / "pytest", 1, "failed", session.config.trace.get("tmpdir"), _ispytest=True
    )
    if not session.testsfailed:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned() -> None:
    """Remove the folders of processes that have ended."""
    for folder in MEMORY.glob(f"{PREFIX}*"):
        if not Path("/proc", folder.name.removeprefix(PREFIX).partition("-")[0]).exists():
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def other_file_system(path: Path) -> Iterator[Path]:
    """Create a folder on a different file system than `path`, in memory or on disk."""
    for place in (MEMORY, Path(tempfile.gettempdir())):
        if place.is_dir() and place.stat().st_dev != path.stat().st_dev:
            with tempfile.TemporaryDirectory(prefix="imgbuild-test-", dir=place) as folder:
                yield Path(folder)
            return
    pytest.skip("no second file system to write to")
