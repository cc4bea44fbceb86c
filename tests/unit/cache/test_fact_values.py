"""Tests values of facts in the store."""

from imgbuild.cache.fact_values import read_fact, write_fact
from imgbuild.cache.store import Store


def test_written_fact_is_read_and_an_invalid_one_is_missing(tmp_path):
    store = Store.open(tmp_path / "cache")
    write_fact(store, "kind", "key", {"a": (1, 2)})
    assert read_fact(store, "kind", "key", dict[str, tuple[int, ...]]) == {"a": (1, 2)}
    assert read_fact(store, "kind", "key", tuple[int, ...]) is None
    assert read_fact(store, "kind", "other", dict[str, tuple[int, ...]]) is None
    store.put_fact("kind", "damaged", b"rubbish")
    assert read_fact(store, "kind", "damaged", dict[str, int]) is None
