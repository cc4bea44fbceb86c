"""Tests that files of other users in a cache are copied and never linked or used directly.

Only root can give files to another user. tests/integration/test_shared_cache.py tests races with a
process of another user.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from imgbuild.cache import prune
from imgbuild.cache.store import FORMAT, Store
from imgbuild.errors import InputError
from imgbuild.oci import layout
from imgbuild.values import Arch, sha256
from tests.support import images
from tests.support.links import OBSTACLES, folder_state, outside_folder
from tests.unit.cache.test_damage import DATA, DIGEST, Warnings, added, cached_path, unpacked

OTHER = 65534

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to other users")


@pytest.fixture(name="warnings")
def _warnings() -> Warnings:
    return Warnings()


@pytest.fixture(name="store")
def _store(tmp_path: Path, warnings: Warnings) -> Store:
    return Store.open(tmp_path / "cache", warnings)


def given(path: Path) -> Path:
    os.chown(path, OTHER, OTHER)
    return path


@needs_root
@pytest.mark.parametrize("kind", ["file", "blob"])
@pytest.mark.parametrize("change", ["owner", "mode"])
def test_cache_entry_that_others_can_write_to_is_replaced_by_a_copy(store, warnings, kind, change):
    path = added(store, kind)
    if change == "owner":
        given(path)
    else:
        path.chmod(0o666)
    with path.open("r+b") as theirs:  # the file stays open
        assert cached_path(store, kind) == path
        theirs.write(b"E")
    assert path.read_bytes() == DATA
    assert (path.stat().st_uid, path.stat().st_mode & 0o777, path.stat().st_nlink) == (0, 0o444, 1)
    assert warnings.messages == []


@needs_root
@pytest.mark.parametrize("kind", ["file", "blob"])
def test_damaged_entry_of_another_user_is_removed(store, warnings, kind):
    path = added(store, kind)
    path.chmod(0o644)
    path.write_bytes(b"E" * len(DATA))
    given(path)
    assert cached_path(store, kind) is None
    assert not path.exists()
    assert len(warnings.messages) == 1


@needs_root
def test_layout_has_no_link_to_a_file_of_another_user(store, tmp_path):
    """The owner of the file could change the image after it was built and checked."""
    layers = [images.make_layer(tmp_path / "blobs", [images.text_member("word", "x" * 1000)])]
    (record, path) = layers[0]
    summary = images.image_files([(record, store.add_blob(path, record.digest))])
    given(path := store.blob(record.digest))
    assert path is not None
    # through the cache, and only through the layout
    for source in (store.blob(record.digest), given(path)):
        assert source is not None
        files = layout.ImageFiles(
            config=summary.config, manifest=summary.manifest, layers={record.digest: source}
        )
        out = tmp_path / f"out-{source.stat().st_uid}"
        layout.write_layout(out, {Arch.X86_64: files}, "tiny")
        (blob,) = [each.digest for each in layout.read_layout(out).image(Arch.X86_64).layers]
        assert layout.blob_path(out, blob).stat().st_uid == 0
        images.verify_layout(out)


@needs_root
def test_layout_layer_of_another_user_is_replaced(tmp_path):
    layers = [images.make_layer(tmp_path / "blobs", [images.text_member("word", "x" * 1000)])]
    files = {Arch.X86_64: images.image_files(layers)}
    digest = layout.write_layout(tmp_path / "out", files, "tiny")
    blob = layout.blob_path(tmp_path / "out", layers[0][0].digest)
    blob.unlink()
    blob.write_bytes(layers[0][1].read_bytes())
    given(blob)
    assert not layout.has_complete_image(tmp_path / "out", digest)
    layout.write_layout(tmp_path / "out", files, "tiny")
    assert layout.has_complete_image(tmp_path / "out", digest)
    assert blob.stat().st_uid == 0


@pytest.mark.parametrize("name", ["", "files", "blobs", "blobs/sha256", "locks", "partial"])
def test_cache_folders_that_others_can_write_to_are_made_private(store, tmp_path, warnings, name):
    path = added(store, "blob")
    with store.partial(sha256(b"x"), stop=lambda: False):
        added(store, "file")
    (store.root / name).chmod(0o777)
    again = Store.open(store.root, warnings)
    assert again.blob(DIGEST) == path
    assert again.file(sha256(DATA)) is not None
    with again.partial(sha256(b"x"), stop=lambda: False):
        assert (store.root / name).stat().st_mode & 0o777 == 0o755
    assert len(warnings.messages) == (not name)
    assert all("removed the write permission of other users" in each for each in warnings.messages)


def test_cache_is_private_in_spite_of_a_permissive_umask(tmp_path, warnings):
    mask = os.umask(0)
    try:
        store = Store.open(tmp_path / "cache", warnings)
        added(store, "blob")
        added(store, "file")
        unpacked(store)
        store.put_fact("kind", "key", b"data")
        with store.partial(sha256(b"x"), stop=lambda: False):
            folders = [path for path in store.root.rglob("*") if path.is_dir()]
            assert not [path for path in (store.root, *folders) if path.stat().st_mode & 0o022]
    finally:
        os.umask(mask)
    assert warnings.messages == []


@needs_root
@pytest.mark.parametrize("name", ["", "blobs", "blobs/sha256", "locks", "scratch", "live"])
def test_folder_of_another_user_is_refused(store, name):
    added(store, "blob")
    given(store.root / name)
    with pytest.raises(InputError, match=f"belongs to user ID {OTHER}") as caught:
        added(Store.open(store.root), "blob")
    assert "IMGBUILD_CACHE" in (caught.value.hint or "")


@pytest.mark.parametrize(
    "name", ["files", "blobs", "blobs/sha256", "locks", "scratch", "live", "partial", "facts"]
)
def test_link_in_place_of_a_cache_folder_is_refused_and_nothing_is_removed(store, tmp_path, name):
    added(store, "blob")
    added(store, "file")
    store.put_fact("kind", "key", b"data")
    elsewhere = outside_folder(tmp_path)
    (elsewhere / "ab").mkdir()
    (elsewhere / "ab" / ("0" * 64)).write_bytes(b"mine")
    (elsewhere / ("0" * 64)).write_bytes(b"mine")
    if (store.root / name).exists():
        (store.root / name).rename(tmp_path / "moved")
    (store.root / name).symlink_to(elsewhere)
    before = folder_state(elsewhere)

    def use() -> None:
        other = Store.open(store.root)
        other.put_fact("kind", "key", b"data")
        with other.partial(sha256(b"x"), stop=lambda: False):
            added(other, "blob")
        added(other, "file")

    with pytest.raises(InputError, match=f"{name}: it is a symbolic link"):
        use()
    if name not in ("locks", "scratch", "live"):
        prune.clear_cache(Store.open(store.root))
        prune.verify_entries(Store.open(store.root), lambda _: None)
    assert folder_state(elsewhere) == before


def test_cleanup_does_not_follow_a_link_in_place_of_the_scratch_folder(store, tmp_path):
    """The cache has an unlocked marker in `live/`, and `scratch` is a link."""
    elsewhere = outside_folder(tmp_path)
    (store.root / "live").mkdir()
    (store.root / "live/deep").touch()
    (store.root / "scratch").symlink_to(elsewhere)
    Store.open(store.root).remove_leftovers()
    assert folder_state(elsewhere) == {"c.json": b"mine", "deep/notes": b"mine"}


@pytest.mark.parametrize("kind", ["link", *OBSTACLES])
def test_partial_download_that_is_a_link_is_not_used(store, tmp_path, kind):
    """An earlier version followed the link and overwrote its target."""
    elsewhere = outside_folder(tmp_path)
    (store.root / "partial").mkdir()
    path = store.root / "partial" / sha256(DATA)
    if kind == "link":
        path.symlink_to(elsewhere / "c.json")
    else:
        OBSTACLES[kind](path)
    with (
        pytest.raises(InputError, match="partial/"),
        store.partial(sha256(DATA), stop=lambda: False),
    ):
        pass
    assert folder_state(elsewhere) == {"c.json": b"mine", "deep/notes": b"mine"}
    assert prune.list_entries(store) == []


@needs_root
@pytest.mark.parametrize("change", ["owner", "mode"])
def test_partial_download_that_others_can_write_to_is_restarted(store, change):
    (store.root / "partial").mkdir()
    path = store.root / "partial" / sha256(DATA)
    path.write_bytes(b"half")
    if change == "owner":
        given(path)
    else:
        path.chmod(0o666)
    before = path.stat().st_ino
    with path.open("rb"), store.partial(sha256(DATA), stop=lambda: False) as partial:
        assert partial == path
        assert path.stat().st_uid == 0
        assert (path.read_bytes(), path.stat().st_ino == before) == (b"", False)


@needs_root
def test_cached_fact_of_another_user_is_ignored(store):
    store.put_fact("kind", "key", b"data")
    (fact,) = store.root.glob("facts/kind/*/*")
    given(fact)
    assert store.fact("kind", "key") is None
    store.put_fact("kind", "key", b"again")
    assert store.fact("kind", "key") == b"again"


@pytest.mark.parametrize("kind", ["link", *OBSTACLES])
def test_pipe_in_place_of_a_cache_entry_does_not_block(store, tmp_path, kind):
    store.put_fact("kind", "key", b"data")
    path = added(store, "blob")
    (fact,) = store.root.glob("facts/kind/*/*")
    for place in (path, fact):
        place.unlink()
        if kind == "link":
            place.symlink_to("/dev/zero")
        else:
            OBSTACLES[kind](place)
    assert store.fact("kind", "key") is None
    if kind == "folder":
        with pytest.raises(Exception, match="is damaged and cannot be removed"):
            store.blob(DIGEST)
    else:
        assert store.blob(DIGEST) is None
        assert not os.path.lexists(path)
    assert prune.list_entries(store) == []


@pytest.mark.parametrize("kind", ["link", *OBSTACLES])
def test_cache_format_file_that_is_not_regular_is_refused(store, kind):
    (store.root / "FORMAT").unlink()
    if kind == "link":
        (store.root / "FORMAT").symlink_to("/dev/zero")
    else:
        OBSTACLES[kind](store.root / "FORMAT")
    with pytest.raises(Exception, match=r"FORMAT|another version"):
        Store.open(store.root)
    assert FORMAT == b"1\n"


def test_cache_root_can_be_a_link(store, tmp_path):
    (tmp_path / "link").symlink_to(store.root)
    added(Store.open(tmp_path / "link"), "blob")
    assert store.blob(DIGEST) is not None


# -- a folder shared by users, as /tmp


@contextlib.contextmanager
def as_other() -> Iterator[None]:
    """Run the body as another user."""
    os.seteuid(OTHER)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture(name="shared")
def _shared() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        (Path(name) / "cache").mkdir()
        (Path(name) / "cache").chmod(0o1777)
        yield Path(name) / "cache"


@needs_root
@pytest.mark.parametrize("kind", ["file", "blob"])
def test_users_of_a_shared_cache_folder_copy_files_from_each_other(shared, kind):
    with as_other():
        theirs = added(Store.open(shared), kind)
        assert theirs.is_relative_to(shared / f"user-{OTHER}")
        assert theirs.stat().st_uid == OTHER
    store = Store.open(shared)
    path = cached_path(store, kind)
    assert path is not None
    assert path.is_relative_to(shared / "user-0")
    assert (path.read_bytes(), path.stat().st_uid, path.stat().st_nlink) == (DATA, 0, 1)
    assert cached_path(store, kind) == path
    assert len(prune.list_entries(store)) == 1
    prune.clear_cache(Store.open(shared))
    assert theirs.read_bytes() == DATA
    with as_other():
        assert cached_path(Store.open(shared), kind) == theirs


@needs_root
@pytest.mark.parametrize("change", ["damaged", "link", *OBSTACLES])
def test_shared_file_of_another_user_is_used_only_if_it_is_valid(shared, change):
    with as_other():
        theirs = added(Store.open(shared), "blob")
        if change == "damaged":
            theirs.chmod(0o644)
            theirs.write_bytes(b"E" * len(DATA))
    if change != "damaged":
        theirs.unlink()
        if change == "link":
            (shared.parent / "right").write_bytes(DATA)
            theirs.symlink_to(shared.parent / "right")
        else:
            OBSTACLES[change](theirs)
    store = Store.open(shared)
    assert store.blob(DIGEST) is None
    assert os.path.lexists(theirs)
    path = added(store, "blob")
    assert (store.blob(DIGEST), path.stat().st_uid) == (path, 0)


@needs_root
@pytest.mark.parametrize("kind", ["link", "folder", "file"])
def test_user_folder_created_by_another_user_is_refused(shared, tmp_path, kind):
    elsewhere = outside_folder(tmp_path)
    place = shared / "user-0"
    if kind == "link":
        place.symlink_to(elsewhere)
    elif kind == "folder":
        place.mkdir()
        given(place)
    else:
        place.touch()
        given(place)
    with pytest.raises(InputError, match="user-0"):
        Store.open(shared)
    assert folder_state(elsewhere) == {"c.json": b"mine", "deep/notes": b"mine"}


@needs_root
@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_shared_cache_folder_must_belong_to_root_or_this_user(shared, mode):
    """The owner of the folder could rename its entries. Without the sticky bit, any user could."""
    shared.chmod(mode)
    if mode == 0o1777:
        given(shared)
        with pytest.raises(InputError, match=f"belongs to user ID {OTHER}"):
            Store.open(shared)
        return
    with as_other(), pytest.raises(InputError, match="belongs to user ID 0") as caught:
        Store.open(shared)
    assert "1777" in (caught.value.hint or "")
