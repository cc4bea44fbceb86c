"""Resolves a target with a newer version of a package, and audits the result if facts are cached.

First, all other pins are kept. If this has no solution, other pins can change to later versions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from imgbuild.audit.packages.library import Library
from imgbuild.cache.context import Context
from imgbuild.errors import FetchFailed, ImgbuildError, NoSolution
from imgbuild.index.remote_wheel import LOCKED_PREFIX, BlockCache
from imgbuild.learn.boundaries import ReleaseCatalogue
from imgbuild.learn.loop import audit_resolution, audit_terms
from imgbuild.lock.resolution import Resolution, installed_wheels
from imgbuild.matrix.constraints import Constraint
from imgbuild.matrix.extension import Extensions
from imgbuild.matrix.model import Matrix, RequiredPackage
from imgbuild.report import Severity
from imgbuild.resolve.resolve_request import today_utc
from imgbuild.solve import solve
from imgbuild.solve.problem import SolveProblem
from imgbuild.solve.solve import PreparedTarget
from imgbuild.system.amounts import format_count
from imgbuild.values import Arch

REASON = "a newer version, tried by imgbuild outdated"
SHOWN_REASONS = 4  # reasons and findings


class SolvedVersion(msgspec.Struct, frozen=True, kw_only=True):
    """The solution with a newer version, or the reasons why no solution exists.

    `changes` maps other changed packages to texts such as "2.6.0 -> 2.9.1". `audit` describes
    whether the set was audited. `findings` are the errors that the audit found.
    """

    package: str
    version: str
    changes: Mapping[str, str] = {}
    reasons: tuple[str, ...] = ()
    audit: str = ""
    findings: tuple[str, ...] = ()


class SolveAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """A matrix in which target `name` has the version to try."""

    matrix: Matrix
    name: str
    arch: Arch


def target_attempts(
    matrix: Matrix, name: str, arch: Arch, package: str, version: str
) -> list[SolveAttempt]:
    """Return two attempts with a newer version. The second attempt also allows newer other pins."""
    target = matrix.targets[name]
    held = msgspec.structs.replace(
        target, pins={**target.pins, package: version}, as_of=max(today_utc(), target.as_of)
    )
    later = {
        each: RequiredPackage(spec=f">={pin}", reason=REASON)
        for each, pin in target.pins.items()
        if each != package
    }
    free = msgspec.structs.replace(
        held, pins={package: version}, requires={**target.requires, **later}
    )
    free = msgspec.structs.replace(
        free, requires={key: each for key, each in free.requires.items() if key != package}
    )
    return [
        SolveAttempt(
            matrix=msgspec.structs.replace(matrix, targets={**matrix.targets, name: each}),
            name=name,
            arch=arch,
        )
        for each in (held, free)
    ]


def edit_for_row(name: str, package: str, version: str) -> Callable[[Extensions], Extensions]:
    """Return a function that sets `version` of `package` in a row of a project's matrix.

    The version replaces those in the project's files and in the row.
    """

    def _edit_extensions(value: Extensions) -> Extensions:
        row = value.targets[name]
        wanted = RequiredPackage(spec=f"=={version}", reason=REASON)
        pins = {key: each for key, each in row.pins.items() if key != package}
        requires = {key: each for key, each in row.requires.items() if key != package}
        if len(pins) + len(requires) < len(row.pins) + len(row.requires):
            requires[package] = wanted
        row = msgspec.structs.replace(
            row,
            pins=pins,
            requires=requires,
            relax={**row.relax, package: wanted},
            as_of=max(today_utc(), row.as_of or today_utc()),
        )
        return msgspec.structs.replace(value, targets={**value.targets, name: row})

    return _edit_extensions


def solve_first(
    attempts: Iterable[SolveAttempt],
    package: str,
    version: str,
    before: Mapping[str, str],
    constraints: tuple[Constraint, ...],
    context: Context,
) -> SolvedVersion:
    """Resolve `attempts` until one has a solution.

    `before` maps packages to the versions with which the result is compared.
    """
    reasons: tuple[str, ...] = ()
    for attempt in attempts:
        problem = SolveProblem(attempt.matrix, attempt.name, attempt.arch, context, constraints)
        try:
            with solve.open_target(problem) as prepared:
                chosen = solve.choose_packages(prepared, constraints)
                resolution = solve.lock_answer(prepared, chosen)
                audit, findings = _audit_solution(prepared, resolution, constraints, context)
        except NoSolution as error:
            reasons = reasons or (error.reasons or (error.message,))[:SHOWN_REASONS]
            continue
        except ImgbuildError as error:
            reasons = reasons or (error.message,)
            continue
        return SolvedVersion(
            package=package,
            version=version,
            changes=_changes(package, before, resolution.versions),
            audit=audit,
            findings=findings,
        )
    return SolvedVersion(package=package, version=version, reasons=reasons)


def _changes(package: str, before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    return {
        name: f"{version} -> {after[name]}"
        for name, version in sorted(before.items())
        if name != package and name in after and after[name] != version
    }


def _audit_solution(
    prepared: PreparedTarget,
    resolution: Resolution,
    constraints: tuple[Constraint, ...],
    context: Context,
) -> tuple[str, tuple[str, ...]]:
    lacking = _packages_without_facts(resolution, context)
    if lacking:
        number = format_count(len(lacking), "package")
        return (
            f"not audited, because the facts of {number} are not in the cache: "
            f"{', '.join(lacking[:SHOWN_REASONS])}"
        ), ()
    with Library(context.store, BlockCache(context.http)) as library:
        release_catalogue = ReleaseCatalogue(prepared.catalogue, library, context.store)
        published = prepared.published.versions if prepared.published is not None else {}
        terms = audit_terms(prepared, resolution, constraints)
        report = audit_resolution(resolution, release_catalogue, terms, published=published)
    errors = [each.message for each in report.findings if each.severity is Severity.ERROR]
    return format_count(len(errors), "error") if errors else "no error", tuple(
        errors[:SHOWN_REASONS]
    )


def _packages_without_facts(resolution: Resolution, context: Context) -> list[str]:
    library = Library(context.store, ahead=False)
    lacking = []
    for wheel in installed_wheels(resolution):
        try:
            is_stored = bool(library.wheel(wheel, f"{LOCKED_PREFIX}{wheel.sha256}").index.files)
        except FetchFailed:
            is_stored = False
        lacking += [] if is_stored else [wheel.package]
    return lacking
