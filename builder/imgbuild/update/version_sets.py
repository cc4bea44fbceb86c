"""Creates package sets to compare with newer versions, from locks or requirements files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from packaging.version import Version

from imgbuild.cache.context import Context
from imgbuild.errors import ImgbuildError
from imgbuild.index.candidates import best
from imgbuild.index.cuda_releases import requirements
from imgbuild.index.pages import GIT, PROJECT, URL, IndexAddress, Indexes, places
from imgbuild.index.remote_wheel import metadata
from imgbuild.lock.lock_file import Lock
from imgbuild.lock.published import Overlay, project_row
from imgbuild.lock.resolution import installed_wheels
from imgbuild.matrix.constraints import Constraint
from imgbuild.matrix.model import Matrix
from imgbuild.resolve.demands import PackageDemand
from imgbuild.resolve.feasible import allowed
from imgbuild.solve import uv
from imgbuild.solve.solve import python_of
from imgbuild.system import threads
from imgbuild.update.newer import THREADS, Progress, RequiredVersion, VersionSet, file_reasons
from imgbuild.values import Arch, normalize
from imgbuild.wheel.tags import Tags

NOT_LISTED = frozenset((URL, GIT, PROJECT))  # "indexes" of which no page lists versions


class LockedElsewhere(msgspec.Struct, frozen=True, kw_only=True):
    """A published target with versions that an extension could use instead."""

    target: str
    versions: Mapping[str, str]


def of_lock(
    lock: Lock,
    arches: Sequence[Arch],
    matrix: Matrix,
    requires: Mapping[str, Iterable[str]],
    known: Sequence[Constraint],
    others: Sequence[LockedElsewhere] = (),
) -> VersionSet:
    """The packages of `lock` from indexes, on `arches`.

    `requires` maps packages to the requirements of locked versions. `others` are published targets
    that a row with `extends` could extend instead.
    """
    target, overlay = matrix.targets.get(lock.target), project_row(matrix, lock.target)
    python = lock.base.python
    if target is not None:
        python = python_of(matrix.bases[target.base], lock.arch[arches[0]])
    by_address = lock.project.sources if lock.project is not None else {}
    versions = {
        normalize(wheel.package): wheel.version
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
        tags=tuple(Tags(python=python, glibc=lock.base.glibc, arch=arch) for arch in arches),
        versions=versions,
        wanted={package: each for package, each in wanted.items() if package in versions},
        requires=requires,
        kept=kept,
        cuda=lock.cuda,
        known=tuple(known),
        sdists=frozenset(matrix.sdists),
    )


def indexes_of(matrix: Matrix, name: str, context: Context) -> Indexes:
    """The indexes of target `name`, without upload times, which require other pages."""
    target = matrix.targets[name]
    addresses = places(matrix, target, uv.default_index)
    return Indexes(
        _indexes_without_times(addresses), target.indexes, matrix.default_index, context.http
    )


def _indexes_without_times(addresses: Mapping[str, IndexAddress]) -> dict[str, IndexAddress]:
    return {name: msgspec.structs.replace(each, timed=False) for name, each in addresses.items()}


def _reason_to_keep(
    package: str, version: str, target: str, others: Sequence[LockedElsewhere]
) -> str:
    """The reason why `extends` keeps a package, with another target that has the newest version."""
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
        normalize(package): RequiredVersion(spec=spec, place="the target")
        for package, spec in lock.requirements.items()
    }


def _required_versions(item: Overlay) -> dict[str, RequiredVersion]:
    """The requirements in a project's files and row, with their places."""
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
    """The package set of a requirements file, and reasons for omitted packages."""

    packages: VersionSet
    failed: Mapping[str, str] = {}


def of_demands(
    name: str,
    demands: Sequence[PackageDemand],
    tags: Tags,
    indexes: Indexes,
    context: Context,
    advance: Progress,
) -> RequirementSet:
    """The packages in `demands`, with pinned or newest allowed versions.

    Only direct requirements are included. Dependencies are not solved.
    """
    installed = [each for each in demands if each.installed and not each.source]

    def _answer(demand: PackageDemand, _: threads.Stop) -> tuple[str, tuple[str, ...], str]:
        try:
            return _version(demand, tags, indexes, context)
        except ImgbuildError as error:
            return demand.pin or "", (), error.message
        finally:
            advance(1)

    answers = dict(zip(installed, threads.each(installed, _answer, threads=THREADS), strict=True))
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
    )


def _version(
    demand: PackageDemand, tags: Tags, indexes: Indexes, context: Context
) -> tuple[str, tuple[str, ...], str]:
    """The version that satisfies a demand, with its requirements, or the reason against it."""
    files = [file for file in allowed(demand, indexes.files(demand.package)) if file.is_wheel]
    fitting = [file for file in files if not file_reasons([file], (tags,))]
    versions = {file.version for file in fitting if file.version is not None and not file.yanked}
    final = {each for each in versions if not each.is_prerelease} or versions
    if demand.pin is None and not final:
        return "", (), "no allowed version has a wheel for this Python and machine"
    newest = max(final) if demand.pin is None else Version(demand.pin)
    wheel = best(fitting, newest, tags) or next(iter(files), None)
    if wheel is None:
        return str(newest), (), ""
    data = metadata(wheel, context.http, context.store)
    return str(newest), tuple(map(str, requirements(data))), ""
