"""Advisories from a downloaded database of OSV: zip archives with a JSON document for each.

A folder has `ECOSYSTEM/all.zip`, as OSV's bucket does, or archives with other names; without an
archive, the documents themselves. All are read; advisories about the packages in question are kept.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from imgbuild.cves import match, records
from imgbuild.cves.installed import InstalledSource
from imgbuild.cves.osv_advisories import advisories
from imgbuild.cves.records import LIMIT, OsvRecord
from imgbuild.cves.source import Advisory, SourceAnswer, Uncompared
from imgbuild.errors import InputError
from imgbuild.system import boundary
from imgbuild.system.boundary import reading, regular
from imgbuild.values import normalize

MEMBERS = 2_000_000  # documents of one archive; OSV's whole database has 600,000
TOTAL = 32 << 30  # bytes of all of them
REMEDY = "download it again: ECOSYSTEM/all.zip of OSV's data, for PyPI and Debian"


class OsvDatabase:
    """The downloaded database at `place`, a folder, an archive or one document."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def find(self, packages: Sequence[InstalledSource]) -> SourceAnswer:
        """The advisories about `packages`.

        InputError if the database has no advisory at all for the ecosystem of a package, since no
        result would then not mean that it is safe; IntegrityError if it cannot be read.
        """
        wanted: dict[str, list[InstalledSource]] = {}
        for package in packages:
            wanted.setdefault(normalize(package.name), []).append(package)
        seen: set[str] = set()
        found: list[Advisory] = []
        unread: list[Uncompared] = []
        newest = ""
        for record in self._records():
            newest = max(newest, record.modified[:10])
            for name in self._names(record, seen):
                for package in wanted.get(name, ()):
                    try:
                        found += self._advisories(record, package)
                    except ValueError as error:
                        text = f"{record.id} about {package.name}: {str(error)[:100]}"
                        unread.append(Uncompared(package, text))
        for ecosystem in sorted({package.ecosystem for package in packages}):
            if not {ecosystem, ecosystem.partition(":")[0]} & seen:
                message = f"{self._place} has no advisory for {ecosystem}"
                have = ", ".join(sorted(seen)[:8]) or "none"
                hint = f"it has advisories for: {have}; {REMEDY}"
                raise InputError(message, hint=hint)
        of = f"{self._place}, newest advisory of {newest}"
        return SourceAnswer(of=of, advisories=tuple(found), unread=tuple(unread))

    @staticmethod
    def _names(record: OsvRecord, seen: set[str]) -> set[str]:
        """The normalized names of what `record` is about; their ecosystems go into `seen`."""
        packages = [entry.package for entry in record.affected or () if entry.package is not None]
        seen.update(package.ecosystem for package in packages)
        return {normalize(package.name) for package in packages}

    def _advisories(self, record: OsvRecord, package: InstalledSource) -> Iterator[Advisory]:
        if match.is_affected(record, package):
            yield from advisories(record, package, str(self._place))

    # -- reading

    def _records(self) -> Iterator[OsvRecord]:
        for path in self._files():
            if path.suffix == ".json":
                with reading(path, hint=REMEDY):
                    data = boundary.content(path, LIMIT)
                yield records.decode(data, str(path))
            else:
                yield from _zipped(path)

    def _files(self) -> list[Path]:
        if not self._place.exists():
            message = f"{self._place}: no such file or folder"
            raise InputError(message, hint=REMEDY)
        if not self._place.is_dir():
            return [self._place]
        files = sorted(path for path in self._place.rglob("*") if path.is_file())
        archives = [path for path in files if path.suffix == ".zip"]
        found = archives or [path for path in files if path.suffix == ".json"]
        if not found:
            message = f"{self._place} has neither .zip nor .json files"
            raise InputError(message, hint=REMEDY)
        return found


def _zipped(path: Path) -> Iterator[OsvRecord]:
    """The records of the archive at `path`; IntegrityError if it cannot be read."""
    with reading(path, hint=REMEDY), open(path, "rb", opener=regular) as file:
        if not zipfile.is_zipfile(file):
            message = f"{path} is neither a zip archive nor a .json file"
            raise InputError(message, hint=REMEDY)
        with zipfile.ZipFile(file) as archive:
            members = [one for one in archive.infolist() if one.filename.endswith(".json")]
            total = sum(one.file_size for one in members)
            if len(members) > MEMBERS or total > TOTAL:
                message = f"{path} has {len(members)} documents with {total} bytes"
                raise InputError(message, hint=f"at most {MEMBERS} with {TOTAL} bytes are read")
            for member in members:
                place = f"{path}: {member.filename}"
                if member.file_size > LIMIT:
                    message = f"{place} has {member.file_size} bytes, more than {LIMIT}"
                    raise InputError(message, hint=REMEDY)
                with reading(place, hint=REMEDY), archive.open(member) as document:
                    data = document.read(LIMIT + 1)
                yield records.decode(data, place)
