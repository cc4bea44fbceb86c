"""Finds locked targets that satisfy a request, without an index or a solver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from packaging.specifiers import SpecifierSet

from imgbuild.attest.sbom.packages import Package, read_packages
from imgbuild.lock import lock_file
from imgbuild.lock.lock_file import Lock
from imgbuild.lock.resolution import installed_wheels
from imgbuild.matrix.model import Matrix
from imgbuild.matrix.notes import nearest_choice
from imgbuild.matrix.project_paths import Project
from imgbuild.resolve.resolve_request import ResolveRequest
from imgbuild.smoke import recording
from imgbuild.smoke.records import TIERS
from imgbuild.system.syntax import is_within, marker_applies, parse_requirement
from imgbuild.values import Arch, Sha256, environment_markers, normalize_package


class LockedTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A locked target that satisfies a request.

    `versions` contains the requested packages, in the order of the request, on the first requested
    architecture. `tested` is the highest tier of smoke tests that passed for the locked images, or
    "" without a test record. `commands` are shell commands.
    """

    target: str
    cuda: str
    as_of: str
    arch: tuple[Arch, ...]
    versions: Mapping[str, str]
    tested: str
    commands: tuple[str, ...]


MOST_OTHER = 1  # requested packages that a near target has at a different version
SIMILAR_LIMIT = 2  # requested packages that a target must have if it lacks another one


class NearTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A target that almost satisfies a request.

    `others` maps packages to the version in the target and the requested specifier. `missing` are
    requested packages that the target lacks.
    """

    target: str
    others: Mapping[str, tuple[str, str]]
    missing: tuple[str, ...] = ()


def similar_packages(request: ResolveRequest, project: Project, matrix: Matrix) -> dict[str, str]:
    """Map each requested package that no target contains to a package with a similar name."""
    names = {
        name for target in matrix.targets.values() for name in (*target.pins, *target.requires)
    }
    missing = set(request.packages) - names
    names |= locked_packages(project) if missing else set()
    near_names = {package: nearest_choice(package, names) for package in sorted(missing - names)}
    return {package: near for package, near in near_names.items() if near is not None}


def locked_packages(project: Project) -> set[str]:
    """Return the packages in all locked targets."""
    return {
        package
        for name in project.locked_targets()
        for locked in lock_file.read_lock(project.images, name).arch.values()
        for package in locked.versions
    }


def satisfying_targets(
    request: ResolveRequest,
    project: Project,
    matrix: Matrix,
    commands: Sequence[str] = ("imgbuild run {}", "imgbuild init --extends {}"),
) -> tuple[LockedTarget, ...]:
    """Return the targets with a current lock that satisfies the request on each architecture.

    Tested targets come first, then newer ones. Retired targets come last. Requirements of extras
    are those in the recorded METADATA of the target's wheels. `commands` use a target; `{}` stands
    for its name. Raises InputError if a lock cannot be read.
    """
    targets: list[LockedTarget] = []
    with_extras = any(requested.extras for requested in request.requests)
    records = read_packages(project.images).packages if with_extras else {}
    for name in project.locked_targets():
        if name not in matrix.targets or not _is_suitable(request, matrix, name):
            continue
        lock = lock_file.read_lock(project.images, name)
        versions = requested_versions(request, lock)
        if versions is None or lock_file.matrix_differences(lock, matrix):
            continue
        if with_extras and not _has_extras(request, lock, records):
            continue
        targets.append(
            LockedTarget(
                target=name,
                cuda=lock.cuda,
                as_of=lock.as_of,
                arch=tuple(lock.arch),
                versions=versions,
                tested=recording.highest_passed_tier(project, lock, request.arches) or "",
                commands=tuple(command.format(name) for command in commands),
            )
        )
    rank = (*TIERS[::-1], "")
    by_name = sorted(targets, key=lambda target: target.target)
    by_date = sorted(by_name, key=lambda target: target.as_of, reverse=True)
    by_test = sorted(by_date, key=lambda target: rank.index(target.tested))
    return tuple(sorted(by_test, key=lambda target: matrix.targets[target.target].retired != ""))


def requested_versions(request: ResolveRequest, lock: Lock) -> dict[str, str] | None:
    """Return the locked versions of the requested packages.

    Return None if a locked version does not satisfy `request`.
    """
    versions: dict[str, str] = {}
    for arch in reversed(request.arches):
        resolution = lock.arch.get(arch)
        if resolution is None:
            return None
        for requested in request.requests:
            version = resolution.versions.get(requested.package)
            if version is None:
                return None
            if not SpecifierSet(requested.spec).contains(version, prereleases=True):
                return None
            versions[requested.package] = version
    return {requested.package: versions[requested.package] for requested in request.requests}


def _has_extras(request: ResolveRequest, lock: Lock, records: Mapping[Sha256, Package]) -> bool:
    """Return whether the lock satisfies the requirements of all requested extras.

    Extras of these requirements are included: `PACKAGE[all]` can require `PACKAGE[other]`.
    """
    for arch in request.arches:
        resolution = lock.arch[arch]
        markers = environment_markers(lock.base.python, arch)
        wheels = {normalize_package(each.package): each for each in installed_wheels(resolution)}
        left = [(each.package, tuple(each.extras)) for each in request.requests if each.extras]
        seen: set[tuple[str, tuple[str, ...]]] = set()
        while left:
            item = package, extras = left.pop()
            wheel = wheels.get(package)
            record = records.get(wheel.sha256) if wheel is not None else None
            if record is None or record.requires is None:
                return False
            seen.add(item)
            for needed in map(parse_requirement, record.requires):
                if not marker_applies(needed.marker, markers, extras):
                    continue
                name, more = normalize_package(needed.name), tuple(sorted(needed.extras))
                if not is_within(resolution.versions.get(name), needed.specifier):
                    return False
                if more and (name, more) not in seen:
                    left.append((name, more))
    return True


def nearest_target(request: ResolveRequest, project: Project, matrix: Matrix) -> NearTarget | None:
    """Return the current target that differs least from a request, or None.

    At most MOST_OTHER requested packages have another version. Targets with the fewest differences
    are preferred, then newer targets.

    If there is no such target, a target may lack at most MOST_OTHER packages. These must be
    requested in any version, together with at least SIMILAR_LIMIT other packages. Targets that pin
    most of the other packages are preferred. `as_of` is ignored.
    """
    wanted = msgspec.structs.replace(request, as_of=None)
    near: list[tuple[bool, int, int, str, NearTarget]] = []
    for name in project.locked_targets():
        if name not in matrix.targets or matrix.targets[name].retired:
            continue
        if not _is_suitable(wanted, matrix, name):
            continue
        lock = lock_file.read_lock(project.images, name)
        missing = _missing_packages(wanted, lock)
        requests = tuple(each for each in wanted.requests if each.package not in missing)
        others = _other_versions(msgspec.structs.replace(wanted, requests=requests), lock)
        if others is None or len(others) + len(missing) > MOST_OTHER:
            continue
        bound = any(each.spec for each in wanted.requests if each.package in missing)
        if (
            bound
            or (missing and len(requests) < SIMILAR_LIMIT)
            or lock_file.matrix_differences(lock, matrix)
        ):
            continue
        pinned = sum(each.package in matrix.targets[name].pins for each in requests)
        target = NearTarget(target=name, others=others, missing=missing)
        near.append((not missing, -len(others), pinned if missing else 0, lock.as_of, target))
    return max(near, key=lambda each: each[:4])[4] if near else None


def _missing_packages(request: ResolveRequest, lock: Lock) -> tuple[str, ...]:
    has = [lock.arch[arch].versions for arch in request.arches if arch in lock.arch]
    return tuple(
        each.package for each in request.requests if any(each.package not in v for v in has)
    )


def _other_versions(request: ResolveRequest, lock: Lock) -> dict[str, tuple[str, str]] | None:
    """Map each requested package in another version to its locked version and the specifier.

    Return None if the lock lacks an architecture or a package.
    """
    others: dict[str, tuple[str, str]] = {}
    for arch in request.arches:
        if arch not in lock.arch:
            return None
        versions = lock.arch[arch].versions
        for requested in request.requests:
            version = versions.get(requested.package)
            if version is None:
                return None
            if not SpecifierSet(requested.spec).contains(version, prereleases=True):
                others[requested.package] = (version, requested.spec)
    return others


def _is_suitable(request: ResolveRequest, matrix: Matrix, name: str) -> bool:
    target = matrix.targets[name]
    return (
        request.base in (None, target.base)
        and request.python in (None, matrix.bases[target.base].python)
        and request.cuda in (None, target.cuda)
        and (request.as_of is None or target.as_of <= request.as_of)
        and all(
            target.indexes.get(package, matrix.default_index) == index
            for package, index in request.indexes.items()
        )
    )
