"""Converts the requirements in a project's files to requests of `imgbuild resolve`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from imgbuild.errors import InputError
from imgbuild.matrix.model import Matrix
from imgbuild.project.model import Declarations, FilePlace
from imgbuild.resolve.choose import accepts_python
from imgbuild.resolve.demands import PackageDemand, package_demands
from imgbuild.resolve.resolve_request import RequestedPackage, ResolveRequest, requested_base
from imgbuild.values import Arch
from imgbuild.wheel.tags import WheelTags


class SplitDemands(msgspec.Struct, frozen=True, kw_only=True):
    """The demands in files, divided into packages from an index, bounds, and packages by URL.

    If only a lock file lists packages, `named` contains all of them.
    """

    named: tuple[PackageDemand, ...]
    bounds: tuple[PackageDemand, ...]
    addressed: tuple[PackageDemand, ...]


def split_demands(declared: Declarations, markers: Mapping[str, str]) -> SplitDemands:
    """Return the demands of `declared` on a machine with `markers` (PEP 508)."""
    joined = package_demands(declared, markers)
    direct = {
        item.package
        for item in declared.requirements
        if item.kind == "requirement" and not item.locked
    } or {item.package for item in joined if item.installed}
    plain = [item for item in joined if not item.source]
    return SplitDemands(
        named=tuple(item for item in plain if item.package in direct),
        bounds=tuple(item for item in plain if item.package not in direct and item.spec),
        addressed=tuple(item for item in joined if item.source),
    )


def python_for_request(
    declared: Declarations, request: ResolveRequest, matrix: Matrix
) -> str | None:
    """Return the requested Python, or else the first base's Python that the files accept.

    Raises InputError if the files accept none.
    """
    if request.python is not None or request.base is not None or not declared.python:
        return request.python
    usual = matrix.bases[requested_base(request, matrix)].python
    offered = dict.fromkeys((usual, *(base.python for base in matrix.bases.values())))
    accepted = [python for python in offered if accepts_python(declared, python)]
    if accepted:
        return accepted[0]
    specs = ", ".join(f"{item.spec} ({item.place})" for item in declared.python)
    message = f"the project requires Python {specs}, but the bases have {', '.join(offered)}"
    raise InputError(message, hint="to resolve for a different Python anyway, pass --python X.Y")


def requested_packages(
    declared: Declarations, request: ResolveRequest, matrix: Matrix
) -> tuple[RequestedPackage, ...]:
    """Return the packages in the files.

    A package that only some of the architectures need has a marker. Raises InputError if the
    versions of a package differ between architectures.
    """
    base = matrix.bases[requested_base(request, matrix)]
    machines: dict[tuple[str, str, tuple[str, ...]], list[Arch]] = {}
    places: dict[str, tuple[FilePlace, ...]] = {}
    for arch in request.arches:
        markers = WheelTags(python=base.python, glibc=base.glibc, arch=arch).markers
        for item in split_demands(declared, markers).named:
            machines.setdefault((item.package, item.spec, item.extras), []).append(arch)
            places.setdefault(item.package, item.places)
    requests: dict[str, RequestedPackage] = {}
    for (package, spec, extras), arches in machines.items():
        if package in requests:
            message = (
                f"the project requires another version of {package} on {', '.join(arches)}"
                " than on the other architectures"
            )
            raise InputError(message, hint="resolve for each architecture separately with --arch")
        requests[package] = RequestedPackage(
            package=package,
            spec=spec,
            extras=extras,
            marker="" if len(arches) == len(request.arches) else _arch_marker(arches),
            places=places[package],
        )
    return tuple(requests.values())


def _arch_marker(arches: Iterable[Arch]) -> str:
    names = {Arch.X86_64: "x86_64", Arch.ARM64: "aarch64"}
    return " or ".join(f"platform_machine == '{names[arch]}'" for arch in arches)


def combine_requests(
    named: Sequence[RequestedPackage], of_files: Sequence[RequestedPackage]
) -> tuple[RequestedPackage, ...]:
    """Combine the packages on the command line with those in files, and their bounds.

    An installed version is preserved. If a file excludes the version, the resolver refuses it.
    """
    requests = {item.package: item for item in named}
    for item in of_files:
        first = requests.get(item.package)
        if first is None:
            requests[item.package] = item
            continue
        specs = [each for each in (first.spec, item.spec) if each]
        requests[item.package] = msgspec.structs.replace(
            first,
            spec=first.spec if first.have else ",".join(dict.fromkeys(specs)),
            extras=tuple(sorted({*first.extras, *item.extras})),
            places=item.places,
        )
    return tuple(requests.values())
