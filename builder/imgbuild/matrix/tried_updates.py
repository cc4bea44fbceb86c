"""Reads and writes `images/updates.json`, which lists refused versions and derived rows.

`imgbuild update` writes the file, and `imgbuild site` shows its contents.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from packaging.version import Version

from imgbuild import codec
from imgbuild.matrix.fields import FormVersion, Name
from imgbuild.matrix.fields import Version as VersionText
from imgbuild.system.syntax import parse_version

FILE = "updates.json"
FILE_KIND = "list of updates"
HINT = "restore the file from git, or remove it to try the versions again"

ShortText = Annotated[str, msgspec.Meta(max_length=4000)]
RefusalKind = Literal["solve", "audit"]


class RefusedVersion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A version of a package that a row cannot use, and the conditions of the refusal.

    `row` is the hash of the row without versions, or "" for a manual entry, which always applies.
    `has` maps the packages in the reasons to the row's versions, and `newest` maps them to their
    newest usable versions. `files` is the hash of the version's file names.
    """

    package: ShortText
    version: ShortText
    reasons: tuple[ShortText, ...]
    kind: RefusalKind = "solve"
    tried: datetime.date
    row: ShortText = ""
    files: ShortText = ""
    has: dict[str, str] = {}
    newest: dict[str, str] = {}
    imgbuild: ShortText = ""


class DerivedRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row that `imgbuild update` created from another row."""

    of: Name
    made: datetime.date
    moved: dict[str, VersionText] = {}


class TriedUpdates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of `updates.json`. The keys of `refused` are the original rows."""

    version: FormVersion = 1
    rows: dict[Name, DerivedRow] = {}
    refused: dict[Name, tuple[RefusedVersion, ...]] = {}

    def origin_of_row(self, name: str) -> str:
        """Return the original row from which `name` was derived, or `name`."""
        passed = {name}
        while (row := self.rows.get(name)) is not None and row.of not in passed:
            name = row.of
            passed.add(name)
        return name

    def newest_descendant(self, name: str, present: Iterable[str]) -> str:
        """Return the newest row in `present` that was derived from `name`."""
        existing = set(present)
        made = {row.of: new for new, row in self.rows.items() if new in existing}
        passed = {name}
        while (later := made.get(name)) is not None and later not in passed:
            name = later
            passed.add(name)
        return name

    def of(self, origin: str) -> dict[tuple[str, str], RefusedVersion]:
        """Return the refusals of a row and its descendants, by package and version."""
        return {(item.package, item.version): item for item in self.refused.get(origin, ())}

    def add_refusal(self, origin: str, refusal: RefusedVersion) -> TriedUpdates:
        """Return a copy with `refusal`, which replaces an older refusal of the same version."""
        items = {**self.of(origin), (refusal.package, refusal.version): refusal}
        return msgspec.structs.replace(self, refused=self._all_refusals(origin, items))

    def add_row(self, name: str, row: DerivedRow, current: Mapping[str, str]) -> TriedUpdates:
        """Return a copy with `row`, without refusals of versions older than those of the row."""
        origin = self.origin_of_row(row.of)
        items = {
            key: item
            for key, item in self.of(origin).items()
            if not _is_passed(item.version, current.get(item.package))
        }
        rows = dict(sorted({**self.rows, name: row}.items()))
        return msgspec.structs.replace(self, rows=rows, refused=self._all_refusals(origin, items))

    def _all_refusals(
        self, origin: str, items: Mapping[tuple[str, str], RefusedVersion]
    ) -> dict[str, tuple[RefusedVersion, ...]]:
        """Return all sorted refusals by row. `items` replaces the refusals of `origin`."""
        ordered = tuple(items[key] for key in sorted(items, key=_key))
        refused = {**self.refused, origin: ordered}
        return {name: each for name, each in sorted(refused.items()) if each}


def updates_path(images: Path) -> Path:
    """Return the path of `updates.json` in the folder `images`."""
    return images / FILE


def read_updates(images: Path) -> TriedUpdates:
    """Read `updates.json` in `images`. Raises InputError if the file is damaged or a link."""
    path = updates_path(images)
    if not path.exists() and not path.is_symlink():
        return TriedUpdates()
    return codec.read_document(path, TriedUpdates, what=FILE_KIND, hint=HINT)


def write_updates(images: Path, updates: TriedUpdates, below: Path) -> None:
    """Replace `updates.json` in `images` atomically.

    Links between `below` and the file are not followed.
    """
    codec.write_document(updates_path(images), updates, below=below)


def _key(key: tuple[str, str]) -> tuple[str, Version | None, str]:
    package, version = key
    return package, parse_version(version) or Version("0"), version


def _is_passed(version: str, current: str | None) -> bool:
    refused, has = parse_version(version), parse_version(current)
    return refused is not None and has is not None and refused <= has
