"""Checks requirements and platforms of wheels, and learned constraints: the check `metadata`.

Reports requirements that are missing or installed in a wrong version, and wheels that do not
support the Python or the platform. Markers, and the extras that the user and other packages
request, are considered. uv has checked most of this. Overrides, wheels from other sources and
wheels built from sdists can still be wrong. An installed version that no extra of another package
allows is a warning.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from imgbuild.audit.checks.findings import FindingPlace, finding_at
from imgbuild.audit.packages.package_set import PackageSet
from imgbuild.audit.packages.reading import module_name
from imgbuild.matrix.constraints import Constraint, violated_constraints
from imgbuild.report import ConflictRelation, Finding, Severity
from imgbuild.system.syntax import is_within, marker_applies, valid_requirement
from imgbuild.values import normalize_package
from imgbuild.wheel.tags import WheelTags

CHECK = "metadata"
NO_EXTRAS: Mapping[str, Collection[str]] = {}
_EXTRA = re.compile(r"""\bextra\s*==\s*["']([^"']+)["']""")


class Need(msgspec.Struct, frozen=True):
    """A requirement of `package` that applies in a package set.

    `extra` is the extra that contains the requirement, or "". `number` is the line in METADATA, or
    0 if unknown. `requested` means that the user requests the extra, directly or through another
    extra.
    """

    package: str
    requirement: Requirement
    line: str
    extra: str = ""
    number: int = 0
    requested: bool = False


def check_metadata(
    package_set: PackageSet,
    constraints: Sequence[Constraint] = (),
    extras: Mapping[str, Collection[str]] = NO_EXTRAS,
) -> list[Finding]:
    """Return findings for violations of METADATA, of file name tags and of learned constraints.

    `extras` maps packages to the extras that the user requests. The requirements of these extras
    must be installed.
    """
    tags = package_set.tags
    applied = applicable_needs(package_set, extras)
    findings: list[Finding] = []
    for need in applied:
        findings += _need_findings(package_set, need)
    for package in sorted(extras):
        findings += _unknown_extras(package_set, package, extras[package])
    for package in package_set.packages:
        findings += _extra_ranges(package_set, package, {need.line for need in applied})
        findings += _python_findings(package_set, package, tags)
        findings += _tag_findings(package_set, package, tags)
    versions = {package: package_set.version(package) or "" for package in package_set.packages}
    findings += [
        _constraint_finding(package_set, constraint)
        for constraint in violated_constraints(constraints, versions)
    ]
    return findings


def applicable_needs(
    package_set: PackageSet, requested_extras: Mapping[str, Collection[str]] = NO_EXTRAS
) -> list[Need]:
    """Return all requirements that apply in a package set.

    The requirements of extras that the user or other packages request are included.
    """
    markers = package_set.tags.markers
    extras = {package: {"", *requested_extras.get(package, ())} for package in package_set.packages}
    requested = {package: set(each) for package, each in requested_extras.items()}
    counted: dict[tuple[str, str], Need] = {}
    grown = True
    while grown:
        grown = False
        for package in package_set.packages:
            # A line holds without an extra, else by one that the user requests, else by another.
            first = requested.get(package, set())
            order = ["", *sorted(first), *sorted(extras[package] - first - {""})]
            for need in _package_needs(package_set, package, order, markers):
                counted[package, need.line] = need
                other = normalize_package(need.requirement.name)
                more = {normalize_package(extra) for extra in need.requirement.extras}
                if other in extras and not more <= extras[other]:
                    extras[other] |= more
                    grown = True
                if need.extra in first and not more <= requested.get(other, set()):
                    requested.setdefault(other, set()).update(more)
                    grown = True
    return [
        msgspec.structs.replace(need, requested=need.extra in requested.get(need.package, ()))
        for _, need in sorted(counted.items(), key=lambda item: item[0])
    ]


def _package_needs(
    package_set: PackageSet, package: str, extras: Iterable[str], markers: dict[str, str]
) -> Iterator[Need]:
    metadata = package_set.metadata(package)
    if metadata is None:
        return
    numbers = metadata.lines or (0,) * len(metadata.requires)
    for line, number in zip(metadata.requires, numbers, strict=True):
        requirement = valid_requirement(line)
        if requirement is None:
            continue  # uv reads these, or has refused the wheel
        for extra in extras:
            if marker_applies(requirement.marker, markers, [extra]):
                yield Need(package, requirement, line, extra, number)
                break


def _need_findings(package_set: PackageSet, need: Need) -> Iterator[Finding]:
    other = normalize_package(need.requirement.name)
    version = package_set.version(other)
    if version is None:
        if need.requested or not package_set.partial:
            yield _finding(
                package_set,
                need.package,
                f"requires {need.line}, but {other} is not in this package set",
                remedy=f"add {other} to the requirements of the target, or resolve it again",
                subject=need.line,
                other=other,
                spec=str(need.requirement.specifier),
                line=need.number,
            )
    elif not need.requirement.url and not is_within(version, need.requirement.specifier):
        yield _finding(
            package_set,
            need.package,
            f"requires {need.line}, but {other} is {version}",
            remedy=f"choose {other}{need.requirement.specifier},"
            f" or another version of {need.package}",
            subject=need.line,
            other=other,
            spec=str(need.requirement.specifier),
            line=need.number,
        )


def _unknown_extras(
    package_set: PackageSet, package: str, requested: Collection[str]
) -> Iterator[Finding]:
    metadata = package_set.metadata(package)
    if metadata is None:
        return
    provided = {normalize_package(extra) for extra in metadata.extras}
    for extra in sorted(set(requested) - provided):
        finding = _finding(
            package_set,
            package,
            f"has no extra {extra}, so it is ignored",
            remedy=f"its extras: {', '.join(sorted(provided)) or 'none'}",
            subject=f"{package}[{extra}]",
        )
        yield msgspec.structs.replace(finding, severity=Severity.WARNING)


def _extra_ranges(
    package_set: PackageSet, package: str, applied: Collection[str]
) -> Iterator[Finding]:
    """Yield warnings for installed versions that no extra with the package allows.

    These extras are not requested, but their ranges show which versions the package supports.
    """
    ranges: dict[str, list[Need]] = {}
    for need in _optional_needs(package_set, package):
        if need.line not in applied and package_set.version(need.requirement.name) is not None:
            ranges.setdefault(normalize_package(need.requirement.name), []).append(need)
    for other, optional_needs in ranges.items():
        version = package_set.version(other) or ""
        if not any(is_within(version, need.requirement.specifier) for need in optional_needs):
            need = optional_needs[0]
            finding = _finding(
                package_set,
                package,
                f"supports {other}{need.requirement.specifier} according to its extra"
                f" {need.extra}, but {other} is {version}",
                remedy=f"choose {other}{need.requirement.specifier},"
                f" or another version of {package}",
                subject=need.line,
                other=other,
                spec=str(need.requirement.specifier),
                line=need.number,
            )
            yield msgspec.structs.replace(finding, severity=Severity.WARNING)


def advised_extras(package_set: PackageSet, named: Iterable[str]) -> Iterator[Finding]:
    """Yield warnings for parts of packages, such as `ray.serve`, whose extra is incomplete.

    Only the packages `named` are checked. The message of the failing import recommends the extra.
    """
    for package in sorted(set(named) if not package_set.partial else ()):
        for advice in package_set.advised_extras(package):
            if advice.modules and all(map(package_set.exists, advice.modules)):
                continue
            extra = {normalize_package(package): (advice.extra,)}
            missing = [
                normalize_package(need.requirement.name)
                for need in applicable_needs(package_set, extra)
                if need.package == normalize_package(package)
                and need.extra == advice.extra
                and package_set.version(need.requirement.name) is None
            ]
            if missing:
                part = module_name(advice.file) or advice.file
                finding = _finding(
                    package_set,
                    package,
                    f"requires {package}[{advice.extra}] for {part}, but {', '.join(missing)}"
                    f" {'is' if len(missing) == 1 else 'are'} not in this package set",
                    remedy=f"if {part} is used, require {package}[{advice.extra}]",
                    subject=f"{package}[{advice.extra}]",
                    file=advice.file,
                    line=advice.line,
                )
                yield msgspec.structs.replace(finding, severity=Severity.WARNING)


def _optional_needs(package_set: PackageSet, package: str) -> Iterator[Need]:
    """Yield requirements with a range, from extras named after the required package.

    An example is `trl[vllm]`. Other extras are for tools. Their ranges are unrelated to the code of
    the package.
    """
    metadata = package_set.metadata(package)
    if metadata is None:
        return
    numbers = metadata.lines or (0,) * len(metadata.requires)
    for line, number in zip(metadata.requires, numbers, strict=True):
        requirement = valid_requirement(line)
        extra = bounded_extra(requirement) if requirement is not None else ""
        if requirement is not None and extra:
            yield Need(package, requirement, line, extra, number)


def bounded_extra(requirement: Requirement) -> str:
    """Return the extra that is named after the required package.

    Returns "" if the requirement has no such extra, or has no range.
    """
    extra = _EXTRA.search(str(requirement.marker)) if requirement.marker is not None else None
    if extra is None or not requirement.specifier:
        return ""
    return extra[1] if normalize_package(requirement.name) == normalize_package(extra[1]) else ""


def _python_findings(package_set: PackageSet, package: str, tags: WheelTags) -> Iterator[Finding]:
    metadata = package_set.metadata(package)
    specifier = metadata.requires_python if metadata is not None else ""
    try:
        fits = SpecifierSet(specifier).contains(
            Version(tags.markers["python_full_version"]), prereleases=True
        )
    except InvalidSpecifier:  # some old files have one; pip ignores it too
        return
    if not fits:
        yield _finding(
            package_set,
            package,
            f"requires Python {specifier}, but this package set has {package_set.python}",
            remedy=f"choose another version of {package}, or a base with a different Python",
            subject=f"python{specifier}",
            line=metadata.python_line if metadata is not None else 0,
        )


def _tag_findings(package_set: PackageSet, package: str, tags: WheelTags) -> Iterator[Finding]:
    name = package_set.wheels[package].wheel.file
    if name.endswith(".whl") and not tags.is_compatible(name):
        yield _finding(
            package_set,
            package,
            f"{name} is incompatible with Python {package_set.python}, glibc"
            f" {package_set.glibc} on {package_set.arch}",
            remedy="choose a wheel for this platform, or a base with a newer glibc",
            subject=name,
        )


def _constraint_finding(package_set: PackageSet, constraint: Constraint) -> Finding:
    version = package_set.version(constraint.other)
    have = (
        f"{constraint.other} is {version}"
        if version is not None
        else f"{constraint.other} is not installed"
    )
    return _finding(
        package_set,
        constraint.package,
        f"requires {constraint.needs} according to its code, but {have}",
        remedy="run `imgbuild lock` again to apply learned constraints",
        subject=constraint.name or constraint.needs,
        other=constraint.other,
        spec=str(constraint.spec),
        file=constraint.file,
        line=constraint.line,
    )


def _finding(
    package_set: PackageSet,
    package: str,
    what: str,
    *,
    other: str = "",
    file: str = "",
    line: int = 0,
    **more: Any,
) -> Finding:
    version = package_set.version(package) or ""
    return finding_at(
        FindingPlace(package, version, file or package_set.metadata_file(package), line),
        CHECK,
        Severity.ERROR,
        f"{package} {version} {what}",
        relation=ConflictRelation.REQUIREMENT,
        other=other if package_set.version(other) is not None else "",
        other_version=package_set.version(other) or "",
        **more,
    )
