"""From a target to every wheel, sdist and deb of its image on one architecture.

uv chooses versions that fit together from the local index (see `index.server`), amended by learned
constraints (see `matrix.constraints`). The choice is checked here: one CUDA release, no CPU build
for a CUDA target, a warning about versions that are years old.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from packaging.requirements import Requirement
from packaging.version import Version

from imgbuild.errors import NoSolution
from imgbuild.index import cuda_releases, server
from imgbuild.index.candidates import Rules
from imgbuild.index.pages import Indexes, IndexFile, places
from imgbuild.index.remote_wheel import LookedUp, lock_wheel, metadata
from imgbuild.index.server import Catalogue, OfferedFile
from imgbuild.lock.lock_file import requirements
from imgbuild.lock.resolution import BuiltWheel, Deb, Resolution, Wheel
from imgbuild.matrix import constraints
from imgbuild.matrix.constraints import Constraint
from imgbuild.matrix.model import Base
from imgbuild.solve import extension, freshness, refusal, uv
from imgbuild.solve.base import ResolvedBase
from imgbuild.solve.build_root import host_root
from imgbuild.solve.problem import SolveProblem
from imgbuild.solve.sdists import SdistWheels, host_arch, host_rules
from imgbuild.values import normalize
from imgbuild.wheel.tags import Tags

Named = TypeVar("Named", Wheel, BuiltWheel)


class PreparedTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A problem that can be solved, several times if needed: base and catalogue are known.

    `published` is the resolution of the published target that this one extends: its packages are
    locked unchanged. `published_wheels` are those of them that were built from sdists.
    """

    problem: SolveProblem
    base: ResolvedBase = ResolvedBase()
    catalogue: Catalogue
    sdist_wheels: SdistWheels
    requirements: tuple[str, ...]
    release: cuda_releases.CudaRelease
    published: Resolution | None = None
    published_wheels: extension.PublishedWheels | None = None


def resolve(problem: SolveProblem) -> Resolution:
    """Every input of the target, each list sorted by package.

    NoSolution, with the reasons, if no set of packages satisfies the target; FetchFailed if an
    index or an archive does not answer.
    """
    with opened(problem) as prepared:
        chosen = ask(prepared, problem.known)
        report_age(prepared, chosen)
        return lock_answer(prepared, chosen)


@contextlib.contextmanager
def opened(problem: SolveProblem) -> Iterator[PreparedTarget]:
    """The target with its base resolved; NoSolution if its pins cannot be met.

    A wheel can be built from an sdist as long as it is open.
    """
    refuse_excluded(problem)
    base = extension.resolve(problem)
    host = host_arch()
    overlay = problem.overlay
    resolutions = overlay.published.lock.arch if overlay is not None else {problem.arch: base}
    debs = resolutions[host].debs if host in resolutions else ()
    with host_root(problem.base, problem.matrix.image.user, host, problem.context, debs) as root:
        prepared = prepare(problem, python_of(problem.base, base.debs), root)
        refuse_pins(prepared)
        yield msgspec.structs.replace(prepared, base=base)


def lock_answer(prepared: PreparedTarget, chosen: tuple[uv.ChosenPackage, ...]) -> Resolution:
    """What uv chose, as a lock names it; builds what has to be built."""
    wheels, built = lock_chosen(prepared, chosen)
    return Resolution(
        wheels=wheels,
        built=built,
        debs=prepared.base.debs,
        base_layers=prepared.base.layers,
        base_manifest=prepared.base.manifest,
        base_files=prepared.base.files,
        security=prepared.base.security,
    )


def refuse_excluded(problem: SolveProblem) -> None:
    """NoSolution if the matrix excludes the architecture from the target."""
    reason = problem.target.exclude.get(problem.arch)
    if reason is not None:
        message = f"{problem.name} cannot be built for {problem.arch}"
        raise NoSolution(message, reasons=(reason,), hint=_others(problem))


def _others(problem: SolveProblem) -> str | None:
    """A hint that names the targets with the architecture of `problem`; None if there are none."""
    others = refusal.alternatives(problem.matrix, problem.name, problem.arch)
    return f"targets that have {problem.arch}: {', '.join(others)}" if others else None


def python_of(base: Base, debs: Sequence[Deb]) -> str:
    """The base's Python as exactly as it is known: "3.11.2" from its deb, else "3.11"."""
    for deb in debs:
        if deb.package == f"python{base.python}":
            upstream = deb.version.split(":")[-1].split("-")[0].split("+")[0].split("~")[0]
            return upstream if upstream.startswith(f"{base.python}.") else base.python
    return base.python


def report_age(prepared: PreparedTarget, chosen: tuple[uv.ChosenPackage, ...]) -> None:
    """Report which of the chosen versions are old, and why."""
    published_versions = prepared.published.versions if prepared.published is not None else {}
    new = tuple(item for item in chosen if item.package not in published_versions)
    reporter = prepared.problem.context.reporter
    freshness.report(prepared.catalogue, new, _offers(prepared, new), reporter)


def _offers(
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
    """What uv chose, as a lock names it: wheels, and those that are built from sdists."""
    versions = {item.package: item.version for item in chosen}
    check_cuda(prepared, versions)
    offers = _offers(prepared, chosen)
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
    return by_package((*published.wheels, *wheels)), by_package((*published.built, *built))


def by_package(items: Iterable[Named]) -> tuple[Named, ...]:
    """`items` sorted by package, as locks have them."""
    return tuple(sorted(items, key=lambda item: item.package))


def prepare(problem: SolveProblem, python: str, root: Callable[[], Path]) -> PreparedTarget:
    """The target with its catalogue; reads METADATA of `cuda-toolkit` and torch.

    `root` makes the root folder under which wheels are built from sdists.
    """
    published = problem.published
    plain = wheels_only(problem, python, published)
    release = cuda_release(problem, plain)
    published_wheels: extension.PublishedWheels | None = None
    published_builders: dict[str, server.SdistBuilder] = {}
    if published is not None:
        indexes, base = plain.indexes, problem.base
        published_wheels = extension.PublishedWheels(
            published, indexes, base.python, root, problem.context
        )
        published_builders = dict.fromkeys(published_wheels.packages, published_wheels.metadata)
    sdist_wheels = sdist_wheels_of(problem, plain, release.constraints, root)
    specs = requirements(problem.matrix, problem.name)
    return PreparedTarget(
        problem=problem,
        catalogue=with_sdists(problem, plain, sdist_wheels, published_builders),
        sdist_wheels=sdist_wheels,
        requirements=tuple(f"{item}{spec}" for item, spec in specs.items()),
        release=release,
        published=published,
        published_wheels=published_wheels,
    )


def wheels_only(
    problem: SolveProblem, python: str, published: Resolution | None = None
) -> Catalogue:
    """What the target may use of its indexes, without what would be built from sdists.

    Of packages that are `published`, that is their locked wheel, and their pages are not read.
    """
    matrix, target, context = problem.matrix, problem.target, problem.context
    located = places(matrix, target, uv.default_index)
    indexes = Indexes(located, target.indexes, matrix.default_index, context.http)
    tags = Tags(python=python, glibc=problem.base.glibc, arch=problem.arch)
    rules = Rules(as_of=target.as_of, tags=tags, pins=target.pins)
    published = published or Resolution(wheels=())
    offered = extension.offered(published)
    wheels = {wheel.sha256: wheel for wheel in published.wheels}
    ranges = LookedUp(context.http, lambda sha256: extension.address_of(indexes, wheels, sha256))
    return Catalogue(indexes, rules, ranges, context.store, locked=offered)


def sdist_wheels_of(
    problem: SolveProblem,
    plain: Catalogue,
    cuda_constraints: Sequence[str],
    root: Callable[[], Path],
) -> SdistWheels:
    """Builds the wheels of the matrix's sdists on this machine, under `cuda_constraints`."""
    context = problem.context
    catalogue = Catalogue(plain.indexes, host_rules(plain.rules), context.http, context.store)
    return SdistWheels(problem.matrix.sdists, catalogue, cuda_constraints, root, context)


def with_sdists(
    problem: SolveProblem,
    plain: Catalogue,
    sdist_wheels: SdistWheels,
    published_builders: Mapping[str, server.SdistBuilder] | None = None,
    hide: Callable[[str, Version], bool] = lambda package, version: False,
) -> Catalogue:
    """`plain` with the sdists of the matrix; without the versions that `hide` is true for."""
    context = problem.context
    builders = dict.fromkeys(problem.matrix.sdists, sdist_wheels.metadata) | dict(
        published_builders or {}
    )
    return Catalogue(
        plain.indexes,
        plain.rules,
        plain.ranges,
        context.store,
        sdists=builders,
        hide=hide,
        locked=plain.locked,
    )


def cuda_release(problem: SolveProblem, catalogue: Catalogue) -> cuda_releases.CudaRelease:
    """The newest patch release of the target's CUDA that torch's own requirements allow.

    NoSolution if torch has no CUDA on this architecture or allows no release.
    """
    name, target, context = problem.name, problem.target, problem.context
    torch: list[Requirement] = []
    pin = target.pins.get("torch")
    offer = pinned(catalogue, "torch", pin) if pin else None
    if offer is not None:
        torch_metadata = metadata(offer.wheel, catalogue.ranges, context.store)
        torch = cuda_releases.active(torch_metadata, catalogue.rules.tags.markers)
        refuse_cpu_build(problem, catalogue, offer.wheel, torch)
    files = catalogue.indexes.files(cuda_releases.METAPACKAGE)
    wheels = {file.version: file for file in files if file.is_wheel and file.version is not None}
    release, reasons = cuda_releases.agreeing(
        cuda_releases.of_minor(wheels, target.cuda),
        lambda version: metadata(wheels[version], context.http, context.store),
        torch,
    )
    if release is None:
        message = f"{name}: no release of CUDA {target.cuda} works with torch {pin}"
        raise NoSolution(
            message,
            reasons=reasons or (f"{cuda_releases.METAPACKAGE} has no release {target.cuda}",),
            hint="give the target the CUDA version that its torch was built for",
        )
    components = len(release.components)
    context.reporter.detail(f"CUDA {release.version}: {components} components are pinned to it")
    for reason in reasons:
        context.reporter.detail(f"skipped {reason}")
    return release


def pinned(catalogue: Catalogue, package: str, pin: str) -> OfferedFile | None:
    """The best offer of the pinned version; a pin without a local part also finds `2.6.0+cu124`."""
    requested = Version(pin)
    versions = {
        offer.wheel.version
        for offer in catalogue.offers(package)
        if offer.wheel.version is not None
        and requested in (offer.wheel.version, Version(offer.wheel.version.public))
    }
    return catalogue.chosen(package, max(versions)) if versions else None


def refuse_cpu_build(
    problem: SolveProblem, catalogue: Catalogue, torch: IndexFile, requires: Sequence[Requirement]
) -> None:
    """NoSolution if the torch that fits has no CUDA, or that of another release."""
    version, target = torch.version, problem.target
    index = catalogue.indexes.place("torch").name
    arch = catalogue.rules.tags.arch.wheel
    tag = "cu" + target.cuda.replace(".", "")
    if version is None:
        return
    if cuda_releases.is_cpu_build(version, requires):
        reason = (
            f"torch {version} for {arch} on the index {index} requires no CUDA library: a CPU build"
        )
    elif version.local and version.local.startswith("cu") and not version.local.startswith(tag):
        reason = f"torch {version} is not built for CUDA {target.cuda}"
    else:
        return
    message = f"{problem.name} cannot be solved for {problem.arch}"
    reasons = (f"{reason} ({torch.name})", *refusal.of_pins(catalogue))
    raise NoSolution(
        message, reasons=reasons, hint="assign torch to an index that has a CUDA build"
    )


def refuse_pins(prepared: PreparedTarget) -> None:
    """NoSolution, with the files that exist, if a pin has none that may be used."""
    reasons = refusal.of_pins(prepared.catalogue)
    if reasons:
        problem = prepared.problem
        message = f"{problem.name} cannot be solved for {problem.arch}"
        raise NoSolution(message, reasons=reasons, hint=_others(problem))


def ask(
    prepared: PreparedTarget, learned: Sequence[Constraint] = ()
) -> tuple[uv.ChosenPackage, ...]:
    """Uv's answer under what is `learned`; NoSolution, with the reasons, if there is none.

    A learned constraint applies only once its package is present: the target requires it, or an
    answer has it. So uv is asked again if its answer adds such a package.
    """
    present = {normalize(Requirement(line).name) for line in prepared.requirements}
    while True:
        chosen = _ask(prepared, learned, present)
        versions = {item.package: item.version for item in chosen}
        broken = constraints.violations(learned, versions)
        arrived = {entry.other for entry in broken} - present
        if not arrived:
            return chosen
        present |= arrived


def _ask(
    prepared: PreparedTarget, learned: Sequence[Constraint], present: set[str]
) -> tuple[uv.ChosenPackage, ...]:
    def amend(package: str, version: Version) -> Sequence[str]:
        return constraints.required(learned, package, str(version), present)

    problem = prepared.problem
    cuda_constraints, store = prepared.release.constraints, problem.context.store
    try:
        return uv.ask(prepared.catalogue, prepared.requirements, cuda_constraints, store, amend)
    except uv.Unsolvable as error:
        message = f"no set of packages satisfies {problem.name} on {problem.arch}"
        raise NoSolution(
            message,
            reasons=(
                *refusal.of_resolver(str(error)),
                *_learned(str(error), learned),
            ),
            hint="change a pin, or move as_of: only files uploaded before it are considered",
        ) from error


def _learned(text: str, learned: Sequence[Constraint]) -> tuple[str, ...]:
    """The entries that uv's explanation mentions, as if METADATA had them."""
    spoken = re.sub(r"[-_.]+", "-", text.lower())
    mentioned = [
        entry
        for entry in learned
        if re.search(rf"(?<![\w-]){re.escape(entry.package)}(?![\w-])", spoken)
        and re.search(rf"(?<![\w-]){re.escape(entry.other)}(?![\w-])", spoken)
    ]
    return tuple(f"learned: {entry}" for entry in mentioned)


def check_cuda(prepared: PreparedTarget, versions: Mapping[str, str]) -> None:
    """NoSolution if a chosen NVIDIA component is not of the target's CUDA release."""
    problem, release = prepared.problem, prepared.release
    broken = cuda_releases.violations(release, versions)
    if broken:
        message = f"{problem.name} on {problem.arch} would mix CUDA releases"
        raise NoSolution(message, reasons=broken, hint="find what requires it and pin that")
    for text in cuda_releases.outside(release, versions):
        problem.context.reporter.detail(f"CUDA {release.version} has no component {text}")
