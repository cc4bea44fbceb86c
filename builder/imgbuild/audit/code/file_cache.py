"""Caches values derived from a user's files, one fact for each folder of imports.

A project has thousands of files: a fact for each would take longer to open than to read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from imgbuild.audit.code.model import CodeText
from imgbuild.audit.packages.library import pack_value, unpack_value
from imgbuild.cache.store import Store

T = TypeVar("T")
CacheEntries = dict[str, tuple[str, msgspec.Raw]]  # file → the key of its value, and the value


class FileCache:
    """One value for each of a user's files, in MessagePack; a newer value replaces an older one."""

    def __init__(
        self, store: Store, kind: str, key: str, texts: Sequence[CodeText], place: str = ""
    ) -> None:
        """The values of `kind` for `texts`; `key` stands for the code that derives them.

        Files with one `CodeText.root` are stored together, with `place` all of them.
        """
        self._store = store
        self._kind = kind
        self._groups = {text.file: f"{key} {place or text.root}" for text in texts}
        self._stored: dict[str, CacheEntries] = {}
        self._new: dict[str, CacheEntries] = {}

    def read(self, file: str, key: str) -> msgspec.Raw | None:
        """The value of a file that was written with `key`; None if there is none."""
        group = self._groups[file]
        entry = self._new.get(group, {}).get(file) or self._entries(group).get(file)
        return entry[1] if entry is not None and entry[0] == key else None

    def _entries(self, group: str) -> CacheEntries:
        if group not in self._stored:
            data = self._store.fact(self._kind, group)
            self._stored[group] = (
                unpack_value(data, CacheEntries) if data is not None else None
            ) or {}
        return self._stored[group]

    def write(self, file: str, key: str, value: bytes) -> None:
        """Set the value of a file; `save` stores it."""
        self._new.setdefault(self._groups[file], {})[file] = (key, msgspec.Raw(value))

    def save(self) -> None:
        """Store the values set since the last time, and keep the values of other files."""
        for group, entries in self._new.items():
            self._stored[group] = {**self._entries(group), **entries}
            self._store.put_fact(self._kind, group, pack_value(self._stored[group]))
        self._new.clear()


def decode_value(value: msgspec.Raw, form: type[T]) -> T | None:
    """A value as `form`; None if it does not have that form."""
    try:
        return msgspec.msgpack.decode(value, type=form)
    except msgspec.DecodeError:
        return None
