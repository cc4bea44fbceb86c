"""Explains why a target in a matrix has no solution, and suggests versions.

If the target extends a published one, the published packages cannot change.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from imgbuild.errors import ImgbuildError, NoSolution
from imgbuild.lock.published import PublishedTarget
from imgbuild.resolve import conflict, first_solve, resolve_request
from imgbuild.resolve.conflict import PackageFacts, RequirementConflict, VersionDemand
from imgbuild.resolve.first_solve import ArchQuery, LearnedMemory
from imgbuild.resolve.resolve_request import RequestedPackage
from imgbuild.resolve.suggest import QuickLook, SuggestionSearch
from imgbuild.solve.problem import SolveProblem
from imgbuild.values import Arch

TRIED_LIMIT = 24  # versions of a package that was requested with a range


def explain_error(error: NoSolution, problem: SolveProblem) -> NoSolution:
    """Add the shortest conflict and suggestions to `error`, if they can be found."""
    try:
        overlay = problem.overlay
        if overlay is None:
            return _target_error(error, problem)
        return _extension_error(error, problem, overlay.published)
    except ImgbuildError:
        return error  # an error in the explanation is not the reason for the failure


def _target_error(error: NoSolution, problem: SolveProblem) -> NoSolution:
    query = query_from_problem(problem)
    try:
        first_solve.refuse_if_conflicting(query, first_solve.available_facts(query))
    except NoSolution as better:
        if better.cuda is not None and problem.row is not None:
            better.hint = (
                f'for CUDA {better.cuda}, write `cuda: "{better.cuda}"` in {problem.name} of'
                " matrix.yaml"
            )
        return better
    return error


def query_from_problem(problem: SolveProblem) -> ArchQuery:
    """Convert a target of the matrix to the corresponding request."""
    requires = problem.matrix.requirements_of(problem.target)
    target = msgspec.structs.replace(problem.target, requires=requires)
    return ArchQuery(
        request=resolve_request.request_of_target(problem.name, target, problem.arch),
        matrix=problem.matrix,
        arch=problem.arch,
        memory=LearnedMemory(problem.known),
        context=problem.context,
    )


def _extension_error(
    error: NoSolution, problem: SolveProblem, base_target: PublishedTarget
) -> NoSolution:
    hint = (
        f"{base_target.name} cannot change: add a different version, extend a target that meets the"
        f" requirements, or write `like: {base_target.name}` instead of `extends:` to solve all"
        " versions again"
    )
    if problem.row is not None and problem.row.row.requirements:
        hint += (
            "; to choose a target with what was learned:"
            " mv matrix.yaml matrix.old.yaml && imgbuild init"
        )
    plain = NoSolution(error.message, reasons=error.reasons, hint=hint)
    arch, cuda = problem.arch, problem.target.cuda
    demands = _demands(base_target, problem)
    requests = tuple(RequestedPackage(package=item.package, spec=item.spec) for item in demands)
    query = query_from_problem(problem)
    request = msgspec.structs.replace(query.request, requests=requests, row="")
    try:
        facts = first_solve.available_facts(msgspec.structs.replace(query, request=request))
        conflict = _conflict(facts, demands, cuda, base_target.name)
        added = _added_packages(conflict, base_target, arch) if conflict is not None else []
        if conflict is None or not added:  # no conflict with a published package
            return plain
        retained = tuple(base_target.lock.arch[arch].versions)
        # According to METADATA: comparing code with all published packages would be a whole audit.
        suggestions = SuggestionSearch(facts, demands, conflict, lambda _: QuickLook(), retained)
        near = suggestions.find_suggestions(cuda)
    except ImgbuildError:
        return plain
    message = f"{' and '.join(added)} cannot be added to {base_target.name}"
    return NoSolution(message, reasons=conflict.reasons, nearest=near, hint=hint)


def _demands(base_target: PublishedTarget, problem: SolveProblem) -> tuple[VersionDemand, ...]:
    versions = base_target.lock.arch[problem.arch].versions
    target = problem.target
    specs = {package: f"=={pin}" for package, pin in target.pins.items()}
    specs |= {package: each.spec for package, each in target.requires.items()}
    return (
        *(
            conflict.user_demand(
                package, f"=={version}", f"{base_target.name} has {package} {version}"
            )
            for package, version in versions.items()
        ),
        *(
            conflict.user_demand(package, spec)
            for package, spec in specs.items()
            if package not in versions
        ),
    )


def _conflict(
    facts: PackageFacts, demands: Sequence[VersionDemand], cuda: str, row: str
) -> RequirementConflict | None:
    """Return the first contradiction, or one that follows from every version in a range."""
    plain = conflict.find_conflict(facts, demands, cuda, row=row)
    if plain is not None:
        return plain
    for demand in demands:
        fitting = facts.allowed_versions(demand.package, demand.spec) or ()
        if not demand.words.startswith("you require") or len(fitting) < 2:
            continue
        tried = fitting[:TRIED_LIMIT]
        facts.read_ahead(demand.package, tried)
        words = f"{demand.words}, the newest of which is {tried[0]}"
        exact = [conflict.user_demand(demand.package, f"=={version}", words) for version in tried]
        conflicts = [
            conflict.find_conflict(
                facts, [each if item == demand else item for item in demands], cuda, row=row
            )
            for each in exact
        ]
        if conflicts[0] is not None and all(conflicts):
            none = f"and none of the {len(tried)} versions of {demand.package} is compatible"
            return msgspec.structs.replace(conflicts[0], reasons=(*conflicts[0].reasons, none))
    return None


def _added_packages(
    conflict: RequirementConflict, base_target: PublishedTarget, arch: Arch
) -> list[str]:
    versions = base_target.lock.arch[arch].versions
    return [package for package in conflict.requests if package not in versions]
