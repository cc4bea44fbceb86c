"""Reads and writes the installed file of facts about published packages.

If the cache lacks a fact, the fact is read from this file. Extensions can thus be locked, and
published targets audited, without downloading the packages. The file is a zip archive of XZ streams
that contain MessagePack. The archive comment identifies the format. `tools/facts.py` writes the
file.
"""

from __future__ import annotations

import io
import lzma
import zipfile
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from pathlib import Path

import msgspec

from imgbuild.codec import write_bytes
from imgbuild.system import decoding

# Increased by hand when a reader of wheels or Debian packages produces other results for the same
# bytes, or when the form of an entry changes; then run `make facts` to regenerate the file.
FORMAT = 1
# The kinds of facts that are stored as one entry each, a map from key to bytes.
KINDS = ("metadata", "folders", "package-2", "generated-1", "loaded-1", "advised-2")
_TIME = (1980, 1, 1, 0, 0, 0)  # the earliest time in zip format, since no time is recorded
_FILTERS = (
    {
        "id": lzma.FILTER_LZMA2,
        "preset": 9 | lzma.PRESET_EXTREME,
        "dict_size": 64 << 20,
        "lc": 4,
        "pb": 0,
    },
)
_READ_ERRORS = (
    OSError,
    zipfile.BadZipFile,
    lzma.LZMAError,
    EOFError,
    NotImplementedError,
    ValueError,
)


class FactsFile:
    """A facts file. Threads can share an instance."""

    def __init__(self, archive: zipfile.ZipFile | None) -> None:
        """`archive` stays open in memory, because reading its directory is slow."""
        self._archive = archive
        self._names = frozenset(archive.namelist() if archive is not None else ())
        self._kinds: dict[str, Mapping[str, bytes]] = {}

    @classmethod
    def open(cls, path: Path) -> FactsFile:
        """Open the facts file at `path`.

        The result has no facts if the file is missing, damaged or in a different format.
        """
        try:
            archive = zipfile.ZipFile(io.BytesIO(path.read_bytes()))
            return cls(archive if archive.comment == _comment() else None)
        except _READ_ERRORS:
            return cls(None)

    def __len__(self) -> int:
        return len(self._names)

    def entry(self, name: str) -> bytes | None:
        """Return the MessagePack data of the file `name`, or None if it is missing or damaged."""
        if self._archive is None or name not in self._names:
            return None
        try:
            return lzma.decompress(self._archive.read(name))
        except _READ_ERRORS:
            return None

    def version(self, name: str) -> str:
        """Return a text that changes with an entry, or "" if the entry is missing."""
        info = self._archive.NameToInfo.get(name) if self._archive is not None else None
        return f"{info.CRC:08x} {info.file_size}" if info is not None else ""

    def fact(self, kind: str, key: str) -> bytes | None:
        """Return a fact in the format of the cache, or None. `kind` must be in `KINDS`."""
        if kind not in KINDS:
            return None
        if kind not in self._kinds:
            data = self.entry(kind)
            try:
                facts = decoding.decode_msgpack(data, dict[str, bytes]) if data else {}
            except msgspec.MsgspecError:
                facts = {}
            self._kinds[kind] = facts
        return self._kinds[kind].get(key)


def facts_path() -> Path:
    """Return the path of the installed facts file."""
    # Not through files.data, because cached audit reports would then depend on this file.
    return Path(str(resources.files("imgbuild")), "data", "facts", "published.zip")


@lru_cache
def installed_facts() -> FactsFile:
    """Return the facts that are installed with this version of imgbuild."""
    return FactsFile.open(facts_path())


def write_facts(path: Path, entries: Mapping[str, bytes]) -> None:
    """Write `entries` (MessagePack by name) to `path`.

    The same entries result in the same bytes.
    """
    _write_entries(path, {name: _compress(data) for name, data in entries.items()})


def replace_entry(path: Path, name: str, data: bytes) -> None:
    """Replace or add the file `name` in the facts file, without compressing other files again."""
    with zipfile.ZipFile(path) as archive:
        entries = {member: archive.read(member) for member in archive.namelist()}
    _write_entries(path, entries | {name: _compress(data)})


def _compress(data: bytes) -> bytes:
    return lzma.compress(data, lzma.FORMAT_XZ, lzma.CHECK_CRC32, filters=_FILTERS)


def _write_entries(path: Path, entries: Mapping[str, bytes]) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.comment = _comment()
        for name, packed in sorted(entries.items()):
            archive.writestr(zipfile.ZipInfo(name, _TIME), packed)
    write_bytes(path, buffer.getvalue())


def _comment() -> bytes:
    return f"imgbuild facts {FORMAT}".encode()
