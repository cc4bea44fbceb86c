"""Whether an advisory is about a version, by the algorithm of OSV's schema ("Evaluation")."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from packaging.version import Version

from imgbuild.cves.installed import PYPI, InstalledSource
from imgbuild.cves.records import Affected, OsvRecord, RangeEvent
from imgbuild.deb import version as debian

COMMITS = "GIT"
Key = Callable[[str], Any]


def is_affected(record: OsvRecord, package: InstalledSource) -> bool:
    """Whether `record` is about the version of `package`, and was not withdrawn.

    ValueError if a version of a range cannot be read, so that this is unknown.
    """
    if record.withdrawn:
        return False
    order = order_of(package.ecosystem)
    entries = record.about(package.ecosystem, package.name)
    return any(_is_affected(entry, package.version, order) for entry in entries)


def fix(record: OsvRecord, package: InstalledSource) -> str:
    """The lowest version after that of `package` that `record` calls fixed; "" if there is none.

    Versions that cannot be read do not count.
    """
    order = order_of(package.ecosystem)
    own = order(package.version)
    found = []
    for entry in record.about(package.ecosystem, package.name):
        for event in _events(entry):
            try:
                if event.fixed and order(event.fixed) > own:
                    found.append(event.fixed)
            except ValueError:
                continue
    return min(found, key=order, default="")


def order_of(ecosystem: str) -> Key:
    """The sort key of versions of `ecosystem`; it raises ValueError for an invalid version."""
    return _pypi if ecosystem == PYPI else debian.key


def _pypi(text: str) -> Version:
    return Version(text)  # its InvalidVersion is a ValueError


def _events(entry: Affected) -> Iterable[RangeEvent]:
    return (event for one in entry.ranges or () if one.type != COMMITS for event in one.events)


def _is_affected(entry: Affected, version: str, order: Key) -> bool:
    own = order(version)
    if any(_same(other, version, own, order) for other in entry.versions or ()):
        return True
    return any(_inside(one.events, own, order) for one in entry.ranges or () if one.type != COMMITS)


def _same(other: str, version: str, own: Any, order: Key) -> bool:
    if other == version:
        return True
    try:
        return bool(order(other) == own)
    except ValueError:  # a version from before PEP 440, which no installer accepts
        return False


def _inside(events: Iterable[RangeEvent], own: Any, order: Key) -> bool:
    """Whether the version `own` is between an event that introduces and one that ends it."""
    limits = [event.limit for event in events if event.limit is not None]
    if limits and not any(limit == "*" or own < order(limit) for limit in limits):
        return False
    first = [event for event in events if event.introduced == "0"]
    rest = sorted(
        (event for event in events if event.introduced != "0"),
        key=lambda event: order(event.version),
    )
    inside = bool(first)
    for event in rest:
        place = order(event.version)
        if event.introduced and own >= place:
            inside = True
        elif (event.fixed and own >= place) or (event.last_affected and own > place):
            inside = False
    return inside
