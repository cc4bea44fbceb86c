"""Which package of an image needs which: the dependency graph of its SBOM.

A requirement that applies and is not installed gives no edge: the audit finds those.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from packaging.requirements import Requirement

from imgbuild.attest.sbom.packages import Package
from imgbuild.values import normalize


def of_wheels(
    packages: Mapping[str, Package], markers: Mapping[str, str]
) -> dict[str, tuple[str, ...]]:
    """Package → packages it needs, with the extras that others ask for; `packages` by name."""
    wanted = {package: _requirements(one) for package, one in packages.items()}
    extras: dict[str, set[str]] = {package: {""} for package in packages}
    edges: dict[str, set[str]] = {package: set() for package in packages}
    due = set(packages)
    while due:
        package = due.pop()
        for requirement in wanted[package]:
            other = normalize(requirement.name)
            if other not in packages or not _counts(requirement, extras[package], markers):
                continue
            if other != package:
                edges[package].add(other)
            asked = {normalize(extra) for extra in requirement.extras}
            if not asked <= extras[other]:
                extras[other] |= asked
                due.add(other)
    return {package: tuple(sorted(found)) for package, found in sorted(edges.items())}


def of_debs(packages: Mapping[str, Package]) -> dict[str, tuple[str, ...]]:
    """Package → packages it needs; of alternatives the first that is there."""
    giving = {given: package for package, one in sorted(packages.items()) for given in one.gives}
    giving |= {package: package for package in packages}
    return {
        package: tuple(sorted(set(_chosen(one.needs, giving)) - {package}))
        for package, one in sorted(packages.items())
    }


def _requirements(package: Package) -> list[Requirement]:
    return [Requirement(text) for text in package.needs]


def _counts(requirement: Requirement, extras: Iterable[str], markers: Mapping[str, str]) -> bool:
    marker = requirement.marker
    return marker is None or any(
        marker.evaluate({**markers, "extra": extra}) for extra in sorted(extras)
    )


def _chosen(clauses: Sequence[str], giving: Mapping[str, str]) -> Iterable[str]:
    for clause in clauses:
        found = (giving[name] for name in clause.split(" | ") if name in giving)
        yield from list(found)[:1]
