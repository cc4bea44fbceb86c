"""Check `metadata`: what the wheels themselves ask for, and what was learned of them.

Input: a world, learned constraints. Output: findings: a requirement that is absent or of a
wrong version (with markers and the extras that others ask for), a Python or a platform that a wheel
does not allow. uv has seen to most of it; overrides, wheels from elsewhere and wheels built from
sdists are where it can still be wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from imgbuild.audit.packages.package_set import World
from imgbuild.matrix import constraints as learned
from imgbuild.matrix.constraints import Constraint
from imgbuild.report import Evidence, Finding, Relation, Severity
from imgbuild.values import normalize
from imgbuild.wheel.tags import Tags

CHECK = "metadata"


class Need(msgspec.Struct, frozen=True):
    """A requirement that counts in this world; `extra` is the extra of `package` it comes with.

    `number` is its line in METADATA, 0 where that cannot be told.
    """

    package: str
    requirement: Requirement
    line: str
    extra: str = ""
    number: int = 0


def check(world: World, constraints: Sequence[Constraint] = ()) -> list[Finding]:
    """Everything that METADATA, file names and learned constraints say against this world."""
    tags = Tags(python=world.python, glibc=world.glibc, arch=world.arch)
    found = [finding for need in needs(world) for finding in _of_need(world, need)]
    for package in world.packages:
        found += _of_python(world, package, tags)
        found += _of_tags(world, package, tags)
    versions = {package: world.version(package) or "" for package in world.packages}
    found += [_of_constraint(world, one) for one in learned.violations(constraints, versions)]
    return found


def needs(world: World) -> list[Need]:
    """Every requirement that counts, with the extras that other packages of the world ask for."""
    markers = Tags(python=world.python, glibc=world.glibc, arch=world.arch).markers
    extras: dict[str, set[str]] = {package: {""} for package in world.packages}
    counted: dict[tuple[str, str, str], Need] = {}
    grown = True
    while grown:
        grown = False
        for package in world.packages:
            for need in _needs_of(world, package, extras[package], markers):
                counted.setdefault((package, need.line, need.extra), need)
                other = normalize(need.requirement.name)
                asked = {normalize(extra) for extra in need.requirement.extras}
                if other in extras and not asked <= extras[other]:
                    extras[other] |= asked
                    grown = True
    return [counted[key] for key in sorted(counted)]


def _needs_of(
    world: World, package: str, extras: Iterable[str], markers: dict[str, str]
) -> Iterator[Need]:
    metadata = world.metadata(package)
    if metadata is None:
        return
    numbers = metadata.lines or (0,) * len(metadata.requires)
    for line, number in zip(metadata.requires, numbers, strict=True):
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue  # uv reads these, or has refused the wheel
        for extra in sorted(extras):
            marker = requirement.marker
            if marker is None or marker.evaluate({**markers, "extra": extra}):
                yield Need(package, requirement, line, extra, number)
                break


def _of_need(world: World, need: Need) -> Iterator[Finding]:
    other = normalize(need.requirement.name)
    version = world.version(other)
    if version is None:
        if not world.partial:
            yield _finding(
                world,
                need.package,
                f"needs {need.line}, and {other} is not in this world",
                remedy=f"add {other} to the requirements of the target, or let uv resolve it anew",
                subject=need.line,
                other=other,
                spec=str(need.requirement.specifier),
                line=need.number,
            )
    elif not need.requirement.url and not _contains(need.requirement.specifier, version):
        yield _finding(
            world,
            need.package,
            f"needs {need.line}, and {other} is {version}",
            remedy=f"choose a {other} of {need.requirement.specifier}, or another {need.package}",
            subject=need.line,
            other=other,
            spec=str(need.requirement.specifier),
            line=need.number,
        )


def _of_python(world: World, package: str, tags: Tags) -> Iterator[Finding]:
    metadata = world.metadata(package)
    wanted = metadata.requires_python if metadata is not None else ""
    try:
        fits = SpecifierSet(wanted).contains(
            Version(tags.markers["python_full_version"]), prereleases=True
        )
    except InvalidSpecifier:  # some old files have one; pip passes over it too
        return
    if not fits:
        yield _finding(
            world,
            package,
            f"needs Python {wanted}, and this world has {world.python}",
            remedy="choose another version of it, or a base with another Python",
            subject=f"python{wanted}",
            line=metadata.python_line if metadata is not None else 0,
        )


def _of_tags(world: World, package: str, tags: Tags) -> Iterator[Finding]:
    name = world.books[package].wheel.file
    if name.endswith(".whl") and not tags.fits(name):
        yield _finding(
            world,
            package,
            f"{name} does not fit Python {world.python} with glibc {world.glibc} on {world.arch}",
            remedy="choose a wheel of this platform, or a base with a newer glibc",
            subject=name,
        )


def _of_constraint(world: World, one: Constraint) -> Finding:
    version = world.version(one.other)
    have = f"{one.other} is {version}" if version is not None else f"{one.other} is not there"
    return _finding(
        world,
        one.package,
        f"needs {one.needs}, as its code shows, and {have}",
        remedy="lock the target anew: imgbuild lock takes what was learned into account",
        subject=one.name or one.needs,
        other=one.other,
        spec=str(one.spec),
        file=one.file,
        line=one.line,
    )


def _contains(specifier: SpecifierSet, version: str) -> bool:
    try:
        return specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


def _finding(
    world: World,
    package: str,
    what: str,
    *,
    remedy: str,
    subject: str,
    other: str = "",
    spec: str = "",
    file: str = "",
    line: int = 0,
) -> Finding:
    version = world.version(package) or ""
    file = file or world.metadata_file(package)
    where = f"{package} {version} {file}" + (f":{line}" if line else "")
    return Finding(
        check=CHECK,
        severity=Severity.ERROR,
        message=f"{package} {version} {what}",
        where=where,
        remedy=remedy,
        evidence=Evidence(
            relation=Relation.REQUIREMENT,
            package=package,
            version=version,
            file=file,
            line=line,
            other=other if world.version(other) is not None else "",
            other_version=world.version(other) or "",
            subject=subject,
            spec=spec,
        ),
    )
