"""Packages that additions without an exact version require in another version than a target's.

A target is extended only if some version of each addition fits it. Only the newest versions and the
newest ones before the target's date are examined, not every release.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence

from packaging.requirements import Requirement

from imgbuild.errors import ImgbuildError
from imgbuild.resolve import engine_torch
from imgbuild.resolve.choose import LockedFacts, TargetChange
from imgbuild.resolve.demands import PackageDemand
from imgbuild.resolve.feasible import IndexPages
from imgbuild.system import threads
from imgbuild.values import normalize
from imgbuild.wheel.tags import Tags

VERSIONS = 4  # of an addition, and as many from before the target's day
THREADS = 8


def range_conflicts(
    additions: Sequence[PackageDemand], facts: LockedFacts, pages: IndexPages, tags: Tags
) -> list[TargetChange]:
    """The changes that the newest version of each of `additions` requires, if no version fits."""
    open_ranges = [each for each in additions if not each.pin and not each.source]
    pages.read(each.package for each in open_ranges)
    changes: dict[str, TargetChange] = {}
    for each in threads.each(
        open_ranges, lambda item, _: _of(item, facts, pages, tags), threads=THREADS
    ):
        for change in each:
            changes.setdefault(change.package, change)
    return list(changes.values())


def changes_for(
    demand: PackageDemand, version: str, required: Iterable[Requirement], has: Mapping[str, str]
) -> list[TargetChange]:
    """The requirements of the demanded package's `version` that differ from the versions `has`."""
    return [
        TargetChange(
            package=package,
            has=has[package],
            wanted=str(needed.specifier),
            by=f"{demand.package} {version}",
            places=demand.places,
        )
        for needed in required
        if (package := normalize(needed.name)) in has
        if not needed.specifier.contains(has[package], prereleases=True)
    ]


def _of(
    demand: PackageDemand, facts: LockedFacts, pages: IndexPages, tags: Tags
) -> list[TargetChange]:
    newest: list[TargetChange] = []
    versions, wheels = facts.versions, pages.wheels(demand, tags)
    day = datetime.date.fromisoformat(facts.as_of)
    older = [each for each in wheels if each.uploaded is not None and each.uploaded.date() <= day]
    for wheel in dict.fromkeys((*wheels[:VERSIONS], *older[:VERSIONS])):
        try:
            text = pages.metadata(wheel)
        except ImgbuildError as error:  # the solver reports it if it matters
            pages.context.reporter.detail(f"{wheel.name}: {error.message}")
            return []
        required = engine_torch.required(demand, text, tags.markers)
        required += facts.requirements_of(demand.package, str(wheel.version))
        changes = changes_for(demand, str(wheel.version), required, versions)
        if not changes:
            return []
        newest = newest or changes
    return newest
