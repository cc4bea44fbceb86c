"""Tests that cache entries with wrong content are removed, reported once and recreated."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import pytest

from imgbuild.cache import prune
from imgbuild.cache.store import Store
from imgbuild.errors import InputError
from imgbuild.system import known_hashes
from imgbuild.system.reporter import SilentReporter
from imgbuild.values import sha256
from tests.support import memory_folders
from tests.support.hashed import hashed_files

DATA = b"the bytes of a layer or a wheel"
DIGEST = f"sha256:{sha256(DATA)}"


class Warnings(SilentReporter):
    """Records the warnings."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def warn(self, text: str) -> None:
        self.messages.append(text)


@pytest.fixture(name="warnings")
def _warnings() -> Warnings:
    return Warnings()


@pytest.fixture(name="store")
def _store(tmp_path: Path, warnings: Warnings) -> Store:
    return Store.open(tmp_path / "cache", warnings)


def added(store: Store, kind: str) -> Path:
    with store.scratch() as folder:
        (folder / "it").write_bytes(DATA)
        if kind == "file":
            return store.add_file(folder / "it", sha256(DATA))
        return store.add_blob(folder / "it", DIGEST)


def cached_path(store: Store, kind: str) -> Path | None:
    return store.file(sha256(DATA)) if kind == "file" else store.blob(DIGEST)


def written(path: Path, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)
    path.chmod(0o444)


def flipped(path: Path) -> None:
    written(path, bytes([DATA[0] ^ 1]) + DATA[1:])


def swapped(path: Path) -> None:
    """Replace the file with another file of the same size and age."""
    before = path.stat()
    other = path.with_name("other")
    other.write_bytes(bytes(len(DATA)))
    other.chmod(0o444)
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(path)


def piped(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


HARMS: list[Callable[[Path], None]] = [
    flipped,
    swapped,
    lambda path: written(path, DATA[:-1]),
    lambda path: written(path, b""),
    lambda path: written(path, DATA + b"\0"),
    piped,
]


@pytest.mark.parametrize("kind", ["file", "blob"])
@pytest.mark.parametrize("harm", range(len(HARMS)))
def test_damaged_cache_entry_is_removed_with_one_warning(store, warnings, kind, harm):
    path = added(store, kind)
    assert cached_path(store, kind) == path
    HARMS[harm](path)
    assert [cached_path(store, kind), cached_path(store, kind)] == [None, None]
    assert not path.exists()
    assert len(warnings.messages) == 1
    assert str(path) in warnings.messages[0]
    assert added(store, kind) == path == cached_path(store, kind)
    assert len(warnings.messages) == 1


def test_warning_about_a_damaged_entry_has_the_name_of_the_input(store, warnings):
    path = added(store, "file")
    store.put_fact("name", sha256(DATA), b"wheel-1.0-py3-none-any.whl")
    flipped(path)
    assert cached_path(store, "file") is None
    assert "wheel-1.0-py3-none-any.whl" in warnings.messages[0]


def test_damaged_cache_file_is_detected_by_other_processes(store, warnings):
    """Other processes have no record of the file, as after a copy of the cache."""
    flipped(added(store, "blob"))
    known_hashes._open_database.cache_clear()
    assert Store.open(store.root, warnings).blob(DIGEST) is None


def test_damage_that_several_threads_detect_is_reported_once(store, warnings):
    path = added(store, "blob")
    flipped(path)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(store.blob, [DIGEST] * 8))
    assert answers == [None] * 8
    assert not path.exists()


@pytest.mark.parametrize("uses", [1, 3])
def test_cache_entry_that_another_process_uses_is_not_reported_as_damaged(
    store, warnings, monkeypatch, uses
):
    path = added(store, "blob")
    os.utime(path, (time.time() - 3600,) * 2)
    digest = hashlib.file_digest
    left = [None] * uses

    def used_meanwhile(file: BinaryIO, name: str) -> object:
        result = digest(file, name)  # type: ignore[arg-type]
        if left:
            left.pop()
            path.touch()
        return result

    monkeypatch.setattr(hashlib, "file_digest", used_meanwhile)
    assert cached_path(store, "blob") == path
    assert warnings.messages == []
    assert not left


def test_cache_entry_that_another_process_repaired_is_not_removed(store):
    path = added(store, "blob")
    seen = path.stat()
    swapped(path)
    store.drop_damaged(path, seen)
    assert path.exists()


def test_damaged_entry_that_cannot_be_removed_is_refused(store, monkeypatch):
    path = added(store, "blob")
    flipped(path)

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", denied)
    with pytest.raises(Exception, match="is damaged and cannot be removed") as caught:
        store.blob(DIGEST)
    assert str(path) in str(caught.value)
    assert "IMGBUILD_CACHE" in getattr(caught.value, "hint", "")


@pytest.fixture(name="reads")
def _reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return hashed_files(monkeypatch)


def test_links_to_cached_files_cause_no_new_hash_computation(store, tmp_path, reads):
    path = added(store, "blob")
    with store.scratch() as folder:  # as for layers from registries: one file under two names
        (folder / "it").hardlink_to(path)
        store.add_file(folder / "it", sha256(DATA))
    store.drop_file(sha256(DATA))
    assert cached_path(store, "blob") == path
    (tmp_path / "layout").hardlink_to(path)
    time.sleep(3 * known_hashes.TICK_NS / 1e9)
    assert cached_path(store, "blob") == path  # linked from outside: hashed
    assert reads == [str(path)]
    with known_hashes.user_known_hashes().relinking(path):
        (tmp_path / "layout").unlink()
    known_hashes.user_known_hashes().touch(path)
    known_hashes._open_database.cache_clear()  # like another process
    assert Store.open(store.root).blob(DIGEST) == path
    assert reads == [str(path)]


def test_update_of_the_last_use_causes_no_new_hash_computation(store, reads):
    path = added(store, "blob")
    os.utime(path, (1, 1))  # from outside: hashed once
    time.sleep(3 * known_hashes.TICK_NS / 1e9)
    for _ in range(2):
        known_hashes._open_database.cache_clear()
        assert Store.open(store.root).blob(DIGEST) == path
        assert path.stat().st_mtime > 1
    assert reads == [str(path)]


def test_file_copied_from_another_disk_is_hashed(store, reads):
    """The caller has checked the source file, not the copy."""
    with memory_folders.other_file_system(store.root) as folder:
        (folder / "blob").write_bytes(DATA)
        path = store.add_blob(folder / "blob", DIGEST)
    assert store.blob(DIGEST) == path
    assert reads == [str(path)]


def test_removal_of_a_blob_keeps_the_known_hash_of_its_link_in_a_layout(store, tmp_path, reads):
    path = added(store, "blob")
    hash_cache = known_hashes.user_known_hashes()
    with hash_cache.relinking(path):
        (tmp_path / "layout").hardlink_to(path)
    store.release()
    prune.clear_cache(store)
    assert not path.exists()
    assert hash_cache.matches(tmp_path / "layout", sha256(DATA))
    assert reads == []


def unpacked(store: Store) -> Path:
    with store.scratch() as scratch:
        (scratch / "one").mkdir()
        (scratch / "one/0").write_bytes(b"x")
        return store.add_unpacked({DIGEST: scratch / "one"})[DIGEST]


def test_unpacked_layers_are_accessible_only_to_their_user(store, warnings):
    mask = os.umask(0o002)
    try:
        path = unpacked(store)
    finally:
        os.umask(mask)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert store.unpacked(DIGEST) == path
    assert warnings.messages == []


@pytest.mark.parametrize("which", ["layer", "user"])
def test_unpacked_layer_that_others_can_write_to_is_recreated(store, warnings, which):
    path = unpacked(store)
    harmed = path if which == "layer" else path.parent
    harmed.chmod(0o777)
    assert store.unpacked(DIGEST) is None
    assert len(warnings.messages) == 1
    assert str(harmed) in warnings.messages[0]
    assert unpacked(store) == path == store.unpacked(DIGEST)


@pytest.mark.parametrize("how", ["owner", "link"])
def test_unpacked_layer_of_another_user_is_refused(store, tmp_path, how):
    path = unpacked(store)
    if how == "link":
        path.parent.rename(tmp_path / "theirs")
        path.parent.symlink_to(tmp_path / "theirs")
    elif os.geteuid():
        pytest.skip("only root can give a folder to another user")
    else:
        os.chown(path.parent, 4242, 4242)
    with pytest.raises(InputError, match="does not belong to the current user"):
        store.unpacked(DIGEST)
