"""Reads advisories in the OSV format (ossf.github.io/osv-schema, 1.7)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from imgbuild import codec
from imgbuild.cves import severity
from imgbuild.cves.installed import GIT, PYPI, REPOSITORIES, InstalledSource
from imgbuild.cves.severity import Rating
from imgbuild.cves.source import Advisory
from imgbuild.errors import InputError
from imgbuild.values import normalize_package

UPDATES = ("DSA-", "DLA-", "DTSA-")  # Debian advisories, which cover several vulnerabilities

LIMIT = 32 << 20  # bytes of one record; records with all versions of a kernel have 2 MB
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
DEBIAN = "DEBIAN-"  # prefix of the CVE number in Debian's record
REMEDY = "download the file again, or omit it"

COMMITS = "GIT"


class RangeEvent(msgspec.Struct, frozen=True):
    """The start or end of a version range. `fixed` is the first version with the fix."""

    fixed: str | None = None


class AffectedRange(msgspec.Struct, frozen=True):
    """A range of versions between events.

    `type` is ECOSYSTEM, SEMVER, or GIT (commits of `repo`).
    """

    type: str
    repo: str = ""
    events: tuple[RangeEvent, ...] = ()


class AffectedPackage(msgspec.Struct, frozen=True):
    """The ecosystem and name of a package."""

    ecosystem: str = ""
    name: str = ""


class StatedSeverity(msgspec.Struct, frozen=True):
    """A severity in a record. `type` is for example CVSS_V3, and `score` is the vector."""

    type: str = ""
    score: str = ""


class AffectedEntry(msgspec.Struct, frozen=True):
    """An affected package of a record."""

    package: AffectedPackage | None = None
    ranges: tuple[AffectedRange, ...] | None = None
    severity: tuple[StatedSeverity, ...] | None = None
    ecosystem_specific: dict[str, Any] | None = None
    database_specific: dict[str, Any] | None = None


class OsvRecord(msgspec.Struct, frozen=True):
    """An advisory. `aliases` are IDs of the same vulnerability in other databases.

    In Debian advisories, `upstream` and `related` list the covered vulnerabilities.
    """

    id: str
    modified: str = ""
    withdrawn: str | None = None
    summary: str | None = None
    details: str | None = None
    aliases: tuple[str, ...] | None = None
    upstream: tuple[str, ...] | None = None
    related: tuple[str, ...] | None = None
    severity: tuple[StatedSeverity, ...] | None = None
    affected: tuple[AffectedEntry, ...] | None = None
    database_specific: dict[str, Any] | None = None

    @property
    def all_ids(self) -> tuple[str, ...]:
        """The distinct IDs of the vulnerability in all databases."""
        names = (self.id, *(self.aliases or ()))
        if self.id.startswith(DEBIAN):  # its upstream is the original CVE
            names += (self.id.removeprefix(DEBIAN),)
        return tuple(dict.fromkeys(names))

    @property
    def covered_vulnerabilities(self) -> tuple[str, ...]:
        """The IDs of the vulnerabilities that the advisory covers, if it covers several."""
        return tuple(dict.fromkeys((*(self.upstream or ()), *(self.related or ()))))

    @property
    def text(self) -> str:
        """The summary of the advisory, or the first line of its details."""
        lines = (self.summary or self.details or "").strip().splitlines()
        return lines[0].strip() if lines else ""

    def affected_entries(self, ecosystem: str, name: str) -> Iterator[AffectedEntry]:
        """Yield the record's entries for the package `name`. Debian:12 matches all point releases.

        PyPI names are normalized, because advisories contain names such as jaraco.context. For a
        package identified by its repository, entries with commits of the repository are returned.
        """
        if ecosystem == GIT:
            place = _repository(REPOSITORIES.get(name, name))
            for entry in self.affected or ():
                if any(_repository(bounds.repo) == place for bounds in entry.ranges or ()):
                    yield entry
            return
        spelled = normalize_package if ecosystem == PYPI else str.lower
        for entry in self.affected or ():
            package = entry.package
            if package is None or spelled(package.name) != spelled(name):
                continue
            if package.ecosystem in (ecosystem, ecosystem.partition(":")[0]):
                yield entry

    def fixed_versions(self, ecosystem: str, name: str) -> Iterator[str]:
        """Yield the fixed versions of a package, one for each range."""
        for entry in self.affected_entries(ecosystem, name):
            for bounds in entry.ranges or ():
                if bounds.type != COMMITS:
                    yield from (event.fixed for event in bounds.events if event.fixed)

    def package_rating(self, ecosystem: str, name: str) -> tuple[Rating, float | None]:
        """Return the rating for a package, and the highest CVSS score, if any.

        `unimportant` in Debian is low regardless of the score. Otherwise, the severity stated in
        the record overrides the score.
        """
        entries = tuple(self.affected_entries(ecosystem, name))
        stated = [rated for entry in entries for rated in entry.severity or ()]
        scores = [severity.base_score(rated.score) for rated in (*stated, *(self.severity or ()))]
        score = max((value for value in scores if value is not None), default=None)
        words = [(entry.ecosystem_specific or {}).get("urgency") for entry in entries]
        if words and all(word == "unimportant" for word in words):
            return Rating.LOW, score
        if self.id.startswith(severity.MALICIOUS_PREFIX):
            return Rating.CRITICAL, score
        word = severity.word_rating((self.database_specific or {}).get("severity"))
        if word is Rating.UNKNOWN and score is not None:
            word = severity.score_rating(score)
        if word is Rating.UNKNOWN:
            ratings = [severity.word_rating((entry.database_specific or {}).get("severity"))
                    for entry in entries]  # fmt: skip
            word = severity.highest_rating([*ratings, *map(severity.word_rating, words)])
        return word, score


def _repository(url: str) -> str:
    return url.partition("://")[2].rstrip("/").removesuffix(".git").lower()


def decode_record(data: bytes, place: str, *, hint: str = REMEDY) -> OsvRecord:
    """Decode the record in `data` from `place`. Raises InputError with `hint` if it is invalid."""
    if len(data) > LIMIT:
        message = f"{place} has more than {LIMIT} bytes"
        raise InputError(message, hint=hint)
    record = codec.decode(data, OsvRecord, file=place, what="OSV advisory", hint=hint)
    if ID.fullmatch(record.id) is None:
        message = f"{place} is not a valid OSV advisory: invalid ID {record.id[:80]!r}"
        raise InputError(message, hint=hint)
    return record


def record_advisories(
    record: OsvRecord, package: InstalledSource, source: str
) -> Iterator[Advisory]:
    """Yield the advisories in `record` about `package`, one for each vulnerability."""
    rating, score = record.package_rating(package.ecosystem, package.name)
    cves = tuple(part for part in record.covered_vulnerabilities if part.startswith("CVE-"))
    split = record.id.startswith(UPDATES) and bool(cves)
    for ids in [(cve,) for cve in cves] if split else [record.all_ids]:
        yield Advisory(
            ids=ids,
            package=package,
            severity=rating,
            score=score,
            summary=record.text,
            fixed=package.lowest_fix(record.fixed_versions(package.ecosystem, package.name)),
            note=f"fixed by {record.id}" if split else "",
            source=source,
        )
