"""Tests that names below an open folder do not follow links and replace only regular files."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from imgbuild import codec
from imgbuild.errors import InputError, IntegrityError
from imgbuild.system import files, known_hashes
from imgbuild.system.folder import OpenFolder, make_private, regular_file, require_below
from imgbuild.system.placing import place_file
from imgbuild.system.reporter import SILENT_REPORTER
from imgbuild.values import sha256
from tests.support.links import OBSTACLES, folder_state, outside_folder
from tests.support.rows import each_row

NAME = "a/b/c.json"
DATA = b"the bytes of a layer"


def top(tmp_path: Path) -> Path:
    """A folder with the file NAME."""
    path = tmp_path / "top" / NAME
    path.parent.mkdir(parents=True)
    path.write_bytes(b"old")
    return tmp_path / "top"


def written(folder: OpenFolder) -> None:
    folder.write(NAME, b"new")


def replaced(folder: OpenFolder) -> None:
    with folder.replace_file(NAME) as file:
        file.write(b"new")


def removed(folder: OpenFolder) -> None:
    folder.remove(NAME)


def read(folder: OpenFolder) -> None:
    folder.read(NAME)


CHANGES = [written, replaced, removed, read]


@each_row("change", CHANGES, ids=lambda change: change.__name__)
@each_row("part", ["a", "a/b", NAME])
def test_link_at_any_depth_of_a_path_is_an_error(tmp_path, part, change):
    folder, elsewhere = top(tmp_path), outside_folder(tmp_path)
    (folder / part).rename(tmp_path / "moved")
    (folder / part).symlink_to(elsewhere / "c.json" if part == NAME else elsewhere)
    before = folder_state(elsewhere)
    with (
        OpenFolder.open(folder) as opened,
        pytest.raises(InputError, match="symbolic link") as caught,
    ):
        change(opened)
    assert str(folder / part) in caught.value.message
    assert "remove the link" in (caught.value.hint or "")
    assert folder_state(elsewhere) == before
    assert (folder / part).is_symlink()


@each_row("change", CHANGES, ids=lambda change: change.__name__)
@each_row("kind", OBSTACLES)
@each_row("part", ["a/b", NAME])
def test_unexpected_file_type_is_an_error(tmp_path, part, kind, change):
    folder = top(tmp_path)
    (folder / part).rename(tmp_path / "moved")
    if kind == "folder" and part != NAME:  # there it is correct
        kind = "file"
        (folder / part).touch()
    else:
        OBSTACLES[kind](folder / part)
    with OpenFolder.open(folder) as opened, pytest.raises(InputError, match=f"it is a {kind}"):
        change(opened)
    assert os.path.lexists(folder / part)


@each_row("name", ["/etc/passwd", "../x", "a/../../x", "..", "", "a//b", "./a", "a\0"])
@each_row(
    "use",
    [
        lambda folder, name: folder.write(name, b""),
        lambda folder, name: folder.remove(name),
        lambda folder, name: folder.folder(name, make=True),
    ],
)
def test_name_outside_the_folder_is_an_error(tmp_path, name, use):
    folder = top(tmp_path)
    before = folder_state(tmp_path)
    with (
        OpenFolder.open(folder) as opened,
        pytest.raises(InputError, match="is not a path inside this folder"),
    ):
        use(opened, name)
    assert folder_state(tmp_path) == before


def test_folder_given_by_the_user_can_be_reached_through_links(tmp_path):
    folder = top(tmp_path)
    (tmp_path / "link").symlink_to(folder)
    with OpenFolder.open(tmp_path / "link") as opened:
        assert opened.write("d/e", b"new")
        assert not opened.write("d/e", b"new")
    assert (folder / "d/e").read_bytes() == b"new"


def test_hard_link_into_a_folder_keeps_the_content(tmp_path):
    folder = top(tmp_path)
    (tmp_path / "other").hardlink_to(folder / NAME)
    codec.write_bytes(folder / NAME, b"new", below=folder)
    assert (tmp_path / "other").read_bytes() == b"old"


def test_files_are_still_written_to_a_moved_folder(tmp_path):
    """The open folder is used, so a link that replaces the folder has no effect."""
    folder, elsewhere = top(tmp_path), outside_folder(tmp_path)
    before = folder_state(elsewhere)
    with OpenFolder.open(folder) as opened, opened.folder("a/b") as below:
        (folder / "a").rename(folder / "moved")
        (folder / "a").symlink_to(elsewhere)
        below.write("c.json", b"new")
        assert below.remove("c.json")
    assert folder_state(elsewhere) == before


def test_link_in_a_folder_tree_is_an_error(tmp_path):
    folder = top(tmp_path)
    with OpenFolder.open(folder) as opened:
        assert list(opened.file_paths()) == [NAME]
        (folder / "a/link").symlink_to(outside_folder(tmp_path))
        with pytest.raises(InputError, match="a/link: it is a symbolic link"):
            list(opened.file_paths())


def test_default_output_locations_do_not_follow_links(tmp_path):
    folder, elsewhere = top(tmp_path), outside_folder(tmp_path)
    assert require_below(folder, folder / "build/small") == folder / "build/small"
    (folder / "build").symlink_to(elsewhere)
    for name in ("build", "build/small"):
        with pytest.raises(InputError, match="build: it is a symbolic link"):
            require_below(folder, folder / name)


@each_row("opener", [files.open_locked, lambda path: regular_file(path, os.O_RDWR)])
@each_row("kind", ["link", *OBSTACLES])
def test_file_for_a_lock_must_be_a_regular_file(tmp_path, opener, kind):
    path, elsewhere = tmp_path / "lock", outside_folder(tmp_path)
    if kind == "link":
        path.symlink_to(elsewhere / "c.json")
    else:
        OBSTACLES[kind](path)
    with pytest.raises(InputError):
        opener(path)
    assert folder_state(elsewhere) == {"c.json": b"mine", "deep/notes": b"mine"}


def test_socket_in_a_folder_is_an_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("out")
        with pytest.raises(InputError, match="it is a socket"):
            codec.write_bytes(tmp_path / "out", b"new")


def test_folder_of_the_user_is_made_private(tmp_path):
    (tmp_path / "cache/files").mkdir(parents=True)
    (tmp_path / "cache").chmod(0o755)
    (tmp_path / "cache/files").chmod(0o777)
    assert not make_private(tmp_path / "cache", "files")
    assert make_private(tmp_path / "cache", "files", "ab")
    assert [path.stat().st_mode & 0o777 for path in sorted((tmp_path / "cache").rglob("*"))] == [
        0o755,
        0o755,
    ]


# -- the checked file is the linked or copied one


@pytest.fixture(name="source")
def _source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(DATA)
    path.chmod(0o444)
    (tmp_path / "out").mkdir()
    return path


def placed(source: Path, name: str = "blob") -> Path:
    """Place DATA from `source` in the folder `out`."""
    out = source.with_name("out")
    with OpenFolder.open(out) as folder:
        place_file(folder, name, source, sha256(DATA), SILENT_REPORTER, prefix=".tmp-")
    assert not list(out.glob(".tmp-*"))
    return out / name


def test_file_owned_by_the_user_is_hard_linked(source):
    assert placed(source).samefile(source)


@pytest.mark.parametrize("change", ["owner", "mode"])
def test_file_that_others_can_write_to_is_copied(source, change):
    if os.geteuid():
        pytest.skip("only root can give a file to another user")
    if change == "owner":
        os.chown(source, 65534, 65534)
    else:
        source.chmod(0o666)
    path = placed(source)
    assert not path.samefile(source)
    assert (path.read_bytes(), path.stat().st_uid, path.stat().st_mode & 0o777) == (DATA, 0, 0o444)


@pytest.mark.parametrize("owner", [0, 65534])
def test_file_replaced_after_the_check_has_no_effect(source, monkeypatch, owner):
    """The checked file is replaced before the link or copy is made."""
    if os.geteuid():
        pytest.skip("only root can give a file to another user")
    os.chown(source, owner, owner)

    def swap() -> Path:
        evil = source.with_name("evil")
        evil.write_bytes(b"E" * len(DATA))
        return Path(evil.replace(source))

    for name in ("create_link", "new_file"):
        real = getattr(OpenFolder, name)
        monkeypatch.setattr(OpenFolder, name, lambda *words, real=real: (swap(), real(*words))[1])
    assert placed(source).read_bytes() == DATA
    assert source.read_bytes() != DATA


def test_file_with_a_wrong_hash_is_not_placed_in_the_folder(source):
    for mode in (0o444, 0o666):  # linked, copied
        source.chmod(0o644)
        source.write_bytes(b"E" * len(DATA))
        source.chmod(mode)
        with pytest.raises(IntegrityError, match="the content does not match its digest"):
            placed(source)
        assert not list(source.with_name("out").iterdir())


def test_hash_of_a_file_that_others_can_write_to_is_not_recorded(source):
    """A write through a mapping may leave all times unchanged, even in this process."""
    hashes = known_hashes.KnownHashes(None)
    source.chmod(0o666)
    while not hashes.matches(source, sha256(DATA)):
        pass
    status = source.stat()
    with source.open("r+b") as file:
        file.write(b"E")
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert not hashes._memory
    assert not hashes.matches(source, sha256(DATA))
