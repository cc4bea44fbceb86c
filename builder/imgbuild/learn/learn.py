"""Derives a constraint from a finding: the versions of B that work with some versions of A.

Two boundaries are searched: the version of B that added or removed the name, and the versions of A
that use it, unless A is pinned. Some findings do not result in a constraint.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import takewhile
from typing import Final

import msgspec
from packaging.version import Version

from imgbuild.learn.boundaries import (
    NAMED_TESTS,
    PackageRelease,
    ReleaseCatalogue,
    find_boundary,
    has_module,
    lacks_item,
)
from imgbuild.learn.uses import runs_on_import, same_use
from imgbuild.matrix import constraints
from imgbuild.matrix.constraints import Constraint
from imgbuild.report import ConflictRelation, Evidence, Finding

# Relations without a name to look up in other versions, such as a WINDOW without versions.
UNNAMED_RELATIONS: Final = (
    *(
        ConflictRelation.SYMBOL,
        ConflictRelation.LIBRARY,
        ConflictRelation.ABI,
        ConflictRelation.CUDA,
        ConflictRelation.WINDOW,
    ),
)
NO_VERSIONS: Final = "<0"  # no version of the other package is compatible
# The packages that others import without declaring them, by module. Packages that are added
# automatically must be reviewed: names are not guessed, since anyone can publish under one, and
# requirements of an extra in METADATA are declared as optional.
_PROVIDING_PACKAGES: Final = {
    "pkg_resources": "setuptools",
    "rich": "rich",  # trl 0.7 to 0.9
    "scipy": "scipy",  # bitsandbytes before 0.42
    "setuptools": "setuptools",
}


class VersionBounds(msgspec.Struct, frozen=True, kw_only=True):
    """The compatible versions of a package as a specifier, and the version of the change."""

    spec: str
    came: str = ""
    went: str = ""


def learn_constraint(
    finding: Finding, release_catalogue: ReleaseCatalogue, pinned: Collection[str]
) -> Constraint | None:
    """Return the constraint that follows from `finding`, or None if the evidence is insufficient.

    `pinned` are packages that the target pins to one version.
    """
    evidence = finding.evidence
    if evidence is None or not evidence.version:
        return None
    missing = evidence.relation is ConflictRelation.PACKAGE
    other = (
        _PROVIDING_PACKAGES.get(evidence.subject.partition(".")[0], "")
        if missing
        else evidence.other
    )
    version_bounds = (
        versions_with_module(evidence, other, release_catalogue)
        if missing and other
        else find_bounds(evidence, release_catalogue)
    )
    if not other or version_bounds is None:
        return None
    never = version_bounds.spec == NO_VERSIONS
    unused = never and _never_runs(evidence, release_catalogue)
    # Without any compatible version, other releases of the package may lack the error.
    versions = (
        f"=={evidence.version}" if never else package_range(evidence, release_catalogue, pinned)
    )
    return Constraint(
        package=evidence.package,
        versions=versions,
        needs=other if unused else f"{other}{version_bounds.spec}",
        missing=missing,
        unused=unused,
        check=finding.check,
        file=evidence.file,
        line=evidence.line,
        name=evidence.subject,
        came=version_bounds.came,
        went=version_bounds.went,
        read_in=evidence.version,
        against=evidence.other_version,
    )


def _never_runs(evidence: Evidence, release_catalogue: ReleaseCatalogue) -> bool:
    """Return whether a function body uses a name that no release of the imported package has.

    Such code, like torch.nn.Relu in DeepSpeed, fails with all versions, so no constraint can help.
    Releases for older versions of Python are also examined.
    """
    if evidence.relation not in NAMED_TESTS or runs_on_import(release_catalogue, evidence):
        return False
    return all(
        lacks_item(release_catalogue, evidence, release) is True
        for release in release_catalogue.releases_for_older_python(evidence.other)
    )


def join_constraint(
    entry: Constraint, recorded: Iterable[Constraint], release_catalogue: ReleaseCatalogue
) -> Constraint:
    """Return `entry`, or a bound if it extends a run of excluded newest or oldest versions.

    Evidence that does not concern a name excludes one version in each round. The bound excludes the
    whole run.
    """
    alike = [
        constraint
        for constraint in (entry, *recorded)
        if (constraint.package, constraint.other, constraint.missing)
        == (entry.package, entry.other, entry.missing)
        and constraints.is_within(entry.versions, constraint.versions)
    ]
    excluded = _excluded_version(entry)
    if excluded is None:
        return entry
    versions = [
        Version(release.version.public)
        for release in release_catalogue.package_releases(entry.other)
    ]
    gone = {
        v
        for v in versions
        if any(not constraint.spec.contains(v, prereleases=True) for constraint in alike)
    }
    newest = list(takewhile(gone.__contains__, reversed(versions)))
    oldest = list(takewhile(gone.__contains__, versions))
    if excluded in newest and 1 < len(newest) < len(versions):
        bounds_of = VersionBounds(spec=f"<{newest[-1]}", went=str(newest[-1]))
    elif excluded in oldest and 1 < len(oldest) < len(versions):
        first = str(versions[len(oldest)])
        bounds_of = VersionBounds(spec=f">={first}", came=first)
    else:
        return entry
    return msgspec.structs.replace(
        entry, needs=f"{entry.other}{bounds_of.spec}", came=bounds_of.came, went=bounds_of.went
    )


def _excluded_version(entry: Constraint) -> Version | None:
    """Return None if the specifier of `entry` is not of the form `!=VERSION`."""
    parts = list(entry.spec)
    if len(parts) != 1 or parts[0].operator != "!=" or parts[0].version.endswith(".*"):
        return None
    return Version(parts[0].version)


def find_bounds(evidence: Evidence, release_catalogue: ReleaseCatalogue) -> VersionBounds | None:
    """Return the compatible versions of `evidence.other`, or None if they are unknown.

    Versions in the evidence (a window, a rule) take precedence. If the evidence concerns a name,
    other versions are searched for it. If the two packages are compatible without other packages, a
    third package is the cause, and the versions are unknown. For binaries, and for code that raises
    an exception at import, only the incompatibility of these two versions is known.
    """
    if evidence.spec:
        return VersionBounds(spec=evidence.spec)
    if not evidence.other_version:
        return None
    this_one = VersionBounds(spec=f"!={Version(evidence.other_version).public}")
    other = evidence.other
    releases = release_catalogue.readable_releases(other)
    start = _place(releases, evidence.other_version)
    if start is None or evidence.relation in UNNAMED_RELATIONS:
        return this_one
    if lacks_item(release_catalogue, evidence, releases[start]) is not True:
        return this_one if evidence.relation is ConflictRelation.ARGUMENT else None

    def is_incompatible(release: PackageRelease) -> bool:
        return lacks_item(release_catalogue, evidence, release) is True

    for step in _directions(evidence, release_catalogue, releases[start]):
        bad, good = find_boundary(releases, start, is_incompatible, step)
        if good is not None and step < 0:
            return VersionBounds(spec=f"<{bad.version.public}", went=str(bad.version))
        if good is not None:
            return VersionBounds(spec=f">={good.version.public}", came=str(good.version))
    return VersionBounds(spec=NO_VERSIONS)


def versions_with_module(
    evidence: Evidence, other: str, release_catalogue: ReleaseCatalogue
) -> VersionBounds:
    """Return the versions of `other` before the removal of the missing module.

    If the newest version has the module, return the specifier in the evidence.
    """
    releases = release_catalogue.package_releases(other)
    module = evidence.subject.partition(".")[0]

    def is_incompatible(release: PackageRelease) -> bool:
        return not has_module(release_catalogue, other, release, module)

    if evidence.spec or not releases or not is_incompatible(releases[-1]):
        return VersionBounds(spec=evidence.spec)
    bad, good = find_boundary(releases, len(releases) - 1, is_incompatible, -1)
    return VersionBounds(
        spec=NO_VERSIONS if good is None else f"<{bad.version.public}", went=str(bad.version)
    )


def _directions(
    evidence: Evidence, release_catalogue: ReleaseCatalogue, other: PackageRelease
) -> tuple[int, int]:
    """Return (-1, 1), older versions first, if `other` is newer than the package, else (1, -1)."""
    release = release_catalogue.release(evidence.package, evidence.version)
    if release is None or release.upload_time is None or other.upload_time is None:
        return (-1, 1)
    return (-1, 1) if other.upload_time > release.upload_time else (1, -1)


def package_range(
    evidence: Evidence, release_catalogue: ReleaseCatalogue, pinned: Collection[str]
) -> str:
    """Return a specifier of the versions that use the item in the evidence in the same way.

    The range contains only the version in the evidence if the package is pinned, or if no other
    version can be checked. Every release in the range is checked, because releases without the use
    must not be constrained.
    """
    alone = f"=={evidence.version}"
    package = evidence.package
    releases = release_catalogue.readable_releases(package)
    start = _place(releases, evidence.version)
    if package in pinned or start is None:
        return alone
    uses_item = same_use(release_catalogue, evidence)
    if not uses_item(releases[start]):
        return alone

    def _last_release(step: int) -> PackageRelease:
        side = releases[start:] if step > 0 else releases[start::-1]
        return list(takewhile(uses_item, side))[-1]

    low, high = _last_release(-1), _last_release(1)
    if low is high:
        return alone
    return f">={low.version.public},<={high.version.public}"


def _place(releases: Sequence[PackageRelease], version: str) -> int | None:
    expected = Version(version)
    return next((at for at, item in enumerate(releases) if item.version == expected), None)
