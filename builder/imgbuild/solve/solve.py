"""Resolves a target to the wheels, sdists and Debian packages of its image.

uv chooses compatible versions from the local index (see `index.server`). Learned constraints (see
`matrix.constraints`) amend its METADATA. This module requires a single CUDA release and, for a CUDA
target, no CPU build, and warns about versions that are years old.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from imgbuild.cache.store import Store
from imgbuild.errors import InputError, InputProblem, IntegrityError, NoSolution
from imgbuild.index import cuda_releases
from imgbuild.index.candidates import FileRules
from imgbuild.index.catalogue import AdditionsProvider, FileCatalogue, OfferedFile, SdistBuilder
from imgbuild.index.pages import IndexLookup, index_addresses
from imgbuild.index.remote_wheel import ResolvedAddresses, lock_wheel
from imgbuild.lock.lock_file import required_specifiers
from imgbuild.lock.project_requirements import editable_packages
from imgbuild.lock.resolution import BuiltWheel, Resolution, Wheel
from imgbuild.matrix import constraints
from imgbuild.matrix.constraints import Constraint
from imgbuild.matrix.model import Sdist
from imgbuild.solve import (
    direct,
    extension,
    far_behind,
    freshness,
    impossible_sdists,
    open_torch,
    project_metadata,
    refusal,
    target_cuda,
    uv,
)
from imgbuild.solve.base import ResolvedBase, base_python
from imgbuild.solve.build_root import host_root
from imgbuild.solve.direct import NO_DIRECT, Direct
from imgbuild.solve.open_torch import OpenTorch
from imgbuild.solve.problem import SolveProblem
from imgbuild.solve.project_metadata import BackendAnswer
from imgbuild.solve.sdists import SdistWheels, host_arch, host_rules
from imgbuild.solve.torch import TORCH
from imgbuild.system.syntax import parse_requirement
from imgbuild.values import normalize_package
from imgbuild.wheel.local_version import local_version_label
from imgbuild.wheel.tags import WheelTags

Named = TypeVar("Named", Wheel, BuiltWheel)
EMPTY_PINS: Mapping[str, str] = {}


class PreparedTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A problem with its base and catalogue, which can be solved several times.

    `published` is the resolution of the published target that this target extends. Its packages are
    locked unchanged, and `published_wheels` are those that were built from sdists. `torch` is the
    build that was selected for a project without a pin. `direct` are packages with URLs, and
    `backend` is metadata from the project's build backends.
    """

    problem: SolveProblem
    base: ResolvedBase = ResolvedBase()
    catalogue: FileCatalogue
    sdist_wheels: SdistWheels
    requirements: tuple[str, ...]
    release: cuda_releases.CudaRelease
    torch: OpenTorch | None = None
    published: Resolution | None = None
    direct: Direct = NO_DIRECT
    backend: BackendAnswer = BackendAnswer()
    published_wheels: extension.PublishedWheels | None = None


def resolve_target(problem: SolveProblem) -> Resolution:
    """Resolve all inputs of the target. Lists are sorted by package.

    Raises NoSolution with the reasons if no package set satisfies the target, and FetchFailed if an
    index or archive does not respond.
    """
    with open_target(problem) as prepared:
        chosen = choose_packages(prepared, problem.known)
        report_age(prepared, chosen)
        return lock_answer(prepared, chosen)


@contextlib.contextmanager
def open_target(problem: SolveProblem) -> Iterator[PreparedTarget]:
    """Prepare `problem`, and open a context in which wheels can be built from sdists.

    Raises NoSolution if a pin cannot be satisfied.
    """
    refuse_excluded(problem)
    base = extension.resolve_published_base(problem)
    host = host_arch()
    overlay = problem.overlay
    resolutions = overlay.published.lock.arch if overlay is not None else {problem.arch: base}
    here = resolutions.get(host, ResolvedBase())
    user, context = problem.matrix.image.user, problem.context
    root = host_root(problem.base, user, host, context, here.debs, here.python or None)
    python = base_python(problem.base, base)
    refuse_python(problem, python)
    prepared = prepare_target(problem, python, root)
    refuse_pins(prepared)
    yield msgspec.structs.replace(prepared, base=base)


def lock_answer(prepared: PreparedTarget, chosen: tuple[uv.ChosenPackage, ...]) -> Resolution:
    """Return lock entries for the packages that uv chose, and build wheels where required."""
    wheels, built = lock_chosen(prepared, chosen)
    return Resolution(
        wheels=wheels,
        built=built,
        debs=prepared.base.debs,
        base_layers=prepared.base.layers,
        base_manifest=prepared.base.manifest,
        base_files=prepared.base.files,
        security=prepared.base.security,
        tools=prepared.base.tools,
        python=prepared.base.python,
    )


def refuse_excluded(problem: SolveProblem) -> None:
    """Raise NoSolution if the matrix excludes the architecture from the target."""
    reason = problem.target.exclude.get(problem.arch)
    if reason is not None:
        message = f"{problem.name} cannot be built for {problem.arch}"
        raise NoSolution(message, reasons=(reason,), hint=_other_targets_hint(problem))


def refuse_python(problem: SolveProblem, python: str) -> None:
    """Raise InputError with all places if the project's files reject the Python of the base."""
    problems = tuple(
        InputProblem(
            file=place.file,
            line=place.line or None,
            message=f"the project requires Python {spec}, but the base has {python}",
        )
        for spec, place in problem.requirements.python
        if not SpecifierSet(spec).contains(python, prereleases=True)
    )
    if problems:
        minor = ".".join(python.split(".")[:2])
        message = f"{problem.name}: the project does not accept Python {python}"
        hint = (
            "in matrix.yaml, use a target with a different Python version, or accept this version"
            f" with `relax: {{python: {{spec: '=={minor}.*', reason: …}}}}`"
        )
        raise InputError(message, problems=problems, hint=hint)


def _other_targets_hint(problem: SolveProblem) -> str | None:
    others = refusal.alternative_targets(problem.matrix, problem.name, problem.arch)
    return f"targets for {problem.arch}: {', '.join(others)}" if others else None


def report_age(prepared: PreparedTarget, chosen: tuple[uv.ChosenPackage, ...]) -> None:
    """Report old versions in `chosen`, except versions of a published target."""
    published = prepared.published
    expected = published.versions if published else _preferred_versions(prepared.problem)
    new = tuple(item for item in chosen if expected.get(item.package) != item.version)
    files, reporter = _catalogue_files(prepared, new), prepared.problem.context.reporter
    freshness.report_old_versions(prepared.catalogue, new, files, reporter)


def _catalogue_files(
    prepared: PreparedTarget, chosen: tuple[uv.ChosenPackage, ...]
) -> dict[str, OfferedFile]:
    return {
        item.package: offer
        for item in chosen
        if (offer := prepared.catalogue.chosen(item.package, Version(item.version))) is not None
    }


def lock_chosen(
    prepared: PreparedTarget, chosen: tuple[uv.ChosenPackage, ...]
) -> tuple[tuple[Wheel, ...], tuple[BuiltWheel, ...]]:
    """Return the lock entries of chosen wheels and of wheels built from sdists."""
    versions = {item.package: item.version for item in chosen}
    target_cuda.check_components(prepared.problem, prepared.release, versions)
    offers = _catalogue_files(prepared, chosen)
    published = prepared.published or Resolution(wheels=())
    offers = {
        package: offer for package, offer in offers.items() if package not in published.versions
    }
    wheels = tuple(
        lock_wheel(
            package,
            versions[package],
            prepared.catalogue.indexes.place(package).name,
            offer.wheel,
            prepared.problem.context.http,
        )
        for package, offer in offers.items()
        if offer.sdist is None
    )
    built = tuple(
        prepared.sdist_wheels.built(package, offer.sdist)
        for package, offer in offers.items()
        if offer.sdist is not None
    )
    refuse_other_hashes(prepared, wheels)
    problem = prepared.problem
    refuse_other_torch(problem.name, problem.matrix.sdists, built, versions.get(TORCH))
    all_wheels, all_built = (*published.wheels, *wheels), (*published.built, *built)
    return sort_by_package(all_wheels), sort_by_package(all_built)


def refuse_other_torch(
    name: str, sdists: Mapping[str, Sdist], built: Iterable[BuiltWheel], version: str | None
) -> None:
    """Raise NoSolution if wheels of sdists were built with a torch other than `version`."""
    of_lock = {package for package, sdist in sdists.items() if TORCH in sdist.requires}
    reasons = tuple(
        f"{item.package} {item.version} was built with torch {wheel.version}"
        for item in built
        for wheel in item.requires
        if item.package in of_lock and wheel.package == TORCH and wheel.version != version
    )
    if reasons:
        message = f"{name}: the packages require torch {version}"
        hint = f'add to the row in matrix.yaml: pins: {{torch: "{version}"}}'
        raise NoSolution(message, reasons=reasons, hint=hint)


def refuse_other_hashes(prepared: PreparedTarget, wheels: Iterable[Wheel]) -> None:
    """Raise IntegrityError for wheels whose hash is not in the project's files."""
    required = prepared.problem.requirements
    other = [
        f"{wheel.file} has sha256 {wheel.sha256}"
        for wheel in wheels
        if (hashes := required.hashes.get(wheel.package)) and f"sha256:{wheel.sha256}" not in hashes
    ]
    if other:
        message = "\n  ".join(
            (f"{prepared.problem.name}: these hashes are not in the project's files:", *other)
        )
        hint = "the files were replaced, or come from another index; update the project's lock file"
        raise IntegrityError(message, hint=hint)


def sort_by_package(items: Iterable[Named]) -> tuple[Named, ...]:
    """Sort `items` by package, as in locks."""
    return tuple(sorted(items, key=lambda item: item.package))


def prepare_target(problem: SolveProblem, python: str, root: Callable[[], Path]) -> PreparedTarget:
    """Return `problem` with its catalogue, and its CUDA release according to METADATA.

    `root` creates the root folder in which wheels are built from sdists.
    """
    tags = WheelTags(python=python, glibc=problem.base.glibc, arch=problem.arch)
    backend = backend_metadata(problem, python, root)
    by_address = (*problem.requirements.direct, *backend.requirements)
    declared = direct.applying_requirements(by_address, tags.markers)
    folder = problem.row.folder if problem.row is not None else None
    packages = direct.look_up_requirements(declared, tags, problem.context, folder)
    workdir, described = problem.matrix.image.workdir, backend.packages
    packages |= {
        package: direct.create_editable(package, item, problem.context.store)
        for package, item in editable_packages(problem.requirements, workdir, described).items()
    }
    overlay, published = problem.overlay, problem.published
    published_wheels: extension.PublishedWheels | None = None
    if overlay is not None and published is not None:
        direct.refuse_published(packages, published.versions, overlay.published.name)
    plain = wheel_catalogue(problem, python, packages, published)
    preferred = _preferred_versions(problem).get(TORCH)
    is_fixed = published is not None or TORCH in packages
    torch = None if is_fixed else open_torch.find_torch(problem, plain, preferred)
    release = target_cuda.find_cuda_release(problem, plain, torch)
    pins = {TORCH: torch.version} if torch is not None else EMPTY_PINS
    sdist_wheels = create_sdist_wheels(problem, plain, release.constraints, root, packages, pins)
    if any(item.is_git for item in packages.values()):
        packages = {
            package: direct.determine_version(item, sdist_wheels.build_unversioned)
            for package, item in packages.items()
        }
        plain = wheel_catalogue(problem, python, packages, published)
    published_builders: dict[str, SdistBuilder] = {}
    if published is not None:
        indexes, base = plain.indexes, problem.base
        published_wheels = extension.PublishedWheels(
            published, indexes, base.python, root, problem.context
        )
        published_builders = dict.fromkeys(published_wheels.packages, published_wheels.metadata)
    specs = required_specifiers(problem.matrix, problem.name)
    declared_lines = direct.resolver_lines(declared, packages)
    return PreparedTarget(
        problem=problem,
        catalogue=add_sdists(problem, plain, sdist_wheels, published_builders, packages=packages),
        sdist_wheels=sdist_wheels,
        requirements=(
            *(f"{item}{spec}" for item, spec in specs.items()),
            *problem.requirements.lines,
            *declared_lines,
            *(package for package, item in packages.items() if item.file.editable),
        ),
        release=release,
        torch=torch,
        published=published,
        direct=packages,
        backend=backend,
        published_wheels=published_wheels,
    )


def backend_metadata(problem: SolveProblem, python: str, root: Callable[[], Path]) -> BackendAnswer:
    """Return the metadata that the build backends of the project's packages provide."""
    row = problem.row
    declared = problem.requirements.declared.packages
    dynamic = [item for item in declared if item.backend and item.dynamic]
    if row is None or not dynamic:
        return BackendAnswer()
    tags = WheelTags(python=python, glibc=problem.base.glibc, arch=problem.arch)
    wheels = create_sdist_wheels(problem, wheel_catalogue(problem, python), (), root)
    return project_metadata.run_backends(
        dynamic,
        row.folder,
        problem.matrix.image.workdir,
        row.row.extras,
        tags.markers,
        wheels,
        problem.context,
    )


def wheel_catalogue(
    problem: SolveProblem,
    python: str,
    packages: Direct = NO_DIRECT,
    published: Resolution | None = None,
) -> FileCatalogue:
    """Return the usable files on the indexes, without sdists.

    `packages`, which have URLs, are not looked up on an index. For `published` packages, only the
    locked wheels are used, and no index pages are read.
    """
    matrix, target, context = problem.matrix, problem.target, problem.context
    located = index_addresses(matrix, target, uv.default_index)
    files = direct.files_by_package(packages)
    indexes = IndexLookup(located, target.indexes, matrix.default_index, context.http, files)
    tags = WheelTags(python=python, glibc=problem.base.glibc, arch=problem.arch)
    rules = FileRules(as_of=target.as_of, tags=tags, pins=target.pins)
    published = published or Resolution(wheels=())
    offered = extension.offered_files(published)
    wheels = {wheel.sha256: wheel for wheel in published.wheels}
    ranges = ResolvedAddresses(
        context.http, lambda sha256: extension.wheel_address(indexes, wheels, sha256)
    )
    return FileCatalogue(indexes, rules, ranges, context.store, locked=offered)


def create_sdist_wheels(
    problem: SolveProblem,
    plain: FileCatalogue,
    cuda_constraints: Sequence[str],
    root: Callable[[], Path],
    packages: Direct = NO_DIRECT,
    pins: Mapping[str, str] = EMPTY_PINS,
) -> SdistWheels:
    """Return the builder of wheels for sdists in the matrix and git repositories in `packages`.

    Build requirements are limited by `cuda_constraints` and the versions `pins`.
    """
    context = problem.context
    rules = msgspec.structs.replace(plain.rules, pins={**plain.rules.pins, **pins})
    catalogue = FileCatalogue(plain.indexes, host_rules(rules), context.http, context.store)
    sdists = direct.sdist_options(packages, problem.matrix.sdists)
    return SdistWheels(sdists, catalogue, cuda_constraints, root, context)


def add_sdists(
    problem: SolveProblem,
    plain: FileCatalogue,
    sdist_wheels: SdistWheels,
    published_builders: Mapping[str, SdistBuilder] | None = None,
    hide: Callable[[str, Version], bool] = lambda package, version: False,
    packages: Direct = NO_DIRECT,
) -> FileCatalogue:
    """Return `plain` with the sdists in the matrix and the git repositories in `packages`.

    Versions for which `hide` returns true are omitted.
    """
    context = problem.context
    sdists = direct.sdist_options(packages, problem.matrix.sdists)
    builders = dict.fromkeys(sdists, sdist_wheels.metadata) | dict(published_builders or {})
    return FileCatalogue(
        plain.indexes,
        plain.rules,
        plain.ranges,
        context.store,
        sdists=builders,
        hide=hide,
        locked=plain.locked,
    )


def refuse_pins(prepared: PreparedTarget) -> None:
    """Raise NoSolution, with the existing files, if a pin has no usable file."""
    reasons = refusal.pin_refusals(prepared.catalogue)
    if reasons:
        problem = prepared.problem
        message = f"{problem.name} cannot be solved for {problem.arch}"
        raise NoSolution(message, reasons=reasons, hint=_other_targets_hint(problem))


def choose_packages(
    prepared: PreparedTarget,
    learned: Sequence[Constraint] = (),
    warn: Callable[[str], None] | None = None,
) -> tuple[uv.ChosenPackage, ...]:
    """Run uv with the constraints `learned`.

    Raises NoSolution, with the reasons, if uv finds no solution, or only a solution with a much
    older version of a required package. `warn`, by default the reporter's, is called for newer
    versions that other requirements of the project exclude. Sdists are built only if there is a
    solution without the requirements of their wheels.
    """
    early, unbuilt = prepared.sdist_wheels.drop_builds(prepared.catalogue)
    warnings: list[str] = []
    first = msgspec.structs.replace(prepared, catalogue=early)
    chosen = _choose_versions(first, learned, warnings.append)
    warn = warn or prepared.problem.context.reporter.warn
    if unbuilt:
        return _choose_versions(prepared, learned, warn)
    for warning in warnings:
        warn(warning)
    return chosen


def _choose_versions(
    prepared: PreparedTarget, learned: Sequence[Constraint], warn: Callable[[str], None]
) -> tuple[uv.ChosenPackage, ...]:
    specs = prepared.problem.requirements.versions
    expected = {*_preferred_versions(prepared.problem).items()}
    if prepared.published is not None:
        expected |= {*prepared.published.versions.items()}
    chosen = _resolve_closed(prepared, learned)
    while specs and (
        behind := far_behind.first_far_behind(prepared.catalogue, specs, expected, chosen)
    ):
        lines = (*prepared.requirements, behind.line)
        newer = msgspec.structs.replace(prepared, requirements=lines)
        try:
            chosen = _resolve_closed(newer, learned)
            prepared = newer
        except NoSolution as error:
            _require_installable(prepared, behind)
            warn(behind.warning(error))
            expected.add((behind.lag.package, behind.lag.version))
    return chosen


def _require_installable(prepared: PreparedTarget, behind: far_behind.FarBehind) -> None:
    bounds = uv.ResolverBounds(
        constraints=_cuda_bounds(prepared), overrides=prepared.problem.requirements.overrides
    )
    problem, catalogue = prepared.problem, prepared.catalogue
    alone = f"{behind.lag.package}{behind.spec}"
    try:
        uv.run_resolver(catalogue, (alone, behind.line), bounds, problem.context.store)
    except uv.UnsolvableError as error:
        chosen = uv.run_resolver(catalogue, (alone,), bounds, problem.context.store)
        newest = next(item.version for item in chosen if item.package == behind.lag.package)
        reasons = (*refusal.explanation(catalogue, str(error)), *_torch_notes(prepared, str(error)))
        raise far_behind.far_behind_error(problem, behind, newest, reasons) from error


def _resolve_closed(
    prepared: PreparedTarget, learned: Sequence[Constraint]
) -> tuple[uv.ChosenPackage, ...]:
    """Run uv until all learned constraints that apply to the result are included.

    A learned constraint applies if the target requires the package that it restricts, or if uv
    chose this package in an earlier run.
    """
    present = {requirement_package(line) for line in prepared.requirements}
    while True:
        chosen = _resolve_once(prepared, learned, present)
        versions = {item.package: item.version for item in chosen}
        broken = constraints.violated_constraints(learned, versions)
        arrived = {entry.other for entry in broken} - present
        if not arrived:
            return chosen
        present |= arrived


def _resolve_once(
    prepared: PreparedTarget, learned: Sequence[Constraint], present: set[str]
) -> tuple[uv.ChosenPackage, ...]:
    def _amend_metadata(package: str, version: Version) -> Sequence[str]:
        tagged = local_version_label(str(version)).requires if package in prepared.direct else ()
        return (*constraints.added_requirements(learned, package, str(version), present), *tagged)

    problem = prepared.problem
    unusable = impossible_sdists.sdist_exclusions(prepared.catalogue, problem, present, learned)
    bounds = resolver_bounds(prepared, unusable)
    try:
        return _run_uv(prepared, bounds, problem.context.store, _amend_metadata)
    except uv.AddressRequired as error:
        message = f"{problem.name} cannot be solved for {problem.arch}"
        addressed = prepared.catalogue.addressed.items()
        reasons = tuple(words for (_, other), words in addressed if other == error.package)
        hint = f"add {error.package} to the requirements of the project, with a URL or version"
        raise NoSolution(message, reasons=reasons, hint=hint) from error
    except uv.UnsolvableError as error:
        message = f"no package set satisfies {problem.name} on {problem.arch}"
        raise NoSolution(
            message,
            reasons=(
                *refusal.explanation(prepared.catalogue, str(error)),
                *_learned_constraints(str(error), learned),
                *_torch_notes(prepared, str(error)),
                *direct.compiled_notes(prepared.direct),
            ),
            hint="change a pin, or set `as_of` to a later day to include later uploads",
        ) from error


def _run_uv(
    prepared: PreparedTarget, bounds: uv.ResolverBounds, store: Store, amend: AdditionsProvider
) -> tuple[uv.ChosenPackage, ...]:
    """Run uv, and run it again without limits on `--no-deps` packages if there is no solution.

    The dependencies of `--no-deps` packages are still installed.
    """
    catalogue, alone = prepared.catalogue, prepared.problem.requirements.no_deps
    try:
        return uv.run_resolver(catalogue, prepared.requirements, bounds, store, amend)
    except uv.UnsolvableError:
        if not alone or catalogue.alone:
            raise
        catalogue.alone = alone
        return uv.run_resolver(catalogue, prepared.requirements, bounds, store, amend)


def resolver_bounds(prepared: PreparedTarget, more: Iterable[str] = ()) -> uv.ResolverBounds:
    """Return the limits of a run of uv, with the additional constraints `more`.

    Constraints in the project's files are omitted for packages of the published target.
    """
    problem, required = prepared.problem, prepared.problem.requirements
    held = prepared.published.versions if prepared.published is not None else {}
    return uv.ResolverBounds(
        constraints=(
            *_cuda_bounds(prepared),
            *more,
            *(line for line in required.constraints if requirement_package(line) not in held),
        ),
        overrides=required.overrides,
        preferences=tuple(
            f"{name}=={version}" for name, version in _preferred_versions(problem).items()
        ),
    )


def _cuda_bounds(prepared: PreparedTarget) -> tuple[str, ...]:
    torch = (prepared.torch.line,) if prepared.torch is not None else ()
    return (*prepared.release.constraints, *torch)


def _torch_notes(prepared: PreparedTarget, text: str) -> tuple[str, ...]:
    return prepared.torch.torch_notes(text) if prepared.torch is not None else ()


def _preferred_versions(problem: SolveProblem) -> dict[str, str]:
    row = problem.row
    like = row.published.lock.arch.get(problem.arch) if row and row.row.like else None
    return dict(like.versions) if like is not None else {}


def requirement_package(line: str) -> str:
    """Return the normalized package name in a requirement line."""
    return normalize_package(parse_requirement(line).name)


def _learned_constraints(text: str, learned: Sequence[Constraint]) -> tuple[str, ...]:
    spoken = re.sub(r"[-_.]+", "-", text.lower())
    mentioned = [
        entry
        for entry in learned
        if re.search(rf"(?<![\w-]){re.escape(entry.package)}(?![\w-])", spoken)
        and re.search(rf"(?<![\w-]){re.escape(entry.other)}(?![\w-])", spoken)
    ]
    return tuple(f"learned: {entry}" for entry in mentioned)
