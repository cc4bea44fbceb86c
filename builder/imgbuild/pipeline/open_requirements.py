"""Resolves requirements without exact versions with uv, so that the versions can be audited.

The versions are those that pip or uv would install. Rules of the matrix and learned constraints are
ignored, so that the audit reports the problems that an installation with pip or uv would have.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import msgspec
from packaging.version import Version

from imgbuild.audit.packages.pinned import Pin, PinList
from imgbuild.errors import InputError, NoSolution
from imgbuild.index.candidates import FileRules
from imgbuild.index.catalogue import FileCatalogue
from imgbuild.matrix.model import Matrix
from imgbuild.pipeline.audit_set import SetRequest, open_indexes
from imgbuild.pipeline.declared_files import find_indexes
from imgbuild.pipeline.sdist_pins import metadata_reader
from imgbuild.project import addresses
from imgbuild.project.model import Declarations, DeclaredIndex
from imgbuild.report import UncheckedPart
from imgbuild.resolve.declared_requests import split_demands
from imgbuild.resolve.demands import PackageDemand, cuda_releases
from imgbuild.resolve.project_indexes import ProjectIndexes
from imgbuild.resolve.resolve_request import today_utc
from imgbuild.solve import refusal, uv
from imgbuild.system.amounts import format_count


class SolvedPins(msgspec.Struct, frozen=True, kw_only=True):
    """The exact versions of all packages, and the CUDA release in the files (or "").

    `indexes` are the indexes in the files from which packages were selected. `exempt` maps packages
    that the files override to the places of the overrides.
    """

    listed: PinList
    cuda: str
    indexes: ProjectIndexes
    exempt: dict[str, str]


def add_indexes(listed: PinList, request: SetRequest, matrix: Callable[[], Matrix]) -> SetRequest:
    """Add the declared indexes with packages that the default index lacks to `request`.

    A local version (`2.6.0+cu124`) is looked up by its public version.
    """
    demands = [
        PackageDemand(package=package, spec=f"=={Version(pin.version).public}", source=pin.url)
        for package, pin in listed.pins.items()
    ]
    indexes = _file_indexes(listed.indexes, demands, request, matrix, published=listed.pins)
    return msgspec.structs.replace(request, indexes=indexes)


def _file_indexes(
    indexes: Sequence[DeclaredIndex],
    demands: Sequence[PackageDemand],
    request: SetRequest,
    matrix: Callable[[], Matrix],
    *,
    published: Collection[str] = (),
) -> ProjectIndexes:
    if not indexes:
        return ProjectIndexes()
    machine, context = request.machine, request.context
    return find_indexes(indexes, demands, matrix(), machine, context, published=published)


def solve_pins(
    declared: Declarations, request: SetRequest, matrix: Callable[[], Matrix]
) -> SolvedPins:
    """Find a version for each package required by `declared`, including dependencies.

    URL requirements are not resolved, because the version of a wheel is part of its file name.
    `matrix` is called only if files declare indexes. If a version is published only as an sdist,
    its requirements are read from the sdist, as far as they are not computed. Raises NoSolution if
    no versions on the index satisfy the requirements.
    """
    markers = request.machine.markers
    demands = split_demands(declared, markers)
    if not demands.named and not demands.addressed:
        message = f"{', '.join(declared.files)}: no requirements found"
        raise InputError(message, hint="specify a file that declares requirements")
    day = declared.cut_off.day if declared.cut_off is not None else today_utc()
    opened = [item for item in demands.named if item.pin is None]
    count = format_count(len(demands.named), "package")
    reason = f"{len(opened)} of {count} have no exact version" if opened else ""
    reason = reason or f"the dependencies of {count} are not all listed"
    request.context.reporter.info(
        f"{reason}; resolving all packages from files uploaded before {day}"
    )
    of_files = _file_indexes(declared.indexes, demands.named, request, matrix)
    indexes = open_indexes(msgspec.structs.replace(request, indexes=of_files))
    pins = {item.package: pin for item in demands.named if (pin := item.pin) is not None}
    rules = FileRules(as_of=day, tags=request.machine, pins=pins)
    store = request.context.store
    catalogue = FileCatalogue(
        indexes, rules, request.context.http, store, all_sdists=metadata_reader(request.context)
    )
    bounds = uv.ResolverBounds(
        constraints=tuple(f"{item.package}{item.spec}" for item in demands.bounds),
        overrides=tuple(
            item.text
            for item in declared.requirements
            if item.kind == "override" and not item.parsed_requirement.url and not item.path
        ),
    )
    try:
        with request.context.reporter.step("resolving versions"):
            chosen = uv.run_resolver(catalogue, list(map(str, demands.named)), bounds, store)
    except uv.UnsolvableError as error:
        machine = request.machine
        message = f"no versions are compatible with Python {machine.python} on {machine.arch}"
        reasons = refusal.resolver_lines(str(error))
        hint = "change the requirements, or specify another --python"
        raise NoSolution(message, reasons=reasons, hint=hint) from error
    extras = {item.package: item.extras for item in demands.named}
    solved = {
        item.package: Pin(version=item.version, extras=extras.get(item.package, ()))
        for item in chosen
    }
    by_address, unread = _pins_by_url(demands.addressed)
    releases = cuda_releases(declared, markers)
    return SolvedPins(
        listed=PinList(pins={**solved, **by_address}, unread=unread),
        cuda=releases[0] if len(releases) == 1 else "",
        indexes=of_files,
        exempt={
            item.package: f"overridden in {item.place}"
            for item in declared.requirements
            if item.kind == "override"
        },
    )


def _pins_by_url(
    items: Sequence[PackageDemand],
) -> tuple[dict[str, Pin], tuple[UncheckedPart, ...]]:
    pins, unread = {}, []
    for item in items:
        version = addresses.wheel_version(item.source)
        if version is None:
            why = (
                "the version is unknown, because the requirement is not a wheel, and the "
                "package is not on the index"
            )
            unread.append(UncheckedPart(what=str(item), why=why, required=True))
        else:
            pins[item.package] = Pin(version=str(version), url=item.source, extras=item.extras)
    return pins, tuple(unread)
