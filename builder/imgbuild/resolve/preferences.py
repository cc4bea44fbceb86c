"""Finds version ranges that a package declares in an extra named after another package.

An example is `trl[vllm]`. If the extra is not requested, a resolver may choose versions outside of
the range, and the audit warns. The ranges are therefore constraints as long as a package set
satisfies them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from itertools import groupby

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from imgbuild.audit.checks.metadata import bounded_extra
from imgbuild.errors import FetchFailed
from imgbuild.index import cuda_releases
from imgbuild.matrix.constraints import Constraint
from imgbuild.resolve.conflict import PackageFacts
from imgbuild.values import normalize_package

EXTRA_KIND = "extra"  # the check of constraints that follow from such a range
METADATA_LIMIT = 240  # versions of one package
NO_VERSIONS = "<0"

PackagePair = tuple[str, str]  # a package, and the one that its extra is named after


def violated_pairs(facts: PackageFacts, versions: Mapping[str, str]) -> Iterator[PackagePair]:
    """Yield the pairs whose second package violates a range in an extra of the first package."""
    for package, version in versions.items():
        for other, specs in _ranges(facts, package, Version(version)).items():
            chosen = versions.get(other)
            if chosen is not None and not any(
                SpecifierSet(spec).contains(chosen, prereleases=True) for spec in specs
            ):
                yield package, other


def pair_constraints(facts: PackageFacts, pair: PackagePair, spec: str) -> tuple[Constraint, ...]:
    """Return the ranges that extras of the first package in `pair` declare for the second.

    Versions of the first package within `spec` are examined. Versions without the extra need no
    range, because their code does not use the second package.
    """
    package, other = pair
    versions = sorted((facts.allowed_versions(package, spec) or ())[:METADATA_LIMIT])
    with contextlib.suppress(FetchFailed):
        facts.read_ahead(package, versions)
    needs: list[tuple[Version, str]] = []
    is_declared = False
    for version in versions:
        specs = _ranges(facts, package, version).get(other, ())
        is_declared = is_declared or bool(specs)
        if len(specs) == 1:
            needs.append((version, specs[0]))
        else:
            needs.append((version, "" if is_declared else NO_VERSIONS))
    entries = []
    for needed, group in groupby(needs, key=lambda item: item[1]):
        group_versions = [version for version, _ in group]
        if needed and is_declared:
            entries.append(
                Constraint(
                    package=package,
                    versions=f"=={group_versions[0]}"
                    if len(group_versions) == 1
                    else f">={group_versions[0]},<={group_versions[-1]}",
                    needs=f"{other}{needed}",
                    check=EXTRA_KIND,
                    name=other,
                    read_in=str(group_versions[-1]),
                )
            )
    return tuple(entries)


def range_sentence(entry: Constraint) -> str:
    """Return a sentence that gives a satisfied range as the reason for a version."""
    return f"supports {entry.needs} according to its extra {entry.name}"


def _ranges(facts: PackageFacts, package: str, version: Version) -> Mapping[str, tuple[str, ...]]:
    """Map each package that has an extra named after it to the ranges in this extra.

    The result is empty if METADATA is unreadable.
    """
    data = None
    with contextlib.suppress(FetchFailed):
        data = facts.metadata(package, version)
    ranges: dict[str, tuple[str, ...]] = {}
    for requirement in cuda_releases.parse_requirements(data) if data is not None else ():
        if bounded_extra(requirement):
            other, spec = normalize_package(requirement.name), str(requirement.specifier)
            if spec not in ranges.get(other, ()):
                ranges[other] = (*ranges.get(other, ()), spec)
    return ranges
