"""Finds targets that are compatible with wheels required by URL, based on their file names."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from packaging.version import Version

from imgbuild.index.candidates import wheel_platform_and_python
from imgbuild.project import addresses
from imgbuild.resolve.choose import DemandsFor, LockedFacts
from imgbuild.resolve.demands import PackageDemand
from imgbuild.resolve.feasible import UnmetDemand
from imgbuild.wheel.tags import WheelTags

TORCH_OF_LOCAL = re.compile(r"torch\.?(\d+\.\d+)")


def unfit_wheels(demands: Sequence[PackageDemand], tags: WheelTags) -> list[UnmetDemand]:
    """Return the wheels required by URL that do not fit the Python or architecture of `tags`."""
    return [
        UnmetDemand(
            package=demand.package,
            demand=str(demand),
            cause="python",
            reason=f"the wheel is for {wheel_platform_and_python(name)}",
            places=demand.places,
            version=version.public,
            by_url=True,
        )
        for demand in demands
        if (name := _wheel_file_name(demand)) and not tags.is_compatible(name)
        if (version := addresses.wheel_version(demand.source)) is not None
    ]


def most_compatible(
    facts: Sequence[LockedFacts], demands: DemandsFor, tags: Callable[[str], WheelTags]
) -> list[LockedFacts]:
    """Return the targets whose Python and torch fit most of the wheels required by URL."""
    numbers = {
        each.target: sum(_mismatches(demand, each, tags(each.python)) for demand in named)
        for each in facts
        for named in [demands(each.python)]
    }
    least = min(numbers.values(), default=0)
    return [each for each in facts if numbers[each.target] == least]


def _mismatches(demand: PackageDemand, facts: LockedFacts, tags: WheelTags) -> int:
    name = _wheel_file_name(demand)
    if not name:
        return 0
    version = addresses.wheel_version(demand.source)
    match = TORCH_OF_LOCAL.search(version.local if version and version.local else "")
    torch = facts.versions.get("torch")
    other = bool(match and torch and Version(torch).release[:2] != Version(match[1]).release[:2])
    return (not tags.is_compatible(name)) + other


def _wheel_file_name(demand: PackageDemand) -> str:
    name = addresses.file_name(demand.source) if demand.installed else ""
    return name if name.endswith(".whl") else ""
