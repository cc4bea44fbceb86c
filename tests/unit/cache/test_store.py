"""Tests names, locks, facts and temporary files of the cache."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imgbuild.cache import prune
from imgbuild.cache.settings import default_root, parse_size
from imgbuild.cache.store import Store
from imgbuild.errors import InputError, WorkFailed
from imgbuild.system import files
from imgbuild.values import sha256
from tests.support import memory_folders
from tests.support.rows import each_row


def keep_file(store: Store, data: bytes) -> str:
    with store.scratch() as folder:
        (folder / "it").write_bytes(data)
        store.add_file(folder / "it", sha256(data))
    return sha256(data)


def keep_blob(store: Store, data: bytes) -> str:
    with store.scratch() as folder:
        (folder / "it").write_bytes(data)
        store.add_blob(folder / "it", f"sha256:{sha256(data)}")
    return f"sha256:{sha256(data)}"


def age(store: Store, path: Path | None, seconds: float) -> None:
    assert path is not None
    moment = time.time() - seconds
    os.utime(path, (moment, moment))


def test_cached_file_is_found_by_its_hash(store: Store) -> None:
    path = store.file(keep_file(store, b"wheel"))
    assert path is not None
    assert path.read_bytes() == b"wheel"
    assert path.stat().st_mode & 0o777 == 0o444
    assert store.file(sha256(b"other")) is None


def test_cached_blob_is_found_by_its_digest(store: Store) -> None:
    path = store.blob(keep_blob(store, b"layer"))
    assert path is not None
    assert path.read_bytes() == b"layer"
    assert store.blob(f"sha256:{sha256(b'other')}") is None


@pytest.mark.parametrize("name", ["../../etc/passwd", "", "A" * 64, "a" * 63, "sha256:" + "a" * 64])
def test_cache_refuses_an_invalid_hash(store: Store, name: str) -> None:
    with pytest.raises(ValueError, match="not a lower-case hexadecimal SHA-256"):
        store.file(name)
    with pytest.raises(ValueError, match="not an OCI digest"):
        store.blob(name.removeprefix("sha256:"))


def test_file_from_another_disk_is_copied(store: Store) -> None:
    with memory_folders.other_file_system(store.root) as folder:
        temporary = folder / "file"
        temporary.write_bytes(b"far")
        assert store.add_file(temporary, sha256(b"far")).read_bytes() == b"far"
        assert not temporary.exists()


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(key=st.text(), data=st.binary(max_size=2000), other=st.binary(max_size=50))
def test_cached_facts_are_read_back_unchanged(
    store: Store, key: str, data: bytes, other: bytes
) -> None:
    store.put_fact("kind", key, other)
    store.put_fact("kind", key, data)
    assert store.fact("kind", key) == data
    assert store.fact("another", key) is None


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=200), cut=st.integers(0, 300))
def test_truncated_cached_fact_is_ignored(store: Store, data: bytes, cut: int) -> None:
    store.put_fact("kind", "key", data)
    (path,) = store.root.glob("facts/kind/*/*")
    whole = path.read_bytes()
    path.write_bytes(whole[:cut])
    assert store.fact("kind", "key") == (data if cut >= len(whole) else None)


def test_scratch_folder_is_removed_even_if_it_is_read_only(store: Store) -> None:
    with store.scratch() as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "file").write_bytes(b"x")
        (folder / "deep").chmod(0o500)
        assert folder.is_relative_to(store.root)
    assert not folder.exists()


def test_leftovers_are_removed_only_if_unlocked(store: Store) -> None:
    """One folder was left by a killed process, and another descriptor locks the other folder."""
    for name in ("dead", "alive"):
        (store.root / "scratch" / name).mkdir(parents=True)
        (store.root / "scratch" / name / "half").write_bytes(b"half")
        (store.root / "live").mkdir(exist_ok=True)
        (store.root / "live" / name).touch()
    descriptor = os.open(store.root / "live" / "alive", os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    store.remove_leftovers()
    assert sorted(path.name for path in (store.root / "scratch").iterdir()) == ["alive"]
    os.close(descriptor)
    store.remove_leftovers()
    assert list((store.root / "scratch").iterdir()) == []
    assert list((store.root / "live").iterdir()) == []


def test_exclusive_lock_admits_one_thread_at_a_time(store: Store) -> None:
    inside, most = 0, 0
    counter = threading.Lock()

    def work() -> None:
        nonlocal inside, most
        for _ in range(10):
            with store.hold_lock("build a/b"):
                with counter:
                    inside += 1
                    most = max(most, inside)
                time.sleep(0.001)
                with counter:
                    inside -= 1

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda _: work(), range(6)))
    assert most == 1


def test_exclusive_locks_with_different_names_do_not_block_each_other(store: Store) -> None:
    long = "x" * 300
    with store.hold_lock("a"), store.hold_lock("b"):
        pass
    with store.hold_lock(f"{long}a"), store.hold_lock(f"{long}b"):
        pass
    with store.hold_lock("a:b"), store.hold_lock("a/b"):
        pass


def test_format_of_the_cache_is_checked(store: Store) -> None:
    (store.root / "FORMAT").write_bytes(b"0\n")
    with pytest.raises(InputError, match="another version") as caught:
        Store.open(store.root)
    assert caught.value.hint


def test_cache_folder_has_cachedir_tag(store: Store) -> None:
    text = (store.root / "CACHEDIR.TAG").read_text()
    assert text.startswith("Signature: 8a477f597d28d172789f06886806bc55")


def test_cache_location_is_read_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("IMGBUILD_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert default_root() == tmp_path / ".cache" / "imgbuild"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_root() == tmp_path / ".cache" / "imgbuild"
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert default_root() == Path("/x/imgbuild")
    monkeypatch.setenv("IMGBUILD_CACHE", "~/here")
    assert default_root() == tmp_path / "here"
    assert Store.open(tmp_path / "there").root == tmp_path / "there"


@pytest.mark.parametrize("place", ["cache", "cache/imgbuild"])
def test_cache_root_that_is_a_file_or_below_a_file_is_refused_with_a_hint(
    tmp_path: Path, place: str
) -> None:
    (tmp_path / "cache").write_bytes(b"")
    with pytest.raises(InputError, match=f"cannot write to .*/{place}: it is not a fold") as caught:
        Store.open(tmp_path / place)
    assert caught.value.hint == "set IMGBUILD_CACHE to a writable folder"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_error_for_a_full_disk_has_a_hint(number: int) -> None:
    with (
        pytest.raises(WorkFailed, match="no space left for /cache") as caught,
        files.plain_errors(Path("/cache")),
    ):
        raise OSError(number, os.strerror(number))
    assert "prune" in str(caught.value.hint)


def test_file_system_without_locks_is_reported() -> None:
    message = "does not support file locks"
    with pytest.raises(InputError, match=message), files.plain_errors(Path("/lustre")):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


@each_row(
    ("text", "size"),
    [("0", 0), ("500M", 500_000_000), ("20 GB", 20_000_000_000), ("1.5k", 1500), ("2GiB", 2 << 30)],
)
def test_valid_cache_sizes_are_parsed(text: str, size: int) -> None:
    assert parse_size(text, "--max-size") == size


@each_row("text", ["", "many", "-1", "5X", "1i", "1e9", "1.G"])
def test_invalid_cache_size_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"--max-size: invalid size"):
        parse_size(text, "--max-size")


# -- maintenance


def test_prune_removes_least_recently_used_entries_first(store: Store) -> None:
    names = [keep_file(store, bytes([number]) * 100) for number in range(5)]
    for number, name in enumerate(names):
        age(store, store.file(name), 1000 - number)
    assert store.file(names[0]) is not None  # used now, therefore the most recent
    store.release()
    report = prune.prune_cache(store, 250)
    assert (report.removed, report.freed, report.left, report.in_use) == (3, 300, 200, 0)
    assert [name for name in names if store.file(name)] == [names[0], names[4]]


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    sizes=st.lists(st.integers(1, 300), max_size=6),
    limit=st.integers(0, 1500),
    used=st.sets(st.integers(0, 5)),
)
def test_prune_keeps_used_entries_and_the_size_limit(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], limit: int, used: set[int]
) -> None:
    store = Store.open(tmp_path_factory.mktemp("cache"))
    other = Store.open(store.root)
    names = [keep_blob(store, bytes([at]) * size) for at, size in enumerate(sizes)]
    store.release()
    used_names = {name for at, name in enumerate(names) if at in used}
    assert all(other.blob(name) for name in used_names)
    report = prune.prune_cache(store, limit)
    left = {name for name in names if store.blob(name)}
    assert used_names <= left
    total = sum(sizes[at] for at, name in enumerate(names) if name in left)
    assert report.left == total
    assert total <= limit or left == used_names


def test_kernel_cache_is_pruned(store: Store) -> None:
    folder = store.kernel_folder(f"sha256:{'a' * 64}")
    (folder / "inductor").mkdir()
    (folder / "inductor" / "kernel").write_bytes(bytes(100))
    (folder / "away").symlink_to(store.root / "FORMAT")
    other = Store(store.root)
    assert prune.clear_cache(other).removed == 0
    assert store.kernel_folder(f"sha256:{'a' * 64}", make=False) == folder
    store.release()
    [entry] = prune.list_entries(other)
    assert (entry.kind, entry.sha256, entry.size > 100) == ("kernels", "a" * 64, True)
    assert prune.clear_cache(other).removed == 1
    assert not folder.exists()
    assert (store.root / "FORMAT").exists()


def test_prune_keeps_entries_that_another_process_uses(store: Store) -> None:
    """A second Store represents another process, because it has a separate lock."""
    name = keep_file(store, b"used elsewhere")
    store.release()
    other = Store.open(store.root)
    assert other.file(name) is not None
    assert prune.clear_cache(store).removed == 0
    store.drop_file(name)
    assert store.file(name) is not None
    store.release()
    other.release()
    store.drop_file(name)
    assert store.file(name) is None


def test_clear_removes_all_entries(store: Store) -> None:
    keep_file(store, b"one")
    keep_blob(store, b"two")
    store.put_fact("kind", "key", b"")
    (store.root / "partial").mkdir()
    (store.root / "partial" / sha256(b"x")).touch()
    store.release()
    prune.clear_cache(store)
    assert prune.list_entries(store) == []


def test_file_of_a_running_download_is_not_cleared(store: Store) -> None:
    with store.partial(sha256(b"x"), stop=lambda: False) as path:
        assert path is not None
        path.write_bytes(b"half")
        assert prune.clear_cache(Store.open(store.root)).removed == 0
        assert path.exists()
    assert prune.clear_cache(store).freed == 4


def test_trim_removes_leftovers_without_marking_entries_as_used(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This happens in a repeated push after a process was killed."""
    monkeypatch.delenv("IMGBUILD_CACHE_SIZE", raising=False)
    (store.root / "live").mkdir()
    (store.root / "live/dead").touch()
    assert prune.trim_cache(store) is None
    assert list((store.root / "live").iterdir()) == []


@pytest.fixture(name="folder_of_all")
def _folder_of_all() -> Iterator[Path]:
    """A folder writable by every user. If the test runs as root, it continues as another user."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        (folder / "live").mkdir()
        (folder / "live").chmod(0o777)
        yield folder
        os.seteuid(os.getuid())


def test_process_markers_of_another_user_are_not_removed(folder_of_all: Path) -> None:
    """The markers `dead` and `used` are readable, but `hidden` is not."""
    store = Store.open(folder_of_all)
    for name, mode in (("dead", 0o444), ("used", 0o444), ("hidden", 0)):
        path = folder_of_all / "live" / name
        path.write_text(f"files/{name}\n")
        path.chmod(mode)
    descriptor = os.open(folder_of_all / "live/used", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    if os.geteuid() == 0:
        os.seteuid(12345)
    store.remove_leftovers()
    assert sorted(path.name for path in (folder_of_all / "live").iterdir()) == [
        "dead", "hidden", "used",
    ]  # fmt: skip
    assert store.leased_paths() == {"files/used"}
    os.close(descriptor)


def test_trim_keeps_the_cache_within_the_size_limit(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_file(store, b"a" * 100)
    monkeypatch.delenv("IMGBUILD_CACHE_SIZE", raising=False)
    assert prune.trim_cache(store) is None
    monkeypatch.setenv("IMGBUILD_CACHE_SIZE", "50")
    report = prune.trim_cache(store)
    assert report is not None
    assert report.freed == 100


def test_verify_removes_damaged_entries(store: Store) -> None:
    good, bad = keep_file(store, b"good"), keep_file(store, b"bad!")
    layer = keep_blob(store, b"layer")
    store.put_fact("kind", "key", b"data")
    for path in (store.file(bad), store.blob(layer)):
        assert path is not None
        path.chmod(0o644)
        path.write_bytes(b"B" + path.read_bytes()[1:])
    (fact,) = store.root.glob("facts/kind/*/*")
    fact.write_bytes(b"rubbish")
    read: list[int] = []
    damaged = prune.verify_entries(store, read.append)
    assert {(entry.kind, entry.sha256) for entry in damaged} == {
        ("file", bad),
        ("blob", layer.removeprefix("sha256:")),
        ("fact", fact.name),
    }
    assert sum(read) == len(b"goodbad!layer")
    assert store.file(good) is not None
    assert store.file(bad) is None
    assert store.blob(layer) is None
    assert store.fact("kind", "key") is None
    assert prune.verify_entries(store, read.append) == []


def test_new_process_marker_that_a_cleanup_has_locked_is_replaced(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    """Before it is locked, a new file in live/ looks like the file of a dead process."""
    descriptor = files.open_locked(store.root / "live/taken")
    assert descriptor is not None
    names = iter(["taken", "free"])
    patched_name = "imgbuild.cache.store.secrets.token_hex"
    monkeypatch.setattr(patched_name, lambda _: next(names, "more"))
    with store.scratch() as folder:
        assert folder.parent.name == "free"
        assert [path.name for path in (store.root / "live").iterdir()] == ["free"]
    os.close(descriptor)


def test_cleanup_ignores_a_process_marker_that_its_process_removes(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    """If a cleanup has locked the new marker of a process, the process creates another one."""
    path = store.root / "live/discarded"
    path.parent.mkdir(exist_ok=True)
    path.touch()
    monkeypatch.setattr("imgbuild.cache.processes._remove_scratch", lambda *_: path.unlink())
    store.remove_leftovers()
    assert not path.exists()
