"""Finds sdists that learned constraints exclude before uv reads METADATA.

An sdist must be built to get its METADATA, which takes seconds to minutes for each version.
"""

# A separate module: one rule.
from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from packaging.specifiers import SpecifierSet

from imgbuild.index.catalogue import FileCatalogue
from imgbuild.matrix.constraints import Constraint
from imgbuild.solve.problem import SolveProblem


def sdist_exclusions(
    catalogue: FileCatalogue,
    problem: SolveProblem,
    present: Collection[str],
    learned: Iterable[Constraint],
) -> tuple[str, ...]:
    """Return constraints that exclude impossible versions of sdists, one for each of `present`.

    A version is impossible if no version of another package satisfies one of its learned
    constraints together with the pins and specifiers of the target.
    """
    required, packages = problem.requirements, {*present}.intersection(problem.matrix.sdists)
    pins = {**problem.target.pins, **required.pins}
    return version_exclusions(catalogue, packages, pins, required.versions, learned)


def version_exclusions(
    catalogue: FileCatalogue,
    packages: Collection[str],
    pins: Mapping[str, str],
    specs: Mapping[str, str],
    learned: Iterable[Constraint],
) -> tuple[str, ...]:
    """Return constraints as `sdist_exclusions` does, for given versions and specifiers."""
    entries = [entry for entry in learned if not entry.unused]
    accepted = {package: SpecifierSet(spec) for package, spec in specs.items()}
    accepted |= {package: SpecifierSet(f"=={version}") for package, version in pins.items()}
    for entry in entries:
        if entry.package in pins and entry.restricts_other_for(pins[entry.package]):
            accepted[entry.other] = accepted.get(entry.other, SpecifierSet()) & entry.spec
    versions: dict[str, dict[str, None]] = {}
    for entry in entries:
        if entry.package not in packages or entry.other not in accepted:
            continue
        both = entry.spec & accepted[entry.other]
        offered = (offer.wheel.version for offer in catalogue.offered_files(entry.other))
        if any(both.contains(version, prereleases=True) for version in offered if version):
            continue
        for offer in catalogue.offered_files(entry.package):
            version = str(offer.wheel.version)
            if offer.sdist is not None and entry.restricts_other_for(version):
                versions.setdefault(entry.package, {})[version] = None
    return tuple(
        f"{package}{','.join(f'!={version}' for version in each)}"
        for package, each in sorted(versions.items())
    )
