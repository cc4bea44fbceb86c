"""Compares the requirements of different files of a project."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from imgbuild.project import addresses, platforms
from imgbuild.project.model import DeclaredRequirement, exact_version
from imgbuild.system.syntax import parse_version
from imgbuild.values import normalize_package


def find_contradictions(
    ranges: Iterable[DeclaredRequirement], others: Iterable[DeclaredRequirement]
) -> Iterator[tuple[DeclaredRequirement, DeclaredRequirement]]:
    """Yield pairs of requirements on the same package that no version satisfies."""
    by_name: dict[str, list[DeclaredRequirement]] = {}
    for other in others:
        if other.kind == "requirement" and not other.path:
            by_name.setdefault(other.package, []).append(other)
    for declared in ranges:
        if declared.kind != "requirement" or declared.path:
            continue
        for other in by_name.get(declared.package, ()):
            if not are_compatible(declared.parsed_requirement, other.parsed_requirement):
                yield declared, other


def are_compatible(first: Requirement, second: Requirement) -> bool:
    """Return whether a version satisfies both requirements or their markers exclude each other."""
    together = platforms.matching_environments(
        str(first.marker or "")
    ) & platforms.matching_environments(str(second.marker or ""))
    if not together:
        return True
    specifier, other = _specifier(first), _specifier(second)
    if specifier is None or other is None:
        return True
    both = specifier & other
    return any(
        both.contains(version, prereleases=True) for version in _candidates(specifier, other)
    )


def _specifier(requirement: Requirement) -> SpecifierSet | None:
    """Return the specifier, for the URL of a wheel the version, and for other URLs None."""
    if requirement.url is None:
        return requirement.specifier
    version = addresses.wheel_version(requirement.url)
    return None if version is None else SpecifierSet(f"=={version}")


def _candidates(*specifiers: SpecifierSet) -> Iterator[Version]:
    """Yield bounds and adjacent versions, which include a match of all specifiers if one exists."""
    yield Version("0")
    yield Version("99999")
    for clause in (clause for each in specifiers for clause in each):
        text = clause.version.removesuffix(".*")
        version = parse_version(text)
        if version is None:
            continue
        yield version
        if version.post is None and version.dev is None:
            yield Version(f"{version.public}.post99999")
        base = ".".join(map(str, version.release))
        epoch = f"{version.epoch}!" if version.epoch else ""
        yield Version(f"{epoch}{base}.0.1")
        yield Version(f"{epoch}{base}.99999")
        *head, last = version.release
        if last:
            below = ".".join(map(str, [*head, last - 1]))
            yield Version(f"{epoch}{below}.99999")
        elif head and head[-1]:
            below = ".".join(map(str, [*head[:-1], head[-1] - 1, 99999]))
            yield Version(f"{epoch}{below}")


def is_pinned(declared: DeclaredRequirement) -> bool:
    """Return whether a requirement allows only one version or file."""
    requirement = declared.parsed_requirement
    if requirement.url is not None or declared.path:
        return True
    return exact_version(requirement.specifier) is not None


def is_lock(requirements: Iterable[DeclaredRequirement]) -> bool:
    """Return whether all requirements are pinned, as `pip freeze` and `uv export` print them."""
    listed = [each for each in requirements if each.kind == "requirement"]
    return bool(listed) and all(map(is_pinned, listed))


def missing_requirements(
    requirements: Iterable[DeclaredRequirement], others: Iterable[DeclaredRequirement]
) -> list[DeclaredRequirement]:
    """Return the requirements whose packages are not in `others`."""
    names = {normalize_package(each.parsed_requirement.name) for each in others}
    return [each for each in requirements if each.package not in names]
