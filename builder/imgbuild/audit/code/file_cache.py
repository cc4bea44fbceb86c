"""Caches values derived from a user's files, with one cache entry for each import root.

A project can have thousands of files, and opening an entry for each would take longer than reading
the files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from imgbuild.audit.code.model import CodeText
from imgbuild.cache.fact_values import read_fact, write_fact
from imgbuild.cache.store import Store
from imgbuild.system import decoding
from imgbuild.system.control_characters import shown_path

T = TypeVar("T")
CacheEntries = dict[str, tuple[str, msgspec.Raw]]  # file → the key of its value, and the value


class FileCache:
    """Caches one value for each file of a user, in MessagePack. Only the newest value is kept."""

    def __init__(
        self, store: Store, kind: str, key: str, texts: Sequence[CodeText], place: str = ""
    ) -> None:
        """Open the cache of `kind` for `texts`. `key` stands for the code that derives the values.

        Files with the same `CodeText.root` share an entry. With `place`, all files share one entry.
        """
        self._store = store
        self._kind = kind
        self._groups = {text.file: f"{key} {place or shown_path(text.root)}" for text in texts}
        self._stored: dict[str, CacheEntries] = {}
        self._new: dict[str, CacheEntries] = {}

    def read(self, file: str, key: str) -> msgspec.Raw | None:
        """Return the value of a file that was written with `key`.

        Return None if there is no such value.
        """
        group = self._groups[file]
        entry = self._new.get(group, {}).get(file) or self._entries(group).get(file)
        return entry[1] if entry is not None and entry[0] == key else None

    def _entries(self, group: str) -> CacheEntries:
        if group not in self._stored:
            self._stored[group] = read_fact(self._store, self._kind, group, CacheEntries) or {}
        return self._stored[group]

    def write(self, file: str, key: str, value: bytes) -> None:
        """Set the value of a file. `save` stores it."""
        self._new.setdefault(self._groups[file], {})[file] = (key, msgspec.Raw(value))

    def save(self) -> None:
        """Store the values that are new since the last call, and keep the values of other files."""
        for group, entries in self._new.items():
            self._stored[group] = {**self._entries(group), **entries}
            write_fact(self._store, self._kind, group, self._stored[group])
        self._new.clear()


def decode_value(value: msgspec.Raw, form: type[T]) -> T | None:
    """Return a value decoded as `form`, or None if it does not have this form."""
    try:
        return decoding.decode_msgpack(value, form)
    except msgspec.DecodeError:
        return None
