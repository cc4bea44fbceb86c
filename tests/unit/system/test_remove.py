"""Tests that deeply nested and read-only folders are removed without following links."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from imgbuild.errors import InputError
from imgbuild.oci.tree import RootFolder
from imgbuild.render import templates
from imgbuild.system import files, folder
from imgbuild.system.folder import OpenFolder
from tests.support import needs

DEEP = 3000
NOBODY = 65534


@pytest.fixture(name="memory")
def _memory() -> Iterator[Path]:
    """A folder in memory, where deep folders are removed quickly."""
    place = Path(tempfile.mkdtemp(dir="/dev/shm"))
    yield place
    files.remove_tree(place)


def deep(place: Path) -> Path:
    """A folder nested so deeply that the path of the innermost folder is too long."""
    place.mkdir()
    descriptor = os.open(place, os.O_RDONLY)
    for _ in range(DEEP):
        os.mkdir("d", 0o700, dir_fd=descriptor)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=descriptor))
        below = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)
    return place


def open_below(place: Path) -> list[Path]:
    """The open files and folders of this process below `place`, including removed ones."""
    opened = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # of the listing itself, or of another thread
            opened.append(link.readlink())
    return [path for path in opened if path.is_relative_to(place)]


@pytest.mark.parametrize("remove", [files.remove_tree, folder.remove_folder])
def test_deeply_nested_folder_tree_is_removed(remove, memory: Path) -> None:
    place = deep(memory / "deep")
    (place / "other").mkdir()
    remove(place)
    assert not place.exists()
    assert not open_below(memory)


def test_deeply_nested_image_folder_is_removed(memory: Path) -> None:
    deep(memory / "deep")
    with RootFolder(memory) as image:
        assert image.remove(("deep",))
    assert list(memory.iterdir()) == []


def test_removal_does_not_follow_links(tmp_path: Path) -> None:
    outside, place = tmp_path / "outside", tmp_path / "place"
    outside.mkdir()
    (outside / "file").touch()
    (place / "in").mkdir(parents=True)
    (place / "in/link").symlink_to(outside)
    (tmp_path / "link").symlink_to(outside)
    os.mkfifo(place / "pipe")
    files.remove_tree(tmp_path / "link")
    with pytest.raises(NotADirectoryError):
        folder.remove_folder(tmp_path / "link")
    files.remove_tree(place)
    files.remove_tree(place)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "outside"]
    assert [path.name for path in outside.iterdir()] == ["file"]


def test_removal_continues_after_a_failure(memory: Path) -> None:
    """An ordinary user can remove folders without permissions, but not those of other users."""
    needs.require_root()
    memory.chmod(0o755)
    place = memory / "place"
    for name in ("a", "b/c", "z"):
        (place / name).mkdir(parents=True)
        (place / name / "file").touch()
    for path in (place, *place.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    os.chown(place / "b/c", 0, 0)
    for path in (place / "a", place / "z", place):
        path.chmod(0)
    with pytest.raises(PermissionError):
        as_nobody(lambda: folder.remove_folder(place))
    assert sorted(path.relative_to(place).as_posix() for path in place.rglob("*")) == [
        "b", "b/c", "b/c/file",
    ]  # fmt: skip


def as_nobody(call: Callable[[], None]) -> None:
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        call()
    finally:
        os.seteuid(0)
        os.setegid(0)


def test_deeply_nested_checkout_folder_is_refused(memory: Path) -> None:
    deep(memory / "files")
    with OpenFolder.open(memory / "files") as opened, pytest.raises(InputError, match="deep"):
        list(opened.file_paths())


def test_deeply_nested_template_folder_is_ignored(memory: Path) -> None:
    deep(memory / templates.FOLDER)
    assert templates.project_templates(memory) == ()
