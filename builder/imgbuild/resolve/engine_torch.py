"""Determines the torch version and the CUDA release of a project's image."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec
from packaging.requirements import Requirement
from packaging.version import Version

from imgbuild.index import cuda_releases
from imgbuild.index.pages import IndexFile
from imgbuild.project.model import DeclaredName
from imgbuild.resolve.demands import PackageDemand
from imgbuild.resolve.feasible import IndexPages, UnmetDemand
from imgbuild.solve import torch
from imgbuild.solve.torch import TorchBuild
from imgbuild.system import threads
from imgbuild.values import normalize_package
from imgbuild.wheel.tags import WheelTags

TORCH = "torch"
UPPER_OPERATORS = frozenset(
    {"<", "<=", "!="}
)  # bounds that imply the newest version that they accept
BUILDS = 8  # releases of torch of which the CUDA release is read


def add_engine_torch(
    demands: Sequence[PackageDemand],
    markers: Mapping[str, str],
    metadata: Callable[[PackageDemand], bytes],
) -> tuple[PackageDemand, ...]:
    """Return `demands` with torch limited to the version that a pinned or bounded engine requires.

    `metadata` returns METADATA of the newest version that a demand accepts, or empty bytes.
    """
    by_name = {demand.package: demand for demand in demands}
    own = by_name.get(TORCH, PackageDemand(package=TORCH, installed=False))
    engines = (by_name[name] for name in torch.ENGINES if name in by_name)
    pinned = [
        each for each in engines if decides_version(each) and each.installed and not each.source
    ]
    if own.pin or own.source or not pinned:
        return tuple(demands)
    bound = next(filter(None, (_torch(each, markers, metadata) for each in pinned)), None)
    if bound is None:
        return tuple(demands)
    joined = f"{own.spec},{bound.spec}" if own.spec else bound.spec
    joint = msgspec.structs.replace(own, spec=joined, places=own.places or bound.places)
    return (*(each for each in demands if each.package != TORCH), joint)


def decides_version(demand: PackageDemand) -> bool:
    """Return whether a demand determines a version: it is exact or has an upper bound."""
    operators = {each.operator for each in demand.versions}
    return demand.pin is not None or bool(operators - {"!="} and operators <= UPPER_OPERATORS)


def newest_build(
    wheels: Iterable[IndexFile],
    read: Callable[[IndexFile], bytes],
    markers: Mapping[str, str],
    cuda: Collection[str],
) -> TorchBuild | None:
    """Return the newest build in torch's `wheels` for a release in `cuda`, or else for any release.

    Return None if no wheel is a build for CUDA. Only the first `BUILDS` wheels are checked.
    """
    builds = []
    for wheel in itertools.islice(wheels, BUILDS):
        version = wheel.version
        if version is not None:
            built = torch.torch_build(
                version, cuda_releases.active_requirements(read(wheel), markers)
            )
            if built.cuda in cuda:
                return built
            builds += [built] if built.cuda is not None else []
    return builds[0] if builds else None


def releases(pages: IndexPages, tags: WheelTags) -> frozenset[str]:
    """Return the CUDA releases for which torch is built."""
    built = threads.run_for_each(
        pages.wheels(PackageDemand(package=TORCH), tags),
        lambda wheel, _: newest_build([wheel], pages.metadata, tags.markers, ()),
        threads=8,
    )
    return frozenset(each.cuda for each in built if each is not None and each.cuda)


def without_build(named: str, cuda: Sequence[DeclaredName]) -> UnmetDemand:
    """Return an obstacle: the index has no torch for the CUDA release `named` in the files."""
    places = tuple(item.place for item in cuda if item.name == named)
    reason = "the index has no torch for this release; specify another release with --cuda"
    demand = f"CUDA {named}"
    return UnmetDemand(package="cuda", demand=demand, cause="cuda", reason=reason, places=places)


def required_with_extras(
    demand: PackageDemand, metadata: bytes, markers: Mapping[str, str]
) -> list[Requirement]:
    """Return the requirements of a package and, recursively, of its extras."""
    machine = tuple(sorted(markers.items()))
    return list(_metadata_requirements(demand.package, demand.extras, metadata, machine))


@functools.lru_cache(maxsize=2000)  # the same for each target of a Python
def _metadata_requirements(
    package: str, named: tuple[str, ...], metadata: bytes, machine: tuple[tuple[str, str], ...]
) -> tuple[Requirement, ...]:
    markers = dict(machine)
    extras: set[str] = set()
    more = set(named)
    while more - extras:
        extras |= more
        own = cuda_releases.active_requirements(metadata, markers, extras)
        more = {extra for each in own for extra in each.extras
                if normalize_package(each.name) == package}  # fmt: skip
    return tuple(cuda_releases.active_requirements(metadata, markers, extras))


def missing_toolkit_obstacles(
    demand: PackageDemand | None,
    built: str,
    named: str,
    cuda: Sequence[DeclaredName],
    pages: IndexPages,
    tags: WheelTags,
) -> list[UnmetDemand]:
    """Return obstacles if the demanded torch or CUDA release is impossible in an image.

    This is the case if the release has no `cuda-toolkit`, or if the exact torch is built for
    another release. `built` is the release for which torch is built. `named` is the release that
    the files state at the places `cuda`, or "".
    """
    files = pages.files(cuda_releases.METAPACKAGE)
    have = {file.version.release[:2] for file in files if file.version is not None}
    if not have:
        return []  # the index is a partial copy
    lacks = f"the index has no {cuda_releases.METAPACKAGE} for this release"
    if demand is not None and built and Version(built).release not in have:
        later = PackageDemand(package=TORCH, spec=f">{demand.pin}") if demand.pin else demand
        wheels = pages.wheels(later, tags)[::-1][:BUILDS]
        builds = [newest_build([wheel], pages.metadata, tags.markers, ()) for wheel in wheels]
        usable = [each for each in builds if each and Version(each.cuda or "0").release in have]
        return [
            UnmetDemand(
                package=TORCH,
                demand=str(demand),
                cause="cuda",
                reason=f"it is built for CUDA {built}, and {lacks}",
                places=demand.places,
                nearest=tuple(each.version.public for each in usable[:1]),
            )
        ]
    places = tuple(item.place for item in cuda if item.name == named)
    if named and Version(named).release not in have:
        reason = f"{lacks}; specify another release with --cuda"
        return [
            UnmetDemand(
                package="cuda", demand=f"CUDA {named}", cause="cuda", reason=reason, places=places
            )
        ]
    if demand is not None and demand.pin and built and named not in ("", built):
        where = next((f" ({place})" for place in places), "")
        reason = f"the index has a build for CUDA {built}, but not for CUDA {named}{where}"
        return [
            UnmetDemand(
                package=TORCH,
                demand=str(demand),
                cause="cuda",
                reason=reason,
                places=demand.places,
            )
        ]
    return []


def _torch(
    engine: PackageDemand,
    markers: Mapping[str, str],
    metadata: Callable[[PackageDemand], bytes],
) -> PackageDemand | None:
    for needed in required_with_extras(engine, metadata(engine), markers):
        bound = PackageDemand(package=TORCH, spec=str(needed.specifier), places=engine.places)
        if normalize_package(needed.name) == TORCH and bound.pin:
            return bound
    return None
