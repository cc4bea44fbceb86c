"""Computes dependencies between packages of an image.

Requirements that are not installed are omitted, because the audit reports them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, KeysView, Mapping, Sequence

import msgspec
from packaging.requirements import Requirement

from imgbuild.attest.sbom.packages import Package, named_packages
from imgbuild.system.syntax import marker_applies, parse_requirement, valid_requirement
from imgbuild.values import normalize_package


class AppliedRequirement(msgspec.Struct, frozen=True):
    """An applicable requirement of `package`.

    `extra` is the extra of `package` that declares the requirement, or "".
    """

    package: str
    extra: str
    requirement: Requirement


def wheel_dependencies(
    packages: Mapping[str, Package], markers: Mapping[str, str]
) -> dict[str, tuple[str, ...]]:
    """Map each package to the packages that it and its requested extras require."""
    lines = {
        package: record.needs if record.requires is None else record.requires
        for package, record in packages.items()
    }
    edges: dict[str, set[str]] = {package: set() for package in packages}
    for need in applied_requirements(lines, markers):
        edges[need.package].add(normalize_package(need.requirement.name))
    return {
        package: tuple(sorted(required - {package})) for package, required in sorted(edges.items())
    }


def applied_requirements(
    requires: Mapping[str, Iterable[str]], markers: Mapping[str, str]
) -> list[AppliedRequirement]:
    """Return the requirements that packages in `requires` have on each other.

    `requires` maps normalized package names to requirements. Requirements of requested extras are
    included.
    """
    requirements = {
        package: _requirements_among(requires.keys(), lines) for package, lines in requires.items()
    }
    extras: dict[str, set[str]] = {package: {""} for package in requires}
    by_package: dict[str, list[AppliedRequirement]] = {}
    pending = set(requires)
    while pending:
        package = pending.pop()
        by_package[package] = list(
            _applied_requirements(package, requirements[package], extras[package], markers)
        )
        for need in by_package[package]:
            other = normalize_package(need.requirement.name)
            requested = {normalize_package(extra) for extra in need.requirement.extras}
            if not requested <= extras[other]:
                extras[other] |= requested
                pending.add(other)
    return [need for package in sorted(by_package) for need in by_package[package]]


def deb_dependencies(packages: Mapping[str, Package]) -> dict[str, tuple[str, ...]]:
    """Map each package to the packages that it requires.

    If a dependency has alternatives, the first installed package is used.
    """
    giving = {
        given: package for package, record in sorted(packages.items()) for given in record.provides
    }
    giving |= {package: package for package in packages}
    return {
        package: tuple(sorted(set(_chosen_alternatives(record.needs, giving)) - {package}))
        for package, record in sorted(packages.items())
    }


def _requirements_among(packages: KeysView[str], lines: Iterable[str]) -> list[Requirement]:
    """Return the `lines` that require one of `packages`. Raises InvalidRequirement on failure."""
    chosen = [line for line in lines if not packages.isdisjoint(named_packages(line))]
    return [valid_requirement(line) or parse_requirement(line) for line in chosen]


def _applied_requirements(
    package: str,
    requirements: Iterable[Requirement],
    extras: Iterable[str],
    markers: Mapping[str, str],
) -> Iterator[AppliedRequirement]:
    for requirement in requirements:
        for extra in sorted(extras):
            if marker_applies(requirement.marker, markers, [extra]):
                yield AppliedRequirement(package, extra, requirement)
                break


def _chosen_alternatives(clauses: Sequence[str], giving: Mapping[str, str]) -> Iterable[str]:
    for clause in clauses:
        providers = (giving[name] for name in clause.split(" | ") if name in giving)
        yield from list(providers)[:1]
