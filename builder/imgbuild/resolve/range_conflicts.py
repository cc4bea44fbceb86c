"""Packages that additions without an exact version require in another version than a target's.

A target is extended only if some version of each addition fits it. Only the newest versions and the
newest ones before the target's date are examined, not every release. Of their dependencies those
with an exact version are examined, too. `contradictions` finds pins of a project that require
versions excluded by its other lines, from METADATA alone.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence

from packaging.requirements import Requirement

from imgbuild.errors import ImgbuildError
from imgbuild.project import agreement
from imgbuild.project.model import Declared
from imgbuild.resolve import engine_torch
from imgbuild.resolve.choose import LockedFacts, TargetChange
from imgbuild.resolve.demands import PackageDemand
from imgbuild.resolve.feasible import IndexPages, Obstacle
from imgbuild.system import threads
from imgbuild.system.syntax import parse_requirement
from imgbuild.values import normalize
from imgbuild.wheel.tags import Tags

VERSIONS = 4  # of an addition, and as many from before the target's day
THREADS = 8
PINS = 3  # levels of dependencies with exact versions


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
        changes = changes or _of_pins(demand, required, facts, pages, tags, PINS)
        if not changes:
            return []
        newest = newest or changes
    return newest


def _of_pins(
    demand: PackageDemand,
    required: Iterable[Requirement],
    facts: LockedFacts,
    pages: IndexPages,
    tags: Tags,
    levels: int,
) -> list[TargetChange]:
    """The changes that dependencies with an exact version require, which is the only choice."""
    for needed in required:
        package = normalize(needed.name)
        pinned = PackageDemand(
            package=package,
            spec=str(needed.specifier),
            places=demand.places,
            extras=tuple(sorted(needed.extras)),
        )
        if pinned.pin is None or needed.url or package in facts.versions:
            continue
        try:
            wheel = pages.pinned(pinned, tags)
            text = pages.metadata(wheel) if wheel is not None else b""
        except ImgbuildError as error:  # as above
            pages.context.reporter.detail(f"{pinned}: {error.message}")
            continue
        inner = engine_torch.required(pinned, text, tags.markers)
        changes = changes_for(pinned, str(pinned.pin), inner, facts.versions)
        if not changes and levels > 1:
            changes = _of_pins(pinned, inner, facts, pages, tags, levels - 1)
        if changes:
            return changes
    return []


def contradictions(
    required: Iterable[tuple[PackageDemand, Sequence[Requirement]]],
    demands: Iterable[PackageDemand],
    declared: Declared,
) -> list[Obstacle]:
    """The pins whose METADATA no version of another demanded package satisfies.

    `required` are pins with their requirements. Overridden packages and packages installed without
    dependencies are left to the solver.
    """
    lines = declared.requirements
    free = {each.package for each in lines if each.no_deps}
    decided = {each.package for each in lines if each.kind == "override"}
    bounds: Mapping[str, PackageDemand] = {
        each.package: each
        for each in demands
        if each.spec and each.package not in decided and each.package not in free
    }
    return [
        Obstacle(
            package=pin.package,
            demand=str(pin),
            cause="version",
            reason=f"requires {needed.name}{needed.specifier}, and {other} is required"
            f" ({', '.join(map(str, other.places))})",
            places=pin.places,
            version=pin.pin or "",
        )
        for pin, requirements in required
        if pin.package not in free
        for needed in requirements
        if (other := bounds.get(normalize(needed.name))) is not None and needed.url is None
        if not (pin.locked and other.locked)  # the tool that locked them has more information
        if not agreement.compatible(
            parse_requirement(f"{other.package}{other.spec}"),
            parse_requirement(f"{other.package}{needed.specifier}"),  # without its marker
        )
    ]
