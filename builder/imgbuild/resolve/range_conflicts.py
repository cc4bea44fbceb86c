"""Finds packages that additions require in other versions than a target contains.

The additions have no exact version. A target is extended only if some version of each addition, and
of each dependency that the target lacks, is compatible. Only the newest versions overall and those
before the date of the target are examined.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence

from packaging.requirements import Requirement

from imgbuild.errors import ImgbuildError
from imgbuild.index.pages import IndexFile
from imgbuild.project import agreement
from imgbuild.project.model import Declarations
from imgbuild.resolve import engine_torch
from imgbuild.resolve.choose import LockedFacts, TargetChange
from imgbuild.resolve.demands import PackageDemand
from imgbuild.resolve.feasible import IndexPages, UnmetDemand
from imgbuild.resolve.source_only import LEVELS, requirement_levels
from imgbuild.system.syntax import parse_requirement
from imgbuild.values import normalize_package
from imgbuild.wheel.tags import WheelTags

VERSIONS = 4  # of an addition, and as many from before the target's day
PACKAGES = 200  # that are examined, dependencies included


def range_conflicts(
    additions: Sequence[PackageDemand], facts: LockedFacts, pages: IndexPages, tags: WheelTags
) -> list[TargetChange]:
    """Return the changes that the newest version of each addition requires.

    If some version of an addition is compatible, it requires no changes.
    """
    open_ranges = [each for each in additions if not each.pin and not each.source]
    for _ in requirement_levels(open_ranges, facts.versions, pages, tags):
        pass  # fetched in threads; the walk has one thread, so that its result does not vary
    walk = _AdditionWalk(facts, pages, tags)
    changes: dict[str, TargetChange] = {}
    for each in open_ranges:
        for change in walk.find_changes(each):
            changes.setdefault(change.package, change)
    return list(changes.values())


def required_changes(
    demand: PackageDemand, version: str, required: Iterable[Requirement], has: Mapping[str, str]
) -> list[TargetChange]:
    """Return the requirements of the demanded package that the versions `has` violate.

    `version` is the version of the demanded package.
    """
    return [
        TargetChange(
            package=package,
            has=has[package],
            wanted=str(needed.specifier),
            by=f"{demand.package} {version}",
            places=demand.places,
        )
        for needed in required
        if (package := normalize_package(needed.name)) in has
        if not needed.specifier.contains(has[package], prereleases=True)
    ]


class _AdditionWalk:
    def __init__(self, facts: LockedFacts, pages: IndexPages, tags: WheelTags) -> None:
        self._facts, self._pages, self._tags = facts, pages, tags
        self._known: dict[tuple[str, str, tuple[str, ...]], list[TargetChange]] = {}

    def find_changes(self, demand: PackageDemand, depth: int = LEVELS) -> list[TargetChange]:
        """Return the changes for the newest version, or [] if some version is compatible."""
        key = (demand.package, demand.spec, demand.extras)
        if key not in self._known:
            if len(self._known) >= PACKAGES:
                return []
            self._known[key] = []  # for cycles
            self._known[key] = self._read_changes(demand, depth)
        return self._known[key]

    def _read_changes(self, demand: PackageDemand, depth: int) -> list[TargetChange]:
        newest: list[TargetChange] = []
        try:
            for wheel in self._allowed_versions(demand):
                text = self._pages.metadata(wheel)
                required = engine_torch.required_with_extras(demand, text, self._tags.markers)
                required += self._facts.learned_requirements(demand.package, str(wheel.version))
                has = self._facts.versions
                changes = required_changes(demand, str(wheel.version), required, has)
                changes = changes or self._dependency_changes(demand, required, depth)
                if not changes:
                    return []
                newest = newest or changes
        except ImgbuildError as error:  # the solver reports it if it matters
            self._pages.context.reporter.detail(f"{demand}: {error.message}")
            return []
        return newest

    def _allowed_versions(self, demand: PackageDemand) -> Iterable[IndexFile]:
        wheels = self._pages.wheels(demand, self._tags)
        day = datetime.date.fromisoformat(self._facts.as_of)
        older = [
            each for each in wheels if each.uploaded is not None and each.uploaded.date() <= day
        ]
        return dict.fromkeys((*wheels[:VERSIONS], *older[:VERSIONS]))

    def _dependency_changes(
        self, demand: PackageDemand, required: Iterable[Requirement], depth: int
    ) -> list[TargetChange]:
        for needed in required if depth > 1 else ():
            package = normalize_package(needed.name)
            if needed.url or package in self._facts.versions:
                continue
            dependency = PackageDemand(
                package=package,
                spec=str(needed.specifier),
                places=demand.places,
                extras=tuple(sorted(needed.extras)),
            )
            if changes := self.find_changes(dependency, depth - 1):
                return changes
        return []


def find_contradictions(
    required: Iterable[tuple[PackageDemand, Sequence[Requirement]]],
    demands: Iterable[PackageDemand],
    declared: Declarations,
) -> list[UnmetDemand]:
    """Return the pins with a requirement that no version of another demanded package satisfies.

    `required` contains pins with their requirements. Packages that are overridden or installed
    without dependencies are omitted.
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
        UnmetDemand(
            package=pin.package,
            demand=str(pin),
            cause="version",
            reason=f"requires {needed.name}{needed.specifier}, but {other} is required"
            + (f" ({', '.join(map(str, other.places))})" if other.places else ""),
            places=pin.places,
            version=pin.pin or "",
        )
        for pin, requirements in required
        if pin.package not in free
        for needed in requirements
        if (other := bounds.get(normalize_package(needed.name))) is not None and needed.url is None
        if not (pin.locked and other.locked)  # the tool that locked them has more information
        if not agreement.are_compatible(
            parse_requirement(f"{other.package}{other.spec}"),
            parse_requirement(f"{other.package}{needed.specifier}"),  # without its marker
        )
    ]
