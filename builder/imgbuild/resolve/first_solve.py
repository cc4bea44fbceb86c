"""Runs the first solve of a request, which determines torch and the CUDA release.

uv solves without limiting CUDA packages to one release. It may use only builds of torch for the
requested CUDA release, or for any release if none is requested.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
from packaging.version import Version

from imgbuild.cache.context import Context
from imgbuild.errors import InputError, NoSolution
from imgbuild.index.candidates import same_version
from imgbuild.index.catalogue import FileCatalogue
from imgbuild.index.pages import IndexFile
from imgbuild.index.remote_wheel import read_wheel_metadata
from imgbuild.matrix import constraints
from imgbuild.matrix.constraints import Constraint
from imgbuild.matrix.model import Flashinfer, Matrix, Target
from imgbuild.resolve import (
    causes,
    conflict,
    gaps,
    preferences,
    quick_audit,
    resolve_request,
    suggest,
)
from imgbuild.resolve.conflict import PackageFacts, RequirementConflict, VersionDemand
from imgbuild.resolve.gaps import OldVersion, ReleaseGaps
from imgbuild.resolve.preferences import PackagePair
from imgbuild.resolve.quick_audit import QuickAudit
from imgbuild.resolve.resolve_request import ResolveRequest
from imgbuild.solve import freshness, refusal, solve, torch, uv
from imgbuild.solve.build_root import host_root
from imgbuild.solve.problem import SolveProblem
from imgbuild.solve.sdists import host_arch
from imgbuild.solve.torch import TORCH, TorchBuild
from imgbuild.values import Arch


class LearnedMemory:
    """The constraints that are learned while a request is resolved.

    `learned_constraints` are the strongest constraints, which suffice for resolving. `seen`
    contains all constraints with their evidence and versions. `preferred` maps pairs of packages to
    version ranges that an extra declares. These ranges are dropped if no solution satisfies them.
    """

    def __init__(self, learned_constraints: Sequence[Constraint]) -> None:
        self._learned = tuple(learned_constraints)
        self.preferred: dict[PackagePair, tuple[Constraint, ...]] = {}
        self._unmet: set[PackagePair] = set()
        self.seen: tuple[Constraint, ...] = ()
        self.windows: tuple[Constraint, ...] = ()

    @property
    def learned_constraints(self) -> tuple[Constraint, ...]:
        """The learned constraints and the preferred ranges."""
        return (*self._learned, *itertools.chain(*self.preferred.values()))

    def add_learned(self, learned: Iterable[Constraint]) -> tuple[Constraint, ...]:
        """Add learned constraints, and return all known constraints."""
        self._learned = constraints.merge_constraints(self._learned, learned)
        return self.learned_constraints

    def drop_check(self, check: str) -> bool:
        """Remove the constraints of `check`, and return whether there were any."""
        before = self._learned
        self._learned = tuple(entry for entry in before if entry.check != check)
        return self._learned != before

    def add_preferences(self, first: FirstSolve, versions: Mapping[str, str]) -> bool:
        """Add the ranges from extras that `versions` violate, and return whether any is new."""
        specs = {demand.package: demand.spec for demand in first.demands}
        before = len(self.preferred)
        for pair in preferences.violated_pairs(first.facts, versions):
            if pair not in self.preferred and pair not in self._unmet:
                entries = preferences.pair_constraints(first.facts, pair, specs.get(pair[0], ""))
                self.preferred[pair] = entries
        return len(self.preferred) > before

    def remove_last_preference(self) -> bool:
        """Remove the range that was added last, and return whether there was one."""
        if not self.preferred:
            return False
        pair, _ = self.preferred.popitem()
        self._unmet.add(pair)
        return True

    def add_seen(self, seen: QuickAudit) -> bool:
        """Add the result of a quick audit, and return whether it contains a new constraint."""
        before = self.learned_constraints
        self.windows = seen.windows
        self.seen += tuple(entry for entry in seen.learned if entry not in self.seen)
        return self.add_learned(seen.learned) != before


class FirstSolve(msgspec.Struct, frozen=True, kw_only=True):
    """The result of uv's first solve. `torch` is None if the result does not contain torch."""

    chosen: tuple[uv.ChosenPackage, ...]
    facts: PackageFacts
    demands: tuple[VersionDemand, ...]
    torch: TorchBuild | None
    cuda: str

    @property
    def versions(self) -> dict[str, str]:
        """The version of each package."""
        return {item.package: item.version for item in self.chosen}


class ArchQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A request on one architecture.

    `target` is the result on another architecture, which the result on this architecture must
    match. Constraints that the search learns are added to `memory`. Without `suggestions`, an error
    has no versions of packages that would have a solution, because the search for them takes long.
    `locked` are the locked targets of the project, or None if unknown.
    """

    request: ResolveRequest
    matrix: Matrix
    arch: Arch
    memory: LearnedMemory
    context: Context
    target: Target | None = None
    suggestions: bool = True
    locked: frozenset[str] | None = None

    @property
    def cuda(self) -> str | None:
        """The CUDA release that was requested, or that the other architecture uses."""
        return self.request.cuda or (self.target.cuda if self.target is not None else None)

    @property
    def demands(self) -> tuple[VersionDemand, ...]:
        """The requests, and the torch version on the other architecture."""
        demands = [
            conflict.user_demand(
                requested.package, requested.spec, str(requested), extras=requested.extras
            )
            for requested in self.request.requests
        ]
        pin = self.target.pins.get(TORCH) if self.target is not None else None
        if pin is not None and not any(item.package == TORCH for item in demands):
            words = f"torch {pin} is the version on the other architecture"
            demands.append(conflict.user_demand(TORCH, f"=={pin}", words))
        return tuple(demands)


def solve_first(query: ArchQuery) -> FirstSolve:
    """Run the first solve of `query`.

    Raises NoSolution if no package set satisfies the query. Raises InputError if the CUDA release
    cannot be determined.
    """
    cuda, demands, memory = query.cuda, query.demands, query.memory
    facts = available_facts(query)
    refuse_if_conflicting(query, facts)
    pins = conflict.exact_requests(demands)
    named = {package: pin for package, pin in pins.items() if package != TORCH}
    if memory.add_seen(quick_audit.audit_requested(facts.catalogue, named, named, query.context)):
        facts = facts.replace_learned((*memory.seen, *memory.learned_constraints))
        refuse_if_conflicting(query, facts)
    chosen = _solve_query(query, facts)
    versions = {item.package: item.version for item in chosen}
    torch = next((b for b in facts.torches if str(b.version) == versions.get(TORCH)), None)
    cuda = cuda or (torch.cuda if torch is not None else None)
    if cuda is None:
        message = "cannot determine the CUDA release: the package set has no torch"
        raise InputError(message, hint="specify the release with --cuda")
    return FirstSolve(chosen=chosen, facts=facts, demands=demands, torch=torch, cuda=cuda)


def available_facts(query: ArchQuery) -> PackageFacts:
    """Return the facts about the files that `query` can use.

    Wheels of sdists are built on demand.
    """
    matrix, memory, context = query.matrix, query.memory, query.context
    name = query.request.name or "request"
    problem = SolveProblem(
        add_target(matrix, name, _provisional_target(query)), name, query.arch, context
    )
    plain = solve.wheel_catalogue(problem, problem.base.python)
    gaps = ReleaseGaps(plain.indexes, plain.rules.tags, matrix.sdists)
    hide = _hide_before_gap(gaps, plain.rules.pins)
    root = host_root(problem.base, matrix.image.user, host_arch(), context)
    sdist_wheels = solve.create_sdist_wheels(problem, plain, (), root)
    catalogue = solve.add_sdists(problem, plain, sdist_wheels, hide=hide)
    return catalogue_facts(catalogue, (*memory.seen, *memory.learned_constraints), context)


def catalogue_facts(
    catalogue: FileCatalogue, learned: Sequence[Constraint], context: Context
) -> PackageFacts:
    """Return the facts about the packages in `catalogue`, with METADATA of every usable torch."""

    def _read_metadata(file: IndexFile) -> bytes:
        return read_wheel_metadata(file, context.http, context.store)

    return PackageFacts(
        catalogue, _read_metadata, learned, torch.torch_builds(catalogue, _read_metadata)
    )


def add_target(matrix: Matrix, name: str, target: Target) -> Matrix:
    """Return `matrix` with an additional target."""
    return msgspec.structs.replace(matrix, targets={**matrix.targets, name: target})


def refuse_if_conflicting(query: ArchQuery, facts: PackageFacts) -> None:
    """Raise NoSolution, with suggestions, if the demands contradict each other."""
    request, demands, cuda = query.request, query.demands, query.cuda
    clash = conflict.find_conflict(facts, demands, cuda, row=request.row)
    if clash is None:
        return
    windows = _violated_windows(query, demands)
    places = {requested.package: requested.places for requested in request.requests}
    reasons = causes.all_reasons(facts, demands, clash, cuda, places, row=request.row)
    absent = causes.without_files(facts, demands)
    left = [demand for demand in demands if demand.package not in absent]
    others = clash if not absent else conflict.find_conflict(facts, left, cuda, row=request.row)
    near: tuple[str, ...] = ()
    other_cuda = None
    if others is not None and query.suggestions:
        # The search takes up to minutes. The error repeats the reasons, with its suggestions.
        lines = (f"no solution on {query.arch}", *(f"because {reason}" for reason in reasons))
        query.context.reporter.info("\n  ".join(lines))
        looked = _suggestion_search(query, facts, left, others, windows)
        without = f"without {' and '.join(absent)}: " if absent else ""
        with query.context.reporter.step("searching for versions that have a solution"):
            near = tuple(f"{without}{text}" for text in looked.find_suggestions(cuda))
        other_cuda = None if absent else looked.cuda
    suggested = suggest.nearest_targets(
        query.matrix, demands, cuda, query.arch, excluded=request.row, locked=query.locked
    )
    message = f"no solution on {query.arch}"
    raise NoSolution(
        message,
        reasons=(*reasons, *map(conflict.window_words, windows)),
        nearest=(*near, *suggested),
        cuda=other_cuda,
        hint=None if request.row else _audit_hint(left),
    )


def _violated_windows(query: ArchQuery, demands: Sequence[VersionDemand]) -> list[Constraint]:
    pins = conflict.exact_requests(demands)
    return [window for window in query.memory.windows if window.is_violated(pins)]


def _suggestion_search(
    query: ArchQuery,
    facts: PackageFacts,
    demands: Sequence[VersionDemand],
    clash: RequirementConflict,
    windows: Sequence[Constraint],
) -> suggest.SuggestionSearch:
    catalogue, context = facts.catalogue, query.context
    wide = quick_audit.widen_constraints(facts.learned, clash.requests, catalogue, context)
    retained = [requested.package for requested in query.request.requests if requested.have]

    def _check_versions(versions: Mapping[str, str]) -> suggest.QuickLook:
        named = {package: version for package, version in versions.items() if package != TORCH}
        seen = quick_audit.audit_requested(catalogue, named, (), context)
        return suggest.QuickLook(clashes=seen.clashes, learned=seen.learned, read=seen.read)

    return suggest.SuggestionSearch(
        facts.replace_learned((*wide, *windows)), demands, clash, _check_versions, retained
    )


def _suggestions_for_ranges(query: ArchQuery, facts: PackageFacts) -> tuple[str, ...]:
    """Return suggestions if the newest versions that the demands allow contradict each other."""
    demands = [_newest_version(facts, demand) for demand in query.demands]
    clash = conflict.find_conflict(facts, demands, query.cuda)
    if clash is None:
        return ()
    windows = _violated_windows(query, demands)
    return _suggestion_search(query, facts, demands, clash, windows).find_suggestions(query.cuda)


def _newest_version(facts: PackageFacts, demand: VersionDemand) -> VersionDemand:
    """Return a demand for the newest version that `demand` allows, if it is a range."""
    versions = facts.allowed_versions(demand.package, demand.spec) if demand.spec else None
    if not versions:
        return demand
    return conflict.user_demand(demand.package, f"=={versions[0]}", extras=demand.extras)


def _audit_hint(demands: Sequence[VersionDemand]) -> str | None:
    pins = conflict.exact_requests(demands)
    if len(pins) < 2 or len(pins) < len(demands):
        return None
    words = " ".join(f"{package}=={version}" for package, version in pins.items())
    return f"to find incompatible code in these packages, run: imgbuild audit {words}"


def _provisional_target(query: ArchQuery) -> Target:
    """Return a target from which URLs of indexes follow. An unknown CUDA release is "0.0"."""
    request, matrix, cuda = query.request, query.matrix, query.cuda
    return Target(
        summary="",
        base=resolve_request.requested_base(request, matrix),
        cuda=cuda or "0.0",
        arch=request.arches,
        as_of=request.as_of or resolve_request.today_utc(),
        pins=dict(conflict.exact_requests(query.demands)),
        indexes=dict(request.indexes),
        flashinfer=Flashinfer(mode="off", reason="not known yet"),
    )


def _solve_query(query: ArchQuery, facts: PackageFacts) -> tuple[uv.ChosenPackage, ...]:
    matrix, cuda, demands = query.matrix, query.cuda, query.demands
    specs = {demand.package: demand.spec for demand in demands}
    for package, want in matrix.requires.items():
        specs.setdefault(package, want.spec)
    fitting = [b.version for b in facts.torches if b.cuda is not None and cuda in (None, b.cuda)]
    torch_spec = (
        torch.matching_specifier(fitting, [b.version for b in facts.torches]) if fitting else "<0"
    )

    def _amend_metadata(package: str, version: Version) -> Sequence[str]:
        return constraints.added_requirements(facts.learned, package, str(version), specs)

    names = {
        demand.package: f"{demand.package}[{','.join(demand.extras)}]"
        for demand in demands
        if demand.extras
    }
    requirements = [f"{names.get(package, package)}{spec}" for package, spec in specs.items()]
    store = query.context.store
    try:
        bounds = uv.ResolverBounds(constraints=(f"{TORCH}{torch_spec}",))
        return uv.run_resolver(facts.catalogue, requirements, bounds, store, _amend_metadata)
    except uv.UnsolvableError as error:
        message = f"no package set satisfies the request on {query.arch}"
        near = (
            *(_suggestions_for_ranges(query, facts) if query.suggestions else ()),
            *suggest.nearest_targets(matrix, demands, cuda, query.arch, locked=query.locked),
        )
        reasons = refusal.resolver_lines(str(error))
        raise NoSolution(message, reasons=reasons, nearest=near) from error


def _hide_before_gap(gaps: ReleaseGaps, pins: Mapping[str, str]) -> Callable[[str, Version], bool]:
    def _is_hidden(package: str, version: Version) -> bool:
        return not same_version(version, pins.get(package)) and gaps.is_before_gap(package, version)

    return _is_hidden


def floor_constraints(first: FirstSolve) -> tuple[Constraint, ...]:
    """Return constraints that exclude old versions. See `gaps.floor_constraints`."""
    if first.torch is None:
        return ()
    torch = str(first.torch.version)
    return gaps.floor_constraints(first.facts, first.demands, first.versions, first.cuda, torch)


def outdated_packages(first: FirstSolve, versions: Mapping[str, str]) -> tuple[OldVersion, ...]:
    """Return the packages that are over a year behind the others in the set `versions`."""
    return gaps.outdated_packages(first.facts, first.demands, first.chosen, versions, first.cuda)


def old_version_warnings(first: FirstSolve, versions: Mapping[str, str]) -> tuple[str, ...]:
    """Return warnings about `versions` far behind the newest.

    Requested packages are reported if they are months behind, and other packages if they are years
    behind.
    """
    catalogue = first.facts.catalogue
    offers = catalogue.chosen_files(versions)
    named = {demand.package for demand in first.demands}
    chosen = [item for item in first.chosen if item.package not in named]
    lags = freshness.version_lags(catalogue, chosen, offers)
    behind = gaps.behind_newest(first.facts, first.demands, versions, first.cuda)
    return (*behind, *map(str, lags))
