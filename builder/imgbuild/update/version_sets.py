"""Creates package sets from locks or requirements files, for the lookup of newer versions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from packaging.version import Version

from imgbuild.cache.context import Context
from imgbuild.errors import FetchFailed, ImgbuildError
from imgbuild.index.candidates import best_wheel
from imgbuild.index.cuda_releases import parse_requirements
from imgbuild.index.pages import GIT, PROJECT, URL, IndexAddress, IndexLookup, index_addresses
from imgbuild.index.remote_wheel import read_wheel_metadata
from imgbuild.lock.lock_file import Lock
from imgbuild.lock.published import TargetOverlay, project_row
from imgbuild.lock.resolution import installed_wheels
from imgbuild.matrix.constraints import Constraint
from imgbuild.matrix.model import Matrix
from imgbuild.resolve.demands import PackageDemand
from imgbuild.resolve.feasible import allowed_files
from imgbuild.solve import uv
from imgbuild.solve.base import base_python
from imgbuild.system import threads
from imgbuild.update.newer import (
    THREADS,
    AdvanceFunction,
    RequiredVersion,
    VersionSet,
    file_reasons,
)
from imgbuild.values import Arch, normalize_package
from imgbuild.wheel.tags import WheelTags

NOT_LISTED = frozenset((URL, GIT, PROJECT))  # "indexes" of which no page lists versions


class LockedElsewhere(msgspec.Struct, frozen=True, kw_only=True):
    """A published target that an extension could extend instead, with its versions."""

    target: str
    versions: Mapping[str, str]


def version_set_of_lock(
    lock: Lock,
    arches: Sequence[Arch],
    matrix: Matrix,
    requires: Mapping[str, Iterable[str]],
    known: Sequence[Constraint],
    others: Sequence[LockedElsewhere] = (),
) -> VersionSet:
    """Return the versions on `arches` of the packages in `lock` that are from an index.

    `requires` maps packages to the requirements of locked versions. `others` are published targets
    that a row with `extends` could extend instead.
    """
    target, overlay = matrix.targets.get(lock.target), project_row(matrix, lock.target)
    python = lock.base.python
    if target is not None:
        python = base_python(matrix.bases[target.base], lock.arch[arches[0]])
    by_address = lock.project.sources if lock.project is not None else {}
    versions = {
        normalize_package(wheel.package): wheel.version
        for arch in reversed(arches)
        for wheel in installed_wheels(lock.arch[arch])
        if wheel.index not in NOT_LISTED and wheel.package not in by_address
    }
    kept: dict[str, str] = {}
    if overlay is not None and overlay.row.extends is not None:
        published = overlay.published.lock.arch.get(arches[0])
        for package, version in (published.versions if published is not None else {}).items():
            kept[package] = _reason_to_keep(package, version, overlay.published.name, others)
    wanted = _required_versions(overlay) if overlay is not None else _target_requirements(lock)
    return VersionSet(
        name=lock.target,
        tags=tuple(WheelTags(python=python, glibc=lock.base.glibc, arch=arch) for arch in arches),
        versions=versions,
        wanted={package: each for package, each in wanted.items() if package in versions},
        requires=requires,
        kept=kept,
        cuda=lock.cuda,
        known=tuple(known),
        sdists=frozenset(matrix.sdists),
    )


def open_indexes(matrix: Matrix, name: str, context: Context) -> IndexLookup:
    """Open the indexes of target `name`.

    Upload times are not read, because they would require other pages of the index.
    """
    target = matrix.targets[name]
    addresses = index_addresses(matrix, target, uv.default_index)
    return IndexLookup(
        _indexes_without_times(addresses), target.indexes, matrix.default_index, context.http
    )


def _indexes_without_times(addresses: Mapping[str, IndexAddress]) -> dict[str, IndexAddress]:
    return {name: msgspec.structs.replace(each, timed=False) for name, each in addresses.items()}


def _reason_to_keep(
    package: str, version: str, target: str, others: Sequence[LockedElsewhere]
) -> str:
    newer = [
        (Version(has), other.target)
        for other in others
        if (has := other.versions.get(package)) is not None and Version(has) > Version(version)
    ]
    text = f"extends: {target} keeps {version}"
    if not newer:
        return text
    newest = max(each for each, _ in newer)
    names = [name for each, name in newer if each == newest]
    return f"{text}; {names[-1]} has {newest}"


def _target_requirements(lock: Lock) -> dict[str, RequiredVersion]:
    return {
        normalize_package(package): RequiredVersion(spec=spec, place="the target")
        for package, spec in lock.requirements.items()
    }


def _required_versions(item: TargetOverlay) -> dict[str, RequiredVersion]:
    required = item.requirements
    wanted = {
        package: RequiredVersion(spec=spec, place=str(required.places.get(package, "matrix.yaml")))
        for package, spec in required.versions.items()
    }
    row = {name: each.spec for name, each in item.row.requires.items()}
    row |= {name: f"=={version}" for name, version in item.row.pins.items()}
    return wanted | {
        name: RequiredVersion(spec=spec, place="matrix.yaml") for name, spec in row.items()
    }


class RequirementSet(msgspec.Struct, frozen=True, kw_only=True):
    """The package set of a requirements file, and the reasons why packages were omitted.

    `unreachable` are the packages whose index could not be read.
    """

    packages: VersionSet
    failed: Mapping[str, str] = {}
    unreachable: frozenset[str] = frozenset()


def version_set_of_demands(
    name: str,
    demands: Sequence[PackageDemand],
    tags: WheelTags,
    indexes: IndexLookup,
    context: Context,
    advance: AdvanceFunction,
) -> RequirementSet:
    """Create a set of the packages in `demands`, with pinned or newest allowed versions.

    Only direct requirements are included. Dependencies are not resolved.
    """
    installed = [each for each in demands if each.installed and not each.source]

    unreachable = set()

    def _answer(demand: PackageDemand, _: threads.StopFlag) -> tuple[str, tuple[str, ...], str]:
        try:
            return _version(demand, tags, indexes, context)
        except ImgbuildError as error:
            if isinstance(error, FetchFailed):
                unreachable.add(demand.package)
            return demand.pin or "", (), error.message
        finally:
            advance(1)

    answers = dict(
        zip(installed, threads.run_for_each(installed, _answer, threads=THREADS), strict=True)
    )
    return RequirementSet(
        packages=VersionSet(
            name=name,
            tags=(tags,),
            versions={
                each.package: version for each, (version, _, _) in answers.items() if version
            },
            wanted={
                each.package: RequiredVersion(
                    spec=each.spec,
                    place=", ".join(map(str, each.places)),
                    extras=each.extras,
                )
                for each in installed
            },
            requires={each.package: lines for each, (_, lines, _) in answers.items()},
        ),
        failed={each.package: error for each, (_, _, error) in answers.items() if error},
        unreachable=frozenset(unreachable),
    )


def _version(
    demand: PackageDemand, tags: WheelTags, indexes: IndexLookup, context: Context
) -> tuple[str, tuple[str, ...], str]:
    """Return the version for a demand and its requirements, or the reason why there is none."""
    files = [file for file in allowed_files(demand, indexes.files(demand.package)) if file.is_wheel]
    fitting = [file for file in files if not file_reasons([file], (tags,))]
    versions = {file.version for file in fitting if file.version is not None and not file.yanked}
    final = {each for each in versions if not each.is_prerelease} or versions
    if demand.pin is None and not final:
        return "", (), "no allowed version has a wheel for this Python and machine"
    newest = max(final) if demand.pin is None else Version(demand.pin)
    wheel = best_wheel(fitting, newest, tags) or next(iter(files), None)
    if wheel is None:
        return str(newest), (), ""
    data = read_wheel_metadata(wheel, context.http, context.store)
    return str(newest), tuple(map(str, parse_requirements(data))), ""
