"""Versions before a gap in a package's wheels, and requested packages far behind their newest.

No resolver should go back to the former; the latter get a warning with the cause.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Mapping, Sequence

from packaging.version import Version

from imgbuild.index.candidates import is_sdist
from imgbuild.index.pages import Indexes
from imgbuild.resolve import conflict
from imgbuild.resolve.conflict import Demand, PackageFacts
from imgbuild.solve.freshness import newest
from imgbuild.wheel.tags import Tags

GAP = datetime.timedelta(days=365)
BEHIND = datetime.timedelta(days=120)  # a requested package that is further behind gets a warning


class Gaps:
    """Finds versions before a gap: over a year in which no release had a file for the machine.

    tensordict has wheels for Linux aarch64 from 0.8.0 on; 0.1.2 of two years before fits any
    machine, and a resolver that may take nothing in between goes back to it without an error.
    """

    def __init__(self, indexes: Indexes, tags: Tags, built: Collection[str]) -> None:
        self._indexes = indexes
        self._tags = tags
        self._built = frozenset(built)
        self._last: dict[str, Version | None] = {}

    def beyond(self, package: str, version: Version) -> bool:
        """Whether `version` is before a gap."""
        if package not in self._last:
            self._last[package] = self._find(package)
        last = self._last[package]
        return last is not None and version <= last

    def _find(self, package: str) -> Version | None:
        """The newest version before the newest gap that ends; None if there is no gap."""
        fits: dict[Version, bool] = {}
        times: dict[Version, datetime.datetime] = {}
        for file in self._indexes.files(package):
            version = file.version
            if version is None or version.is_prerelease or file.uploaded is None:
                continue
            usable = self._tags.fits(file.name) or (is_sdist(file) and package in self._built)
            fits[version] = fits.get(version, False) or usable
            times[version] = min(file.uploaded, times.get(version, file.uploaded))
        last: Version | None = None
        before: Version | None = None  # the newest that fits, among those that were walked
        between: Version | None = None  # the newest since then that does not
        for version in sorted(fits):
            if not fits[version]:
                between = version
            else:
                if before and between and times[between] - times[before] > GAP:
                    last = before
                before, between = version, None
        return last


def fallen(
    facts: PackageFacts, demands: Sequence[Demand], versions: Mapping[str, str], cuda: str | None
) -> tuple[str, ...]:
    """The requests that came out months behind their newest version, each with the cause."""
    return tuple(
        words
        for requested in demands
        if requested.package in versions and requested.package not in conflict.pins_of(demands)
        if (words := _fallen(facts, demands, requested, versions, cuda)) is not None
    )


def _fallen(
    facts: PackageFacts,
    demands: Sequence[Demand],
    requested: Demand,
    versions: Mapping[str, str],
    cuda: str | None,
) -> str | None:
    package, version = requested.package, Version(versions[requested.package])
    allowed = set(facts.fitting(package, requested.spec) or ())
    wheels = [offer.wheel for offer in facts.catalogue.offers(package)]
    top = newest(wheel for wheel in wheels if wheel.version in allowed)
    times = [wheel.uploaded for wheel in wheels if wheel.version == version and wheel.uploaded]
    if top is None or top.version is None or top.uploaded is None or not times:
        return None
    if top.version <= version or top.uploaded - min(times) <= BEHIND:
        return None
    others = [
        conflict.demand(
            item.package,
            f"=={versions[item.package]}",
            f"the package set has {item.package} {versions[item.package]}",
        )
        for item in demands
        if item.package != package and item.package in versions
    ]
    asked = conflict.demand(package, f"=={top.version}", f"{package} {top.version} is available")
    found = conflict.conflict(facts, [asked, *others], cuda)
    cause = f": {'; '.join(found.reasons)}" if found is not None else ""
    return (
        f"{package} {version} is of {min(times):%Y-%m}, and {top.version} is of"
        f" {top.uploaded:%Y-%m}{cause}"
    )
