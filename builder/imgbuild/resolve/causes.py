"""Finds all causes why a request has no solution, after its first conflict."""

# A separate module: used by `resolve` and `lock`.
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from packaging.version import Version

from imgbuild.project.model import Declarations, FilePlace
from imgbuild.resolve import conflict, engine_torch
from imgbuild.resolve.conflict import PackageFacts, RequirementConflict, VersionDemand
from imgbuild.resolve.demands import PackageDemand
from imgbuild.resolve.feasible import UnmetDemand
from imgbuild.resolve.range_conflicts import find_contradictions


def all_reasons(
    facts: PackageFacts,
    demands: Sequence[VersionDemand],
    clash: RequirementConflict,
    cuda: str | None,
    places: Mapping[str, tuple[FilePlace, ...]],
    *,
    row: str = "",
) -> tuple[str, ...]:
    """Return the reasons of `clash`, the first conflict of `demands`, and those of other conflicts.

    Contradictions of a pin with other demands come first, with the lines `places` of each package.
    """
    explained = {each.package for each in demands if each.words in clash.reasons}
    known = _contradictions(facts, [each for each in demands if each.package in explained], places)
    pairs = [each for each in _contradictions(facts, demands, places) if each not in known]
    alone = {
        each.package: found
        for each in demands
        if each.package not in explained
        if (found := conflict.find_conflict(facts, [each], cuda, row=row)) is not None
    }
    decided = {*alone, *(each.package for each in pairs), *clash.requests[-1:]}
    left = [each for each in demands if each.package not in decided]
    rest = conflict.find_conflict(facts, left, cuda, row=row)
    reasons = [*map(str, pairs), *clash.reasons]
    for each in (*alone.values(), *([rest] if rest is not None else [])):
        reasons += each.reasons
    return tuple(dict.fromkeys(reasons))


def _contradictions(
    facts: PackageFacts,
    demands: Iterable[VersionDemand],
    places: Mapping[str, tuple[FilePlace, ...]],
) -> list[UnmetDemand]:
    asked = [
        PackageDemand(
            package=each.package,
            spec=each.spec,
            places=places.get(each.package, ()),
            extras=each.extras,
        )
        for each in demands
    ]
    markers = facts.catalogue.rules.tags.markers
    required = [
        (each, engine_torch.required_with_extras(each, metadata, markers))
        for each in asked
        if each.pin and (metadata := facts.metadata(each.package, Version(each.pin)))
    ]
    return find_contradictions(required, asked, Declarations())


def without_files(facts: PackageFacts, demands: Iterable[VersionDemand]) -> tuple[str, ...]:
    """Return the demanded packages of which no version has a usable file."""
    return tuple(each.package for each in demands if facts.versions(each.package) == ())
