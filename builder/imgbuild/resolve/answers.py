"""Answers a request of `imgbuild resolve` with a `Target`, its packages and a matrix row.

For each architecture, a `ResolveAnswer` contains the packages, or the reason why there is no
solution. Only the cache is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from imgbuild.audit.binaries import gpus
from imgbuild.audit.judge import CHECKS
from imgbuild.cache.context import Context
from imgbuild.cache.store import Store
from imgbuild.errors import NoSolution
from imgbuild.index.remote_wheel import FACT
from imgbuild.learn.loop import READABLE_CHECKS
from imgbuild.lock.resolution import Resolution
from imgbuild.matrix import constraints
from imgbuild.matrix.constraints import Constraint
from imgbuild.matrix.model import Base, DebianBase, Matrix, PackageIndex, Target
from imgbuild.matrix.project_paths import Project
from imgbuild.report import ConflictRelation, Report, Severity
from imgbuild.resolve import (
    conflict,
    cutoff,
    first_solve,
    gaps,
    preferences,
    python_support,
    resolve_request,
    search,
    suggest,
)
from imgbuild.resolve.first_matrix import target_lines
from imgbuild.resolve.first_solve import ArchQuery, LearnedMemory
from imgbuild.resolve.gaps import OldVersion
from imgbuild.resolve.locked import LockedTarget
from imgbuild.resolve.reasons import requirement_links, version_reasons
from imgbuild.resolve.resolve_request import ResolveRequest
from imgbuild.solve import sdist_wheel, standalone
from imgbuild.values import Arch
from imgbuild.wheel.tags import WheelTags


class ChosenVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A package, its version and the reasons for the version, strongest first."""

    package: str
    version: str
    why: tuple[str, ...]


class NoAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A refusal of a request on one architecture, with reasons and suggestions.

    `outdated` lists the packages that are available only in versions more than a year older than
    the other packages.
    """

    message: str
    reasons: tuple[str, ...]
    nearest: tuple[str, ...]
    hint: str | None
    outdated: tuple[str, ...] = ()


class ArchOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The packages for one architecture, or the reason why there is no solution.

    `warnings` come from the audit, or list packages that are far behind their newest version.
    """

    packages: tuple[ChosenVersion, ...] = ()
    warnings: tuple[str, ...] = ()
    refused: NoAnswer | None = None


class ResolveAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a request on all its architectures.

    `target` and `row` are set if at least one architecture has a solution. If locked targets
    already satisfy the request, they are in `locked`, and `arch` is empty. `driver` is the oldest
    NVIDIA driver for the target's CUDA release, or "" if unknown. `indexes` maps names in `row` to
    indexes in the user's files. `checks` are the checks of the audit that the packages passed, and
    `unchecked` those that require whole wheels.
    """

    name: str
    python: str
    arch: dict[Arch, ArchOutcome]
    requested: tuple[str, ...] = ()
    locked: tuple[LockedTarget, ...] = ()
    driver: str = ""
    target: Target | None = None
    row: tuple[str, ...] = ()
    indexes: Mapping[str, PackageIndex] = {}
    checks: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()


def answer_from_locks(
    request: ResolveRequest, matrix: Matrix, locked: tuple[LockedTarget, ...]
) -> ResolveAnswer:
    """Return the result for a request that the targets `locked` satisfy."""
    python = matrix.bases[resolve_request.requested_base(request, matrix)].python
    return ResolveAnswer(name="", python=python, arch={}, requested=request.packages, locked=locked)


def answer_request(
    request: ResolveRequest,
    project: Project,
    matrix: Matrix,
    learned: Sequence[Constraint],
    context: Context,
) -> ResolveAnswer:
    """Resolve a request on each architecture, with the constraints `learned` from locks.

    If the request has no `as_of`, it is derived from the pins. If the files uploaded before that
    day contain no solution, all files are considered. Raises InputError if the request contradicts
    the matrix, and FetchFailed if an index does not respond.
    """
    request = resolve_request.applicable_request(request, matrix)
    resolve_request.check_request(request, matrix)
    locked = frozenset(project.locked_targets())
    if request.as_of is not None:
        return answer_dated_request(request, matrix, learned, context, locked)
    today = resolve_request.today_utc()
    as_of = cutoff.derive_cutoff(request, project, matrix, context)
    dated = msgspec.structs.replace(request, as_of=as_of)
    dated_answer = answer_dated_request(
        dated, matrix, learned, context, locked, suggestions=as_of == today
    )
    refusals = [each.refused for each in dated_answer.arch.values() if each.refused is not None]
    if as_of == today or all(refused.outdated for refused in refusals):
        return dated_answer
    if any(refused.outdated for refused in refusals):
        return answer_dated_request(dated, matrix, learned, context, locked)
    context.reporter.info(
        f"found no solution among files uploaded before {as_of}, trying later files"
    )
    return answer_dated_request(
        msgspec.structs.replace(request, as_of=today), matrix, learned, context, locked
    )


def answer_dated_request(
    request: ResolveRequest,
    matrix: Matrix,
    learned: Sequence[Constraint],
    context: Context,
    locked: frozenset[str] | None = None,
    *,
    suggestions: bool = True,
) -> ResolveAnswer:
    """Return the result of a request whose `as_of` is set.

    `locked` and `suggestions` are those of `ArchQuery`.
    """
    memory = LearnedMemory(learned)
    while True:
        previous = memory.learned_constraints
        each = resolve_on_arches(request, matrix, memory, context, locked, suggestions=suggestions)
        # Constraints learned on one architecture apply to those that were resolved before it.
        if memory.learned_constraints == previous or not any(
            constraints.violated_constraints(memory.learned_constraints, resolution.versions)
            for resolution in each.found.values()
        ):
            break
    python = matrix.bases[resolve_request.requested_base(request, matrix)].python
    if each.target is None:
        return ResolveAnswer(
            name=request.name or "", python=python, arch=each.outcomes, requested=request.packages
        )
    target = pinned_target(request, each.target, each.found, each.outcomes)
    name = resolve_request.row_name(request, matrix, target.cuda, target.pins)
    return ResolveAnswer(
        name=name,
        python=python,
        arch=each.outcomes,
        requested=request.packages,
        driver=gpus.load_drivers().oldest_driver(target.cuda),
        target=target,
        row=tuple(target_lines(name, target)),
        indexes=request.index_rows,
        checks=READABLE_CHECKS,
        unchecked=tuple(check for check in CHECKS if check not in READABLE_CHECKS),
    )


class ArchOutcomes(msgspec.Struct, frozen=True, kw_only=True):
    """The result for each architecture. `target` is from the first architecture with a solution."""

    target: Target | None
    found: dict[Arch, Resolution]
    outcomes: dict[Arch, ArchOutcome]


def resolve_on_arches(
    request: ResolveRequest,
    matrix: Matrix,
    memory: LearnedMemory,
    context: Context,
    locked: frozenset[str] | None,
    *,
    suggestions: bool,
) -> ArchOutcomes:
    """Resolve each architecture in turn, and add learned constraints to `memory`."""
    base = matrix.bases[resolve_request.requested_base(request, matrix)]
    target: Target | None = None
    resolutions: dict[Arch, Resolution] = {}
    outcomes: dict[Arch, ArchOutcome] = {}
    for arch in request.arches:
        try:
            markers = WheelTags(python=base.python, glibc=base.glibc, arch=arch).markers
            query = ArchQuery(
                request=request.restrict_to(markers),
                matrix=matrix,
                arch=arch,
                memory=memory,
                context=context,
                target=target,
                suggestions=suggestions,
                locked=locked,
            )
            python_support.refuse_unsupported_python(query)
            if isinstance(base, DebianBase) and base.standalone_python is not None:
                # Fetched first: solving takes minutes, and its result needs the archive.
                standalone.fetch_archive(base.standalone_python, arch, context)
            solved = search.find_target(query)
        except NoSolution as error:
            outcomes[arch] = ArchOutcome(refused=convert_error(error))
            continue
        resolution, first = solved.resolution, solved.first
        old = () if request.allow_old else first_solve.outdated_packages(first, resolution.versions)
        if old:
            outcomes[arch] = ArchOutcome(refused=old_version_refusal(query, old))
            continue
        target, resolutions[arch] = target or solved.target, resolution
        outcomes[arch] = ArchOutcome(
            packages=chosen_versions(
                request, target, resolution, arch, base, memory.learned_constraints, context.store
            ),
            warnings=(
                *map(conflict.window_words, memory.windows),
                *audit_warnings(solved.report),
                *first_solve.old_version_warnings(first, resolution.versions),
            ),
        )
    return ArchOutcomes(target=target, found=resolutions, outcomes=outcomes)


def audit_warnings(report: Report) -> tuple[str, ...]:
    """Return the warnings of an audit, except those about version windows.

    The quick audit reports version windows.
    """
    return tuple(
        f"{finding.message} ({finding.where})"
        for finding in report.findings
        if finding.severity is Severity.WARNING
        and not (
            finding.evidence
            and finding.evidence.relation is ConflictRelation.WINDOW
            and finding.evidence.spec
        )
    )


def chosen_versions(
    request: ResolveRequest,
    target: Target,
    resolution: Resolution,
    arch: Arch,
    base: Base,
    learned: Sequence[Constraint],
    store: Store,
) -> tuple[ChosenVersion, ...]:
    """Return the packages of a resolution, with the reasons for their versions."""
    versions = resolution.versions
    metadata = {wheel.package: store.fact(FACT, wheel.sha256) or b"" for wheel in resolution.wheels}
    for built in resolution.built:
        path = store.file(built.wheel.sha256)
        metadata[built.package] = sdist_wheel.wheel_metadata(path) if path is not None else b""
    origins = {requested.package: str(requested) for requested in request.requests}
    for package in target.pins:
        origins.setdefault(package, f"the version of {package} for CUDA {target.cuda}")
    for package, required in target.requires.items():
        origins.setdefault(package, required.reason)
    markers = WheelTags(python=base.python, glibc=base.glibc, arch=arch).markers
    evident = [entry for entry in learned if entry.check not in (gaps.AGE, preferences.EXTRA_KIND)]
    reasons = version_reasons(versions, origins, requirement_links(metadata, markers), evident)
    for entry in learned:
        if entry.check == preferences.EXTRA_KIND and entry.applies_to(versions):
            reasons[entry.package] += (preferences.range_sentence(entry),)
    return tuple(
        ChosenVersion(package=package, version=versions[package], why=reasons[package])
        for package in sorted(versions)
    )


def pinned_target(
    request: ResolveRequest,
    target: Target,
    resolutions: Mapping[Arch, Resolution],
    outcomes: Mapping[Arch, ArchOutcome],
) -> Target:
    """Return `target` with pins.

    A requested package is pinned if it has the same version on all architectures.
    """
    pins = dict(target.pins)
    requires = dict(target.requires)
    for requested in request.requests:
        versions = {each.versions.get(requested.package, "") for each in resolutions.values()}
        if len(versions) == 1 and "" not in versions:
            pins[requested.package] = versions.pop()
            requires.pop(requested.package, None)
    exclude = {
        arch: "; ".join(outcome.refused.reasons) or outcome.refused.message
        for arch, outcome in outcomes.items()
        if outcome.refused is not None
    }
    return msgspec.structs.replace(
        target,
        arch=tuple(arch for arch in outcomes if arch in resolutions),
        pins=pins,
        requires=requires,
        exclude=exclude,
    )


def convert_error(error: NoSolution) -> NoAnswer:
    """Convert an error of the resolver to a refusal."""
    return NoAnswer(
        message=error.message, reasons=error.reasons, nearest=error.nearest, hint=error.hint
    )


def old_version_refusal(query: ArchQuery, old: Sequence[OldVersion]) -> NoAnswer:
    """Return a refusal because the packages `old` are far behind the other packages."""
    names = tuple(entry.package for entry in old)
    return NoAnswer(
        message=f"no solution on {query.arch} without outdated versions of {', '.join(names)}",
        reasons=tuple(reason for entry in old for reason in entry.reasons),
        nearest=suggest.nearest_targets(
            query.matrix, query.demands, query.cuda, query.arch, locked=query.locked
        ),
        hint="to accept versions that are over a year older than the others, pass --allow-old",
        outdated=names,
    )
