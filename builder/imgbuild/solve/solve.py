"""resolve: from a target to every wheel, sdist and deb of its image on one architecture.

uv answers which versions fit together; everything that it may choose from comes through the
gateway (see `gateway`), amended by what was learned (see `constraints`), and everything that it
chose is looked at again here: one CUDA release, no CPU build in a CUDA world, nothing that lies
years behind its newest version unnoticed.
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

from imgbuild.cache.download import Http
from imgbuild.cache.store import Store
from imgbuild.errors import ImgbuildError, NoSolution
from imgbuild.index import cuda_releases, server
from imgbuild.index.candidates import Rules
from imgbuild.index.pages import File, Indexes, places
from imgbuild.index.remote_wheel import lock_wheel, metadata
from imgbuild.index.server import Catalogue, Offer
from imgbuild.lock import published as extend
from imgbuild.lock.lock import requirements
from imgbuild.lock.resolution import Built, Deb, Resolution, Wheel
from imgbuild.matrix import constraints
from imgbuild.matrix.constraints import Constraint
from imgbuild.matrix.model import Base, Matrix, Target
from imgbuild.solve import extension, freshness, refusal, uv
from imgbuild.solve.base import Below
from imgbuild.solve.build_root import host_root
from imgbuild.solve.sdists import Workshop, host_arch, host_rules
from imgbuild.system.console import console
from imgbuild.values import Arch, normalize
from imgbuild.wheel.tags import Tags

Named = TypeVar("Named", Wheel, Built)


class World(msgspec.Struct, frozen=True, kw_only=True):
    """A target on one architecture, ready to be asked: its catalogue, and the constraints on it.

    `kept` is what a published target holds that this one extends: it is locked as it is.
    """

    name: str
    arch: Arch
    target: Target
    catalogue: Catalogue
    workshop: Workshop
    requirements: tuple[str, ...]
    release: cuda_releases.Release
    kept: Resolution | None = None


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A target that may be resolved several times: its base is known, its world is open."""

    below: Below
    world: World


def resolve(
    matrix: Matrix,
    name: str,
    arch: Arch,
    store: Store,
    http: Http,
    known: Sequence[Constraint] = (),
) -> Resolution:
    """Every input of target `name` on `arch`, each list sorted by package; `known` was learned.

    NoSolution, with the chain of reasons, if no set of packages satisfies the target;
    FetchFailed if an index or an archive does not answer.
    """
    with opened(matrix, name, arch, store, http) as asked:
        return answer(asked, store, http, known)


@contextlib.contextmanager
def opened(matrix: Matrix, name: str, arch: Arch, store: Store, http: Http) -> Iterator[Asked]:
    """Target `name` on `arch`, ready for `answer`; NoSolution if its pins say so already."""
    target = matrix.targets[name]
    refuse_excluded(matrix, name, arch)
    base = matrix.bases[target.base]
    below = extension.resolve(matrix, name, arch, store, http)
    own = host_arch()
    kept = extend.kept(matrix, name, own)
    known = kept.debs if kept is not None else below.debs if own is arch else ()
    with host_root(base, matrix.image.user, own, store, http, known) as root:
        python = python_of(base, below.debs)
        world = open_world(matrix, name, arch, python, root, store, http)
        refuse_pins(matrix, world)
        yield Asked(below=below, world=world)


def answer(asked: Asked, store: Store, http: Http, known: Sequence[Constraint] = ()) -> Resolution:
    """The set that uv answers under what is `known`, looked at again and ready to be locked."""
    chosen = ask(asked.world, store, known)
    tell(asked.world, chosen)
    return lock_answer(asked, chosen, http)


def lock_answer(asked: Asked, chosen: tuple[uv.Chosen, ...], http: Http) -> Resolution:
    """What uv chose, as a lock names it; builds what has to be built."""
    wheels, built = lock_chosen(asked.world, chosen, http)
    return Resolution(
        wheels=wheels,
        built=built,
        debs=asked.below.debs,
        base_layers=asked.below.layers,
        base_manifest=asked.below.manifest,
        base_files=asked.below.files,
    )


def refuse_excluded(matrix: Matrix, name: str, arch: Arch) -> None:
    """NoSolution if the matrix itself says why target `name` cannot have `arch`."""
    reason = matrix.targets[name].exclude.get(arch)
    if reason is not None:
        others = refusal.alternatives(matrix, name, arch)
        hint = f"targets that have {arch}: {', '.join(others)}" if others else None
        message = f"{name} cannot be built for {arch}"
        raise NoSolution(message, reasons=(reason,), hint=hint)


def python_of(base: Base, debs: Sequence[Deb]) -> str:
    """The base's Python as exactly as it is known: "3.11.2" from its deb, else "3.11"."""
    for deb in debs:
        if deb.package == f"python{base.python}":
            upstream = deb.version.split(":")[-1].split("-")[0].split("+")[0].split("~")[0]
            return upstream if upstream.startswith(f"{base.python}.") else base.python
    return base.python


def tell(world: World, chosen: tuple[uv.Chosen, ...]) -> None:
    """Say what of the chosen is old, and why."""
    kept = world.kept.versions if world.kept is not None else {}
    new = tuple(item for item in chosen if item.package not in kept)
    freshness.report(world.catalogue, new, _offers(world, new))


def _offers(world: World, chosen: tuple[uv.Chosen, ...]) -> dict[str, Offer]:
    return {
        item.package: offer
        for item in chosen
        if (offer := world.catalogue.chosen(item.package, Version(item.version))) is not None
    }


def lock_chosen(
    world: World, chosen: tuple[uv.Chosen, ...], http: Http
) -> tuple[tuple[Wheel, ...], tuple[Built, ...]]:
    """What uv chose, as a lock names it: wheels, and those that are built from sdists."""
    versions = {item.package: item.version for item in chosen}
    check_cuda(world, versions)
    offers = _offers(world, chosen)
    kept = world.kept or Resolution(wheels=())
    offers = {package: offer for package, offer in offers.items() if package not in kept.versions}
    wheels = tuple(
        lock_wheel(
            package,
            versions[package],
            world.catalogue.indexes.place(package).name,
            offer.wheel,
            http,
        )
        for package, offer in offers.items()
        if offer.sdist is None
    )
    built = tuple(
        world.workshop.built(package, offer.sdist)
        for package, offer in offers.items()
        if offer.sdist is not None
    )
    return by_package((*kept.wheels, *wheels)), by_package((*kept.built, *built))


def by_package(items: Iterable[Named]) -> tuple[Named, ...]:
    """`items` sorted by package, as locks have them."""
    return tuple(sorted(items, key=lambda item: item.package))


def open_world(
    matrix: Matrix,
    name: str,
    arch: Arch,
    python: str,
    root: Callable[[], Path],
    store: Store,
    http: Http,
) -> World:
    """Target `name` on `arch` with its catalogue; reads `cuda-toolkit` and torch's METADATA."""
    target = matrix.targets[name]
    base = matrix.bases[target.base]
    tags = Tags(python=python, glibc=base.glibc, arch=arch)
    rules = Rules(as_of=target.as_of, tags=tags, pins=target.pins)
    located = places(matrix, target, uv.default_index)
    indexes = Indexes(located, target.indexes, matrix.default_index, http)
    plain = Catalogue(indexes, rules, http, store)
    release = cuda_release(name, target, plain, http, store)
    own = Catalogue(indexes, host_rules(rules), http, store)
    workshop = Workshop(matrix.sdists, own, release.constraints, root, store, http)
    builders = dict.fromkeys(matrix.sdists, workshop.metadata)
    published = extend.kept(matrix, name, arch)
    if published is not None:
        kept = extension.Kept(published, indexes, base.python, root, store, http)
        builders |= dict.fromkeys(kept.packages, kept.metadata)
    catalogue = Catalogue(indexes, rules, http, store, sdists=builders)
    return World(
        name=name,
        arch=arch,
        target=target,
        catalogue=catalogue,
        workshop=workshop,
        requirements=tuple(f"{item}{spec}" for item, spec in requirements(matrix, name).items()),
        release=release,
        kept=published,
    )


def cuda_release(
    name: str, target: Target, catalogue: Catalogue, http: Http, store: Store
) -> cuda_releases.Release:
    """The newest patch release of the target's CUDA that torch's own requirements agree with.

    NoSolution if torch has no CUDA on this architecture or agrees with no release.
    """
    torch: list[Requirement] = []
    pin = target.pins.get("torch")
    offer = pinned(catalogue, "torch", pin) if pin else None
    if offer is not None:
        own = metadata(offer.wheel, http, store)
        torch = cuda_releases.active(own, catalogue.rules.tags.markers)
        refuse_cpu_build(name, target, catalogue, offer.wheel, torch)
    files = catalogue.indexes.files(cuda_releases.METAPACKAGE)
    wheels = {file.version: file for file in files if file.is_wheel and file.version is not None}
    found, reasons = cuda_releases.agreeing(
        cuda_releases.of_minor(wheels, target.cuda),
        lambda version: metadata(wheels[version], http, store),
        torch,
    )
    if found is None:
        message = f"{name}: torch {pin} agrees with no release of CUDA {target.cuda}"
        raise NoSolution(
            message,
            reasons=reasons or (f"{cuda_releases.METAPACKAGE} has no release {target.cuda}",),
            hint="give the target the CUDA version that its torch was built for",
        )
    console.detail(f"CUDA {found.version}: {len(found.components)} components held to it")
    for reason in reasons:
        console.detail(f"passed over {reason}")
    return found


def pinned(catalogue: Catalogue, package: str, pin: str) -> Offer | None:
    """The best offer of the pinned version; a pin without a local part also finds `2.6.0+cu124`."""
    wanted = Version(pin)
    versions = {
        offer.wheel.version
        for offer in catalogue.offers(package)
        if offer.wheel.version is not None
        and wanted in (offer.wheel.version, Version(offer.wheel.version.public))
    }
    return catalogue.chosen(package, max(versions)) if versions else None


def refuse_cpu_build(
    name: str,
    target: Target,
    catalogue: Catalogue,
    torch: File,
    requires: Sequence[Requirement],
) -> None:
    """NoSolution if the torch that fits has no CUDA, or that of another release."""
    version = torch.version
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
        reason = f"torch {version} is built for another CUDA than {target.cuda}"
    else:
        return
    message = f"{name} is impossible on {catalogue.rules.tags.arch}"
    reasons = (f"{reason} ({torch.name})", *refusal.of_pins(catalogue))
    raise NoSolution(
        message, reasons=reasons, hint="assign torch to an index that has a CUDA build"
    )


def refuse_pins(matrix: Matrix, world: World) -> None:
    """NoSolution if a pin has no file that may be used: says which files there are."""
    reasons = refusal.of_pins(world.catalogue)
    if reasons:
        others = refusal.alternatives(matrix, world.name, world.arch)
        hint = f"targets that have {world.arch}: {', '.join(others)}" if others else None
        message = f"{world.name} is impossible on {world.arch}"
        raise NoSolution(message, reasons=reasons, hint=hint)


def ask(world: World, store: Store, known: Sequence[Constraint] = ()) -> tuple[uv.Chosen, ...]:
    """Uv's answer under what is `known`; NoSolution, with the chain, if there is none.

    What was learned narrows a package only once that is in the world: the target requires it, or
    an answer has it. So uv is asked again where its answer brings such a package.
    """
    present = {normalize(Requirement(line).name) for line in world.requirements}
    while True:
        chosen = _ask(world, store, known, present)
        versions = {item.package: item.version for item in chosen}
        broken = constraints.violations(known, versions)
        arrived = {entry.other for entry in broken} - present
        if not arrived:
            return chosen
        present |= arrived


def _ask(
    world: World, store: Store, known: Sequence[Constraint], present: set[str]
) -> tuple[uv.Chosen, ...]:
    def amend(package: str, version: Version) -> Sequence[str]:
        return constraints.required(known, package, str(version), present)

    tags = world.catalogue.rules.tags
    try:
        with server.serve(world.catalogue, amend) as index, store.scratch() as folder:
            return uv.compile_requirements(
                world.requirements,
                world.release.constraints,
                index=index,
                python=tags.python,
                platform=tags.uv_platform,
                folder=folder,
            )
    except uv.Unsolvable as error:
        message = f"no set of packages satisfies {world.name} on {world.arch}"
        raise NoSolution(
            message,
            reasons=(
                *(failure.message for failure in world.catalogue.failures),
                *refusal.of_resolver(str(error)),
                *_learned(str(error), known),
            ),
            hint="change a pin, or move as_of: only files uploaded before it were looked at",
        ) from error
    except ImgbuildError:
        if world.catalogue.failures:  # uv saw an error of the gateway: its cause is what to show
            raise world.catalogue.failures[0] from None
        raise


def _learned(text: str, known: Sequence[Constraint]) -> tuple[str, ...]:
    """The entries of which uv's explanation speaks: it takes them for what METADATA says."""
    spoken = re.sub(r"[-_.]+", "-", text.lower())
    found = [
        entry
        for entry in known
        if re.search(rf"(?<![\w-]){re.escape(entry.package)}(?![\w-])", spoken)
        and re.search(rf"(?<![\w-]){re.escape(entry.other)}(?![\w-])", spoken)
    ]
    return tuple(f"learned: {entry}" for entry in found)


def check_cuda(world: World, versions: Mapping[str, str]) -> None:
    """NoSolution if a chosen NVIDIA component is not of the target's CUDA release."""
    broken = cuda_releases.violations(world.release, versions)
    if broken:
        message = f"{world.name} on {world.arch} would mix CUDA releases"
        raise NoSolution(message, reasons=broken, hint="find what asks for it and pin that")
    for text in cuda_releases.outside(world.release, versions):
        console.detail(f"{text} is no part of CUDA {world.release.version}'s list of wheels")
