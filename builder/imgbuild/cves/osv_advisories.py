"""What a record of OSV says of a package that it is about."""

from __future__ import annotations

from collections.abc import Iterator

from imgbuild.cves.installed import InstalledSource
from imgbuild.cves.records import OsvRecord
from imgbuild.cves.source import Advisory

UPDATES = ("DSA-", "DLA-", "DTSA-")  # Debian's advisories: one for several vulnerabilities


def advisories(record: OsvRecord, package: InstalledSource, source: str) -> Iterator[Advisory]:
    """The advisories of `record` about `package`, one for each vulnerability that it names."""
    rating, score = record.rating(package.ecosystem, package.name)
    cves = tuple(part for part in record.parts if part.startswith("CVE-"))
    split = record.id.startswith(UPDATES) and bool(cves)
    for ids in [(cve,) for cve in cves] if split else [record.ids]:
        yield Advisory(
            ids=ids,
            package=package,
            severity=rating,
            score=score,
            summary=record.text,
            fixed=package.lowest_fix(record.fixes(package.ecosystem, package.name)),
            note=f"{record.id} has the fix" if split else "",
            source=source,
        )
