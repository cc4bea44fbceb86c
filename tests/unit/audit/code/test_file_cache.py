"""Tests that cached values of a user's files are stored by folder and key."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from imgbuild.audit.code.file_cache import FileCache, decode_value
from imgbuild.audit.code.model import CodeText
from imgbuild.cache.store import Store

TEXTS = [
    CodeText(file=f"{root}/{name}.py", kind="python", source=b"", root=root)
    for root, name in (("one", "a"), ("one", "b"), ("two", "a"))
]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "cache")


def _cache(store: Store, key: str = "reader", place: str = "") -> FileCache:
    return FileCache(store, "values", key, TEXTS, place)


def _value(cache: FileCache, file: str, key: str) -> int | None:
    raw = cache.read(file, key)
    return None if raw is None else decode_value(raw, int)


def _facts(store: Store) -> int:
    return sum(path.is_file() for path in (store.root / "facts" / "values").rglob("*"))


def test_cached_findings_of_a_folder_are_stored_as_one_cache_entry(store: Store) -> None:
    cache = _cache(store)
    for number, text in enumerate(TEXTS):
        cache.write(text.file, "v1", msgspec.msgpack.encode(number))
    cache.save()
    assert [_value(_cache(store), text.file, "v1") for text in TEXTS] == [0, 1, 2]
    assert _facts(store) == 2
    together = _cache(store, place="fork")
    for text in TEXTS:
        together.write(text.file, "v1", msgspec.msgpack.encode(7))
    together.save()
    assert _facts(store) == 3


def test_cached_findings_are_replaced_if_their_key_changes(
    store: Store,
) -> None:
    cache = _cache(store)
    cache.write("one/a.py", "v1", msgspec.msgpack.encode(1))
    cache.write("one/b.py", "v1", msgspec.msgpack.encode(2))
    cache.save()
    later = _cache(store)
    later.write("one/a.py", "v2", msgspec.msgpack.encode(3))
    assert _value(later, "one/a.py", "v2") == 3
    later.save()
    last = _cache(store)
    assert _value(last, "one/a.py", "v1") is None
    assert _value(last, "one/a.py", "v2") == 3
    assert _value(last, "one/b.py", "v1") == 2
    assert _value(_cache(store, key="other reader"), "one/b.py", "v1") is None


def test_cached_findings_in_a_different_format_are_ignored(store: Store) -> None:
    cache = _cache(store)
    cache.write("one/a.py", "v1", msgspec.msgpack.encode("text"))
    assert _value(cache, "one/a.py", "v1") is None
