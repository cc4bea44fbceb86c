"""Finds versions before a gap in a package's wheels, and packages far behind the newest version.

A resolver should not select versions before a gap. A requested package that is months behind causes
a warning. A package set with a package that is over a year behind the others is refused.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec
from packaging.version import Version

from imgbuild.index.candidates import is_sdist
from imgbuild.index.pages import IndexFile, IndexLookup
from imgbuild.matrix.constraints import Constraint
from imgbuild.resolve import conflict
from imgbuild.resolve.conflict import PackageFacts, VersionDemand
from imgbuild.solve import freshness
from imgbuild.solve.freshness import newest_file
from imgbuild.solve.torch import TORCH
from imgbuild.solve.uv import ChosenPackage
from imgbuild.wheel.tags import WheelTags

GAP = datetime.timedelta(days=365)
YEAR = datetime.timedelta(days=365)
RELEASES = 12  # minor releases that count as a year if upload times are unknown
TRIED_LIMIT = 24  # newer versions of a requested package
AGE = "age"  # the check of constraints that only keep old versions out
CUDA_PREFIXES = ("nvidia-", "cuda-")  # packages whose version is that of the CUDA release
BEHIND_LIMIT = datetime.timedelta(
    days=120
)  # a requested package that is further behind gets a warning


class ReleaseGaps:
    """Finds periods of over a year without a release that has a file for the machine.

    For example, tensordict has had wheels for Linux aarch64 since 0.8.0. Version 0.1.2, which is
    two years older, is a pure wheel for any machine. A resolver that finds no other usable version
    selects it without an error.
    """

    def __init__(self, indexes: IndexLookup, tags: WheelTags, built: Collection[str]) -> None:
        self._indexes = indexes
        self._tags = tags
        self._built = frozenset(built)
        self._last: dict[str, Version | None] = {}

    def is_before_gap(self, package: str, version: Version) -> bool:
        """Return whether `version` precedes a gap."""
        if package not in self._last:
            self._last[package] = self._version_before_gap(package)
        last = self._last[package]
        return last is not None and version <= last

    def _version_before_gap(self, package: str) -> Version | None:
        """Return the newest version before the newest gap that has ended, or None."""
        fits: dict[Version, bool] = {}
        times: dict[Version, datetime.datetime] = {}
        for file in self._indexes.files(package):
            version = file.version
            if version is None or version.is_prerelease or file.uploaded is None:
                continue
            usable = self._tags.is_compatible(file.name) or (
                is_sdist(file) and package in self._built
            )
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


def behind_newest(
    facts: PackageFacts,
    demands: Sequence[VersionDemand],
    versions: Mapping[str, str],
    cuda: str | None,
) -> tuple[str, ...]:
    """Return a warning for each request whose version is months behind the newest, with causes."""
    return tuple(
        words
        for requested in demands
        if requested.package in versions
        and requested.package not in conflict.exact_requests(demands)
        if (words := _behind_newest(facts, demands, requested, versions, cuda)) is not None
    )


class OldVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A package that is over a year behind the other packages in the set."""

    package: str
    reasons: tuple[str, ...]


def outdated_packages(
    facts: PackageFacts,
    demands: Sequence[VersionDemand],
    chosen: Iterable[ChosenPackage],
    versions: Mapping[str, str],
    cuda: str,
) -> tuple[OldVersion, ...]:
    """Return the packages that are over a year older than the newest requested package.

    Pinned packages, CUDA packages and packages whose newest version is about as old are excluded. A
    package that is not requested is also excluded if its newer version contradicts others in the
    set. `chosen` contains the packages that require each package.
    """
    catalogue, pins = facts.catalogue, conflict.exact_requests(demands)
    offers = catalogue.chosen_files(versions)
    named = {demand.package: demand for demand in demands}
    times = [offers[name].wheel.uploaded for name in named if name in offers]
    latest = max((time for time in times if time is not None), default=None)
    old_versions = []
    for item in chosen:
        package = item.package
        if package in pins or package not in offers or package.startswith(CUDA_PREFIXES):
            continue
        requested = named.get(package)
        spec = requested.spec if requested is not None else ""
        allowed = set(facts.allowed_versions(package, spec) or ())
        wheels = [
            each.wheel for each in catalogue.offered_files(package) if each.wheel.version in allowed
        ]
        current = offers[package].wheel
        newer = _far_newer(current, wheels, latest)
        if newer is None:
            continue
        free = requested or conflict.user_demand(package, "")
        cause = _cause(facts, demands, free, newer, versions, cuda)
        via = () if requested is not None else item.via
        if requested is None and (
            cause or freshness.has_older_requirement(catalogue, item, newer, offers)
        ):
            continue
        reasons = (_ages(current, package, newer, via), *cause)
        old_versions.append(OldVersion(package=package, reasons=reasons))
    return tuple(old_versions)


def floor_constraints(
    facts: PackageFacts,
    demands: Sequence[VersionDemand],
    versions: Mapping[str, str],
    cuda: str,
    torch: str,
) -> tuple[Constraint, ...]:
    """Return constraints that exclude old versions of requested packages.

    A package gets a constraint if a version that is months newer than the one in `versions` is
    compatible with `torch` and with the packages requested before it. Without constraints, the
    package that the solver decides last gets an old version.
    """
    pinned = [demand for demand in demands if demand.package in conflict.exact_requests([demand])]
    bounds = []
    for requested in demands:
        package = requested.package
        if requested in pinned or package not in versions:
            continue
        best = chosen = Version(versions[package])
        for version in (facts.allowed_versions(package, requested.spec) or ())[:TRIED_LIMIT]:
            candidate = conflict.user_demand(package, f"=={version}")
            if (
                version <= chosen
                or conflict.find_conflict(facts, [candidate, *pinned], cuda) is None
            ):
                best = max(version, chosen)
                break
        if _months_apart(facts, package, chosen, best):
            needs = f"{package}>={best}"
            bounds.append(Constraint(package=TORCH, versions=f"=={torch}", needs=needs, check=AGE))
        pinned.append(conflict.user_demand(package, f"=={best}"))
    return tuple(bounds)


def _months_apart(facts: PackageFacts, package: str, version: Version, newer: Version) -> bool:
    """Compare upload times, or version numbers if the index provides no times."""
    offers = [facts.catalogue.chosen(package, each) for each in (version, newer)]
    times = [offer.wheel.uploaded for offer in offers if offer is not None]
    if len(times) == 2 and times[0] is not None and times[1] is not None:
        return times[1] - times[0] > BEHIND_LIMIT
    return newer.release[:2] > version.release[:2]


def _far_newer(
    current: IndexFile, wheels: Sequence[IndexFile], latest: datetime.datetime | None
) -> IndexFile | None:
    """Return the newest of `wheels` if it and `latest` are a year newer than `current`."""
    version = current.version
    if version is None:
        return None
    final = [w for w in wheels if w.version is not None and not w.version.is_prerelease]
    newer = [(w.version, w) for w in final if w.version is not None and w.version > version]
    if not newer:
        return None
    top = max(newer, key=lambda pair: pair[0])[1]
    if current.uploaded is None or top.uploaded is None or latest is None:
        releases = {other.release[:2] for other, _ in newer} - {version.release[:2]}
        return top if len(releases) > RELEASES else None
    return top if min(latest, top.uploaded) - current.uploaded > YEAR else None


def _ages(current: IndexFile, package: str, newer: IndexFile, via: Sequence[str] = ()) -> str:
    origin = f" (required by {', '.join(via)})" if via else ""
    if current.uploaded is None or newer.uploaded is None:
        return (
            f"only {package} {current.version}{origin} is compatible, although {newer.version} is"
            " available"
        )
    return (
        f"only {package} {current.version} of {current.uploaded:%Y-%m}{origin} is compatible,"
        f" although {newer.version} of {newer.uploaded:%Y-%m} is available"
    )


def _behind_newest(
    facts: PackageFacts,
    demands: Sequence[VersionDemand],
    requested: VersionDemand,
    versions: Mapping[str, str],
    cuda: str | None,
) -> str | None:
    package, version = requested.package, Version(versions[requested.package])
    allowed = set(facts.allowed_versions(package, requested.spec) or ())
    wheels = [offer.wheel for offer in facts.catalogue.offered_files(package)]
    top = newest_file(wheel for wheel in wheels if wheel.version in allowed)
    times = [wheel.uploaded for wheel in wheels if wheel.version == version and wheel.uploaded]
    if top is None or top.version is None or top.uploaded is None or not times:
        return None
    if top.version <= version or top.uploaded - min(times) <= BEHIND_LIMIT:
        return None
    reasons = _cause(facts, demands, requested, top, versions, cuda)
    cause = f": {'; '.join(reasons)}" if reasons else ""
    return (
        f"{package} {version} was uploaded in {min(times):%Y-%m}, and {top.version} in"
        f" {top.uploaded:%Y-%m}{cause}"
    )


def _cause(
    facts: PackageFacts,
    demands: Sequence[VersionDemand],
    requested: VersionDemand,
    top: IndexFile,
    versions: Mapping[str, str],
    cuda: str | None,
) -> tuple[str, ...]:
    package = requested.package
    others = [
        conflict.user_demand(
            item.package,
            f"=={versions[item.package]}",
            f"the package set has {item.package} {versions[item.package]}",
        )
        for item in demands
        if item.package != package and item.package in versions
    ]
    candidate = conflict.user_demand(
        package, f"=={top.version}", f"{package} {top.version} is available"
    )
    clash = conflict.find_conflict(facts, [candidate, *others], cuda)
    return clash.reasons if clash is not None else ()
