"""Tries versions for `resolve` until an audit has no errors.

Solutions with newer versions, and solutions within the version ranges from extras, are preferred.
"""

# A separate module: an algorithm.
from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from packaging.requirements import Requirement
from packaging.version import Version

from imgbuild.cache.context import Context
from imgbuild.errors import NoSolution
from imgbuild.index import cuda_releases
from imgbuild.learn.loop import AuditedResolution, resolve_audited
from imgbuild.lock.resolution import Resolution
from imgbuild.matrix.flashinfer import FIRST_WITH_NVCC
from imgbuild.matrix.model import Flashinfer, Matrix, RequiredPackage, Target
from imgbuild.report import Report
from imgbuild.resolve import first_solve, gaps, resolve_request
from imgbuild.resolve.conflict import PackageFacts
from imgbuild.resolve.first_solve import ArchQuery, FirstSolve, add_target
from imgbuild.resolve.quick_audit import QuickAudit, audit_requested
from imgbuild.resolve.resolve_request import RequestedPackage, ResolveRequest
from imgbuild.solve.torch import TORCH, TorchBuild
from imgbuild.system.syntax import marker_applies
from imgbuild.values import normalize_package

REQUEST_REASON = "requested with imgbuild resolve"
FLASHINFER = "flashinfer-python"
ROUNDS = 4  # of versions whose extras require something else


class SolvedTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A target that satisfies the request, with its packages and their audit."""

    target: Target
    resolution: Resolution
    report: Report
    first: FirstSolve


def find_target(query: ArchQuery) -> SolvedTarget:
    """Return a target that satisfies the request.

    Package sets within the version ranges from extras are tried first. Raises NoSolution if all
    possibilities fail.
    """
    while True:
        try:
            solved = _find_newer(query)
        except NoSolution:
            if not query.memory.remove_last_preference():
                raise
            continue
        old = not query.request.allow_old and first_solve.outdated_packages(
            solved.first, solved.resolution.versions
        )
        if not old or not query.memory.remove_last_preference():
            return solved


def _find_newer(query: ArchQuery) -> SolvedTarget:
    """Try newer versions first if requested packages are months older than necessary."""
    try:
        return solve_with(query, floors=not query.request.allow_old)
    except NoSolution:
        if not query.memory.drop_check(gaps.AGE):
            raise
    return solve_with(query, floors=False)


def solve_with(query: ArchQuery, *, floors: bool) -> SolvedTarget:
    """Find a target as `find_target` does.

    With `floors`, lower bounds exclude old versions of requested packages. If learned constraints
    require another torch, the search starts again.
    """
    request, matrix, arch, memory = query.request, query.matrix, query.arch, query.memory
    base = resolve_request.requested_base(request, matrix)
    failed: NoSolution | None = None
    tried: list[TorchBuild | None] = []
    while True:
        with query.context.reporter.step(f"solving for {arch} (first pass)"):
            first = first_solve.solve_first(query)
        if failed is not None and first.torch in tried:
            raise failed
        if memory.add_seen(look_at_code(request, first, query.context)) or memory.add_preferences(
            first, first.versions
        ):
            continue
        previous = memory.learned_constraints
        if floors and memory.add_learned(first_solve.floor_constraints(first)) != previous:
            continue
        target = query.target or target_from_request(request, matrix, base, first)
        try:
            target, done = resolve_with_extras(query, target, first)
        except NoSolution as error:
            failed = error
            tried.append(first.torch)
        else:
            if memory.add_preferences(first, done.resolutions[arch].versions):
                continue
            return SolvedTarget(
                target=target,
                resolution=done.resolutions[arch],
                report=done.reports[arch],
                first=first,
            )


def look_at_code(request: ResolveRequest, first: FirstSolve, context: Context) -> QuickAudit:
    """Return the constraints that the code of the requested packages imposes on each other."""
    named = [requested.package for requested in request.requests if requested.package != TORCH]
    versions = {name: first.versions[name] for name in named}
    pinned = [requested.package for requested in request.requests if requested.pin is not None]
    with context.reporter.step(f"quick audit of {', '.join(named)}"):
        return audit_requested(first.facts.catalogue, versions, pinned, context)


def target_from_request(
    request: ResolveRequest, matrix: Matrix, base: str, first: FirstSolve
) -> Target:
    """Return the target of a request, with the torch and CUDA release of the first solve."""
    pins = {
        requested.package: requested.pin
        for requested in request.requests
        if requested.pin is not None
    }
    if first.torch is not None:
        pins.setdefault(TORCH, str(first.torch.version))
    requires = {
        requested.package: RequiredPackage(spec=requested.spec, reason=REQUEST_REASON)
        for requested in request.requests
        if requested.package not in pins
    }
    return Target(
        summary=f"{', '.join(request.packages)} for CUDA {first.cuda}",
        base=base,
        cuda=first.cuda,
        arch=request.arches,
        as_of=request.as_of or resolve_request.today_utc(),
        pins=pins,
        requires=requires,
        indexes=dict(request.indexes),
        flashinfer=flashinfer_mode(matrix, request, first.cuda, first.versions),
    )


def resolve_with_extras(
    query: ArchQuery, target: Target, first: FirstSolve
) -> tuple[Target, AuditedResolution]:
    """Return `target` with the requirements of the requested extras, and the resolved packages.

    The search is repeated if learned constraints lead to other versions, because other versions may
    have extras with other requirements.
    """
    request, matrix, arch, memory = query.request, query.matrix, query.arch, query.memory
    name = resolve_request.row_name(request, matrix, target.cuda, first.versions)
    versions = first.versions
    for _ in range(ROUNDS):
        whole = add_extra_requirements(query, target, first, versions)
        extended = add_target(matrix, name, msgspec.structs.replace(whole, arch=(arch,)))
        done = resolve_audited(
            extended, name, [arch], query.context, memory.learned_constraints, memory.add_learned
        )
        versions = done.resolutions[arch].versions
        if add_extra_requirements(query, target, first, versions) == whole:
            return whole, done
    message = (
        f"no package set satisfies the requirements of the extras of {', '.join(request.packages)}"
    )
    raise NoSolution(message, hint="request exact versions")


def add_extra_requirements(
    query: ArchQuery, target: Target, first: FirstSolve, versions: Mapping[str, str]
) -> Target:
    """Return `target` with the requirements of the requested extras at `versions`."""
    required = _extra_requirements(query.request.requests, versions, first.facts)
    more = {package: each for package, each in required.items() if package not in target.pins}
    return msgspec.structs.replace(target, requires={**more, **target.requires})


def flashinfer_mode(
    matrix: Matrix, request: ResolveRequest, cuda: str, versions: Mapping[str, str]
) -> Flashinfer:
    """Return the mode of FlashInfer that the index and the CUDA release allow."""
    if FLASHINFER not in versions:
        return Flashinfer(mode="off", reason="no package requires FlashInfer")
    index = request.indexes.get(FLASHINFER, matrix.default_index)
    if index != matrix.default_index:
        return Flashinfer(mode="prebuilt", reason=f"the index {index} has precompiled kernels")
    if int(cuda.split(".", maxsplit=1)[0]) < FIRST_WITH_NVCC:
        reason = (
            f"kernels cannot be compiled, because no index has a wheel with nvcc for CUDA {cuda}"
        )
        return Flashinfer(mode="off", reason=reason)
    return Flashinfer(
        mode="jit", reason="its kernels are compiled at first use with nvcc from a wheel"
    )


def _extra_requirements(
    requests: Iterable[RequestedPackage], versions: Mapping[str, str], facts: PackageFacts
) -> dict[str, RequiredPackage]:
    """Map each package that requested extras require to its requirement.

    Nested extras are included. Packages that are requested directly are omitted.
    """
    markers = facts.catalogue.rules.tags.markers
    by_package = {requested.package: requested for requested in requests}
    pending = [(package, extra) for package, each in by_package.items() for extra in each.extras]
    seen: set[tuple[str, str]] = set()
    specs: dict[str, dict[str, None]] = {}
    reasons: dict[str, str] = {}
    while pending:
        package, extra = pending.pop(0)
        if (package, extra) in seen or package not in versions:
            continue
        seen.add((package, extra))
        data = facts.metadata(package, Version(versions[package])) or b""
        for requirement in _extra_only_requirements(data, extra, markers):
            other = normalize_package(requirement.name)
            pending += [(other, normalize_package(each)) for each in requirement.extras]
            if other not in by_package:
                specs.setdefault(other, {}).update(dict.fromkeys(map(str, requirement.specifier)))
                reasons.setdefault(other, f"{package}[{extra}] requires it")
    return {
        package: RequiredPackage(spec=",".join(sorted(each)), reason=reasons[package])
        for package, each in sorted(specs.items())
    }


def _extra_only_requirements(
    metadata: bytes, extra: str, markers: Mapping[str, str]
) -> Iterable[Requirement]:
    return (
        requirement
        for requirement in cuda_releases.parse_requirements(metadata)
        if requirement.marker is not None
        and not marker_applies(requirement.marker, markers)
        and marker_applies(requirement.marker, markers, [extra])
    )
