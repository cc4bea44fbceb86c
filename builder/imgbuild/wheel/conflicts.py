"""Finds paths that several packages install with different contents.

The paths, CRC-32 and sizes of files are compared. A conflict is an error unless `drop` in
`matrix.yaml` omits the file from all but one package.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from isal import isal_zlib

from imgbuild.oci.tar import FileSlice, LayerMember
from imgbuild.values import Bytes
from imgbuild.wheel.record import record_path


class InstalledFile(msgspec.Struct, frozen=True, array_like=True):
    """A file of a package: the path as in RECORD, and the CRC-32 and size of the content."""

    path: str
    crc: int
    size: Bytes


class PathConflict(msgspec.Struct, frozen=True, kw_only=True):
    """A path with different contents in several packages.

    If `folder` is set, the path is a file in some packages and a folder in others.
    """

    path: str
    owners: tuple[str, ...]
    folder: bool = False

    def __str__(self) -> str:
        names = ", ".join(self.owners)
        if self.folder:
            return (
                f"{self.path} is a file in some of these packages and a folder in others: {names}"
            )
        return f"{self.path} has different contents in {names}"


def installed_files(
    members: Iterable[LayerMember], site_packages: str
) -> tuple[InstalledFile, ...]:
    """Return the files that a wheel installs, relative to `site_packages`.

    `site_packages` has no leading slash.
    """
    entries = []
    for member in members:
        content = member.content or b""
        crc = content.crc if isinstance(content, FileSlice) else isal_zlib.crc32(content)
        path = record_path(member.path, site_packages)
        entries.append(InstalledFile(path=path, crc=crc, size=member.size))
    return tuple(entries)


def find_conflicts(tables: Mapping[str, Sequence[InstalledFile]]) -> tuple[PathConflict, ...]:
    """Return all conflicts between the packages of `tables`, sorted by path."""
    contents: dict[str, set[tuple[int, int]]] = {}
    owners: dict[str, list[str]] = {}
    for owner in sorted(tables):
        for entry in tables[owner]:
            contents.setdefault(entry.path, set()).add((entry.crc, entry.size))
            owners.setdefault(entry.path, []).append(owner)
    conflicts = {
        path: PathConflict(path=path, owners=tuple(owners[path]))
        for path, kinds in contents.items()
        if len(kinds) > 1
    }
    for path, names in _needing_folders(owners).items():
        conflicts[path] = PathConflict(
            path=path, owners=tuple(sorted({*owners[path], *names})), folder=True
        )
    return tuple(conflicts[path] for path in sorted(conflicts))


def _needing_folders(owners: Mapping[str, Sequence[str]]) -> dict[str, set[str]]:
    """Map each file whose path is a folder in other packages to these packages."""
    packages: dict[str, set[str]] = {}
    for path, names in owners.items():
        parent = path.rpartition("/")[0]
        while parent:
            if parent in owners:
                packages.setdefault(parent, set()).update(names)
            parent = parent.rpartition("/")[0]
    return packages
