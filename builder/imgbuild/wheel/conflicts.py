"""Paths that two packages install with different contents, found from tables alone.

Comes in: for each package the files that it installs (path, CRC, size).
Goes out: the conflicts, which the plan refuses unless the matrix says which package's file to drop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from isal import isal_zlib

from imgbuild.oci.tar import Member, Slice
from imgbuild.values import Bytes
from imgbuild.wheel.record import relative


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """A file of a package: its path as in RECORD, CRC-32 and size of its content."""

    path: str
    crc: int
    size: Bytes


class Conflict(msgspec.Struct, frozen=True, kw_only=True):
    """A path at which packages disagree: two contents, or (`folder`) a file and a folder."""

    path: str
    owners: tuple[str, ...]
    folder: bool = False

    def __str__(self) -> str:
        names = ", ".join(self.owners)
        if self.folder:
            return f"{self.path} is a file in one and a folder in another of {names}"
        return f"{self.path} has different contents in {names}"


def table(members: Iterable[Member], site_packages: str) -> tuple[Entry, ...]:
    """The entries of what a wheel installs, relative to `site_packages` (no leading slash)."""
    entries = []
    for member in members:
        content = member.content or b""
        crc = content.crc if isinstance(content, Slice) else isal_zlib.crc32(content)
        path = relative(member.path, site_packages)
        entries.append(Entry(path=path, crc=crc, size=member.size))
    return tuple(entries)


def find(tables: Mapping[str, Sequence[Entry]]) -> tuple[Conflict, ...]:
    """Every conflict between the packages of `tables`, sorted by path."""
    contents: dict[str, set[tuple[int, int]]] = {}
    owners: dict[str, list[str]] = {}
    for owner in sorted(tables):
        for entry in tables[owner]:
            contents.setdefault(entry.path, set()).add((entry.crc, entry.size))
            owners.setdefault(entry.path, []).append(owner)
    conflicts = {
        path: Conflict(path=path, owners=tuple(owners[path]))
        for path, kinds in contents.items()
        if len(kinds) > 1
    }
    for path, names in _needing_folders(owners).items():
        conflicts[path] = Conflict(
            path=path, owners=tuple(sorted({*owners[path], *names})), folder=True
        )
    return tuple(conflicts[path] for path in sorted(conflicts))


def _needing_folders(owners: Mapping[str, Sequence[str]]) -> dict[str, set[str]]:
    """Paths that are files and also folders of others, and whose files need the folder."""
    found: dict[str, set[str]] = {}
    for path, names in owners.items():
        parent = path.rpartition("/")[0]
        while parent:
            if parent in owners:
                found.setdefault(parent, set()).update(names)
            parent = parent.rpartition("/")[0]
    return found
