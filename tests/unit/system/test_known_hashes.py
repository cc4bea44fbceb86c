"""Tests that hashes of files are stored until a file changes."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from imgbuild.errors import IntegrityError
from imgbuild.system import known_hashes
from imgbuild.system.known_hashes import NAME, KnownHashes
from imgbuild.values import sha256
from tests.support.hashed import hashed_files

GOOD = b"good bytes"
SAME_SIZE = b"evil bytes"


@pytest.fixture(autouse=True)
def _small_files_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_hashes, "SMALL_FILE", -1)


@pytest.fixture(name="state")
def _state(tmp_path: Path) -> Path:
    return tmp_path / "state/imgbuild"


@pytest.fixture(name="path")
def _path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(GOOD)
    return path


@pytest.fixture(name="reads")
def _reads(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """A function that counts the files hashed since its last call."""
    hashed_paths = hashed_files(monkeypatch)

    def count() -> int:
        number = len(hashed_paths)
        hashed_paths.clear()
        return number

    return count


def settle(path: Path) -> None:
    """Wait until a change of the file would update its times."""
    while time.time_ns() - path.stat().st_ctime_ns <= known_hashes.TICK_NS:
        time.sleep(0.005)


def recorded(path: Path, state: Path) -> KnownHashes:
    settle(path)
    hashes = KnownHashes(state)
    hashes.record_hash(path, sha256(GOOD))
    return hashes


def test_unchanged_file_is_hashed_once_for_all_processes(state, path, reads):
    settle(path)
    for number in range(3):  # objects share no state, like processes
        assert KnownHashes(state).matches(path, sha256(GOOD))
        assert not KnownHashes(state).matches(path, sha256(SAME_SIZE))
        assert reads() == (1 if number == 0 else 0)
    assert state.stat().st_mode & 0o777 == 0o700


def test_small_file_is_hashed_each_time_it_is_checked(state, path, monkeypatch, reads):
    monkeypatch.setattr(known_hashes, "SMALL_FILE", len(GOOD))
    hashes = recorded(path, state)
    for number in (1, 2):
        assert hashes.matches(path, sha256(GOOD))
        assert reads() == 1, number
    path.write_bytes(GOOD + b"!")
    settle(path)
    for number, count in enumerate((1, 0)):
        assert hashes.matches(path, sha256(GOOD + b"!"))
        assert reads() == count, number


def test_later_hash_record_of_another_process_is_used(state, path, reads):
    settle(path)
    ours, other = KnownHashes(state), KnownHashes(state)
    first = path.with_name("first")
    first.write_bytes(GOOD)
    ours.matches(first, sha256(GOOD))  # has read the records by now
    other.record_hash(path, sha256(GOOD))
    reads()
    assert ours.matches(path, sha256(GOOD))
    assert reads() == 0


def swapped(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(SAME_SIZE)
    other.replace(path)


def back_in_time(path: Path) -> None:
    before = path.stat()
    path.write_bytes(SAME_SIZE)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("change", [
    lambda path: path.write_bytes(SAME_SIZE),
    lambda path: path.write_bytes(GOOD[:-1]),
    back_in_time,
    swapped,
])  # fmt: skip
def test_changed_file_is_hashed_again(state, path, change):
    hashes = recorded(path, state)
    change(path)
    assert not hashes.matches(path, sha256(GOOD))
    assert not KnownHashes(state).matches(path, sha256(GOOD))


def test_change_right_after_recording_a_hash_is_detected(state, path):
    """The record waits for the next clock tick, so a later change has another time."""
    for number in range(20):
        path.write_bytes(GOOD)
        KnownHashes(state).record_hash(path, sha256(GOOD))
        path.write_bytes(SAME_SIZE)
        assert not KnownHashes(state).matches(path, sha256(GOOD)), number


def test_hash_of_a_file_changed_while_it_is_read_is_not_recorded(state, path, monkeypatch):
    settle(path)
    real = hashlib.file_digest

    def digest(file, kind):
        checksum = real(file, kind)
        path.write_bytes(SAME_SIZE)
        return checksum

    monkeypatch.setattr(hashlib, "file_digest", digest)
    assert not KnownHashes(state).matches(path, sha256(GOOD))
    monkeypatch.undo()
    assert not KnownHashes(state).matches(path, sha256(GOOD))


def test_hash_of_a_recently_changed_file_is_not_recorded(state, path, monkeypatch, reads):
    """Two changes can have the same time if the clock resolution is low."""
    monkeypatch.setattr(known_hashes, "TICK_NS", 3600 * 10**9)
    for _ in range(2):
        assert KnownHashes(state).matches(path, sha256(GOOD))
        assert reads() == 1


def test_change_right_before_recording_a_hash_is_detected(state, path, monkeypatch):
    real = time.sleep

    def sleep(seconds):
        path.write_bytes(SAME_SIZE)
        real(seconds)

    path.write_bytes(GOOD)
    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(known_hashes, "TICK_NS", 100_000_000)
    KnownHashes(state).record_hash(path, sha256(GOOD))
    assert path.read_bytes() == SAME_SIZE
    assert not KnownHashes(state).matches(path, sha256(GOOD))


def test_invalid_hash_record_does_not_affect_other_records(state, path, tmp_path, reads):
    settle(path)
    KnownHashes(state).record_hash(path, sha256(GOOD))
    with sqlite3.connect(state / NAME) as database:
        database.execute("insert into known values (cast(x'ff' as text), x'00', null)")
    database.close()
    assert KnownHashes(state).matches(path, sha256(GOOD))
    assert reads() == 0


def test_hash_record_is_written_after_the_next_clock_tick(state, path, monkeypatch):
    monkeypatch.setattr(known_hashes, "TICK_NS", 300_000_000)
    path.write_bytes(GOOD)
    changed = path.stat().st_ctime_ns
    KnownHashes(state).record_hash(path, sha256(GOOD))
    assert time.time_ns() - changed >= known_hashes.TICK_NS


def test_changed_link_count_and_access_time_keep_a_hash_record(state, path, tmp_path, reads):
    hashes = recorded(path, state)
    with hashes.relinking(path):
        (tmp_path / "link").hardlink_to(path)
    hashes.touch(path)
    with hashes.relinking(path):
        path.unlink()
    assert KnownHashes(state).matches(tmp_path / "link", sha256(GOOD))
    assert reads() == 0


def test_content_change_together_with_the_link_count_is_detected(state, path, tmp_path):
    hashes = recorded(path, state)
    with hashes.relinking(path):
        (tmp_path / "link").hardlink_to(path)
        path.write_bytes(SAME_SIZE)
    assert not hashes.matches(path, sha256(GOOD))
    hashes.touch(path)
    assert not hashes.matches(path, sha256(GOOD))


@pytest.mark.parametrize("way", ["relinked", "touch"])
def test_hash_of_a_file_that_others_can_write_to_is_unknown_after_a_link_change(
    state, path, way, reads
):
    """The owner can change the file meanwhile and reset its mtime."""
    path.chmod(0o666)
    settle(path)
    hashes = KnownHashes(state)
    assert hashes.matches(path, sha256(GOOD))
    reads()
    if way == "touch":
        hashes.touch(path)
        assert hashes.matches(path, sha256(GOOD))
        assert reads() == 1
        return
    with hashes.relinking(path):
        back_in_time(path)
    assert not hashes.matches(path, sha256(GOOD))


def test_hash_of_a_file_replaced_while_it_is_read_is_not_recorded(state, path):
    seen = path.stat()
    swapped(path)
    hashes = KnownHashes(state)
    hashes.record_hash(path, sha256(GOOD), seen)
    assert not hashes.matches(path, sha256(GOOD))


def test_unreachable_folder_of_hash_records_is_ignored(path, tmp_path, reads):
    settle(path)
    for _ in range(2):  # stat of another user's home fails in the same manner
        assert KnownHashes(tmp_path / ("x" * 300) / "imgbuild").matches(path, sha256(GOOD))
        assert reads() == 1


def test_file_without_a_hash_record_has_none_after_link_or_touch(state, path, tmp_path, reads):
    settle(path)
    hashes = KnownHashes(state)
    with hashes.relinking(path):
        (tmp_path / "link").hardlink_to(path)
    hashes.touch(path)
    assert hashes.matches(path, sha256(GOOD))
    assert reads() == 1


@pytest.mark.parametrize("mode", [0o666, 0o664, 0o646])
def test_hash_of_a_file_writable_by_others_is_not_recorded(state, path, mode, reads):
    path.chmod(mode)
    settle(path)
    for _ in range(2):
        assert KnownHashes(state).matches(path, sha256(GOOD))
        assert reads() == 1


def test_hash_of_a_file_of_another_user_is_not_recorded(state, path, reads):
    if os.geteuid():
        pytest.skip("only root can give a file to another user")
    os.chown(path, 4242, 4242)
    settle(path)
    for _ in range(2):
        assert KnownHashes(state).matches(path, sha256(GOOD))
        assert reads() == 1


def test_change_during_touch_is_detected(state, path, monkeypatch):
    settle(path)
    KnownHashes(state).record_hash(path, sha256(GOOD))
    utime = os.utime

    def _then_write(*args: Any, **options: Any) -> None:
        utime(*args, **options)
        path.write_bytes(SAME_SIZE)

    monkeypatch.setattr(os, "utime", _then_write)
    KnownHashes(state).touch(path)
    assert not KnownHashes(state).matches(path, sha256(GOOD))


@pytest.mark.parametrize("harm", ["mode", "link", "file", "none", "owner"])
def test_files_are_hashed_if_no_folder_of_hash_records_exists(state, path, tmp_path, harm, reads):
    settle(path)
    if harm == "none":
        state = None
    else:
        KnownHashes(state).record_hash(path, sha256(SAME_SIZE))  # as a user with write access could
    if harm == "mode":
        state.chmod(0o711)  # permission to enter it is sufficient
    elif harm == "owner":
        if os.geteuid():
            pytest.skip("only root can give a folder to another user")
        os.chown(state, 4242, 4242)
    elif harm == "link":
        state.rename(tmp_path / "elsewhere")
        state.symlink_to(tmp_path / "elsewhere")
    elif harm == "file":
        (state / NAME).unlink()
        state.rmdir()
        state.touch()
    for _ in range(2):
        assert KnownHashes(state).matches(path, sha256(GOOD))
        assert reads() == 1


def test_root_creates_no_folder_in_the_home_of_another_user(state, path, tmp_path):
    if os.geteuid():
        pytest.skip("only root can give a folder to another user")
    settle(path)
    (tmp_path / "home").mkdir()
    os.chown(tmp_path / "home", 4242, 4242)
    KnownHashes(tmp_path / "home/state/imgbuild").record_hash(path, sha256(GOOD))
    assert list((tmp_path / "home").iterdir()) == []


@pytest.mark.parametrize("rubbish", [b"", b"rubbish" * 1000, b"SQLite format 3\0" + b"\xff" * 5000])
def test_damaged_database_of_hashes_is_recreated(state, path, rubbish, reads):
    settle(path)
    KnownHashes(state).record_hash(path, sha256(GOOD))
    (state / NAME).write_bytes(rubbish)
    for _ in range(3):
        assert KnownHashes(state).matches(path, sha256(GOOD))
    assert KnownHashes(state).matches(path, sha256(GOOD))
    assert 1 <= reads() <= 2


def test_locked_database_of_hashes_is_not_an_error(state, path, monkeypatch):
    settle(path)
    monkeypatch.setattr(known_hashes, "WAIT_SECONDS", 0.05)
    KnownHashes(state).record_hash(path, sha256(GOOD))
    with sqlite3.connect(state / NAME, isolation_level=None) as other:
        other.execute("begin exclusive")
        assert KnownHashes(state).matches(path, sha256(GOOD))
        other.execute("rollback")
    other.close()


def test_concurrent_writers_lose_no_hash_records(state, tmp_path, reads):
    paths = [tmp_path / f"{number}" for number in range(40)]
    for path in paths:
        path.write_bytes(path.name.encode())

    def work(mine: list[Path]) -> None:
        hashes = KnownHashes(state)
        for path in mine:
            hashes.record_hash(path, sha256(path.name.encode()))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, [paths[at::4] for at in range(4)]))
    assert all(KnownHashes(state).matches(path, sha256(path.name.encode())) for path in paths)
    assert reads() == 0


def test_oldest_hash_records_are_dropped(state, tmp_path, monkeypatch, reads):
    monkeypatch.setattr(known_hashes, "LIMIT", 3)
    paths = [tmp_path / f"{number}" for number in range(5)]
    for path in paths:
        path.write_bytes(GOOD)
        KnownHashes(state).record_hash(path, sha256(GOOD))
    read_counts = []
    for path in reversed(paths):
        assert KnownHashes(state).matches(path, sha256(GOOD))
        read_counts.append(reads())
    assert read_counts == [0, 0, 0, 1, 1]


def test_folder_or_pipe_is_not_hashed_as_a_file(state, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "."):
        with pytest.raises(IntegrityError, match="not a regular file"):
            KnownHashes(state).matches(tmp_path / name, sha256(GOOD))


def test_state_folder_follows_the_xdg_variable(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME")
    assert known_hashes.state_folder() == tmp_path / ".local/state/imgbuild"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert known_hashes.state_folder() == tmp_path / ".local/state/imgbuild"
    monkeypatch.setenv("XDG_STATE_HOME", "/x")
    assert known_hashes.state_folder() == Path("/x/imgbuild")
