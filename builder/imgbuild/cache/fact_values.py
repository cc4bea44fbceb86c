"""Reads and writes values of facts as compressed MessagePack."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from isal import isal_zlib

from imgbuild.cache.store import Store
from imgbuild.oci.content import INFLATE_ERROR
from imgbuild.system import decoding

T = TypeVar("T")


def read_fact(store: Store, kind: str, key: str, form: type[T]) -> T | None:
    """Return the value from `write_fact`, or None if it is missing or invalid."""
    data = store.fact(kind, key)
    if data is None:
        return None
    try:
        return decoding.decode_msgpack(isal_zlib.decompress(data), form)
    except (INFLATE_ERROR, msgspec.DecodeError):
        return None


def write_fact(store: Store, kind: str, key: str, value: object) -> None:
    """Store `value`, which msgspec can encode."""
    store.put_fact(kind, key, bytes(isal_zlib.compress(msgspec.msgpack.encode(value), 1)))
