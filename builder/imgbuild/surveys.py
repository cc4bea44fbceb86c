"""A first look at a world: which torch fits what is asked for, and with it which CUDA release.

Comes in: an `Ask` and an architecture. Goes out: a `Survey`, or a WorldImpossible. The resolver is
asked once without the rule of one CUDA release, but with only those versions of torch that are
built for the release that was asked for, or for any: never a CPU build.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from imgbuild import freshness, gateway, refusal, torches, uv, wishes
from imgbuild.errors import ImgbuildError, InputError, WorldImpossible
from imgbuild.fetch import Http
from imgbuild.gateway import Catalogue
from imgbuild.indexes import Indexes, places
from imgbuild.matrix.model import Flashinfer, Matrix, Target
from imgbuild.remote import metadata
from imgbuild.roots import host_root
from imgbuild.sdists import Workshop, host_arch, host_rules
from imgbuild.selection import Rules
from imgbuild.store import Store
from imgbuild.torches import TORCH, Build
from imgbuild.values import Arch
from imgbuild.wheel.tags import Tags
from imgbuild.wishes import Ask


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """What the resolver chose at first sight; `torch` is None in a world without it."""

    chosen: tuple[uv.Chosen, ...]
    catalogue: Catalogue
    torch: Build | None
    cuda: str

    @property
    def versions(self) -> dict[str, str]:
        """Package → version."""
        return {item.package: item.version for item in self.chosen}


def survey(
    ask: Ask, matrix: Matrix, arch: Arch, target: Target | None, store: Store, http: Http
) -> Survey:
    """Look at `ask` on `arch`; `target` is what another architecture made of it, to be kept to.

    WorldImpossible if nothing fits; InputError if no CUDA release can be told.
    """
    base = wishes.base_of(ask, matrix)
    provisional = _provisional(ask, matrix, base, target)
    tags = Tags(python=matrix.bases[base].python, glibc=matrix.bases[base].glibc, arch=arch)
    pins = {wish.package: wish.pin for wish in ask.wishes if wish.pin is not None}
    if target is not None and TORCH in target.pins:
        pins.setdefault(TORCH, target.pins[TORCH])
    rules = Rules(as_of=provisional.as_of, tags=tags, pins=pins)
    indexes = Indexes(
        places(matrix, provisional, uv.default_index), ask.indexes, matrix.default_index, http
    )
    plain = Catalogue(indexes, rules, http, store)
    own = Catalogue(indexes, host_rules(rules), http, store)
    with host_root(matrix.bases[base], matrix.image.user, host_arch(), store, http) as root:
        workshop = Workshop(matrix.sdists, own, (), root, store, http)
        builders = dict.fromkeys(matrix.sdists, workshop.metadata)
        catalogue = Catalogue(indexes, rules, http, store, sdists=builders)
        missing = refusal.of_pins(catalogue)
        every = torches.builds(plain, lambda file: metadata(file, http, store))
        fitting = _fitting(ask, pins, target, every)
        if missing or not fitting:
            raise _no_torch(ask, arch, missing, pins, every)
        chosen = _ask(ask, matrix, catalogue, fitting, every, store)
    versions = {item.package: item.version for item in chosen}
    torch = next((b for b in fitting if str(b.version) == versions.get(TORCH)), None)
    return Survey(chosen=chosen, catalogue=catalogue, torch=torch, cuda=_cuda(ask, target, torch))


def _provisional(ask: Ask, matrix: Matrix, base: str, target: Target | None) -> Target:
    """A target that fills the addresses of indexes; its CUDA is a guess where none is asked for."""
    cuda = ask.cuda or (target.cuda if target is not None else None)
    for package, index in ask.indexes.items():
        if cuda is None and "{cuda_tag}" in (matrix.indexes[index].url or ""):
            message = f"{package} comes from {index}, which is one index for each CUDA release"
            raise InputError(message, hint="say which with --cuda")
    pins = {wish.package: wish.pin for wish in ask.wishes if wish.pin is not None}
    return Target(
        summary="",
        base=base,
        cuda=cuda or "0.0",
        arch=ask.arches,
        as_of=ask.as_of or wishes.tomorrow(),
        pins=pins,
        indexes=dict(ask.indexes),
        flashinfer=Flashinfer(mode="off", reason="not known yet"),
    )


def _fitting(
    ask: Ask, pins: Mapping[str, str], target: Target | None, every: Sequence[Build]
) -> list[Build]:
    """The builds of torch that what is asked for leaves."""
    wish = ask.wish(TORCH)
    spec = SpecifierSet(f"=={pins[TORCH]}" if TORCH in pins else wish.spec if wish else "")
    cuda = ask.cuda or (target.cuda if target is not None else None)
    return [
        build
        for build in every
        if spec.contains(build.version) and build.cuda is not None and cuda in (None, build.cuda)
    ]


def _no_torch(
    ask: Ask,
    arch: Arch,
    missing: Sequence[str],
    pins: Mapping[str, str],
    every: Sequence[Build],
) -> WorldImpossible:
    reasons = list(missing)
    pinned = [b for b in every if TORCH in pins and b.version == Version(pins[TORCH])]
    cuda = f" for CUDA {ask.cuda}" if ask.cuda else ""
    reasons += [f"{build} on {arch.wheel}" for build in pinned]
    if not pinned and not missing:
        reasons.append(f"no torch{cuda} on {arch.wheel}: {torches.summary(every)}")
    return WorldImpossible(f"this world is impossible on {arch}", reasons=tuple(reasons))


def _ask(
    ask: Ask,
    matrix: Matrix,
    catalogue: Catalogue,
    fitting: Sequence[Build],
    every: Sequence[Build],
    store: Store,
) -> tuple[uv.Chosen, ...]:
    wanted = {wish.package: wish.spec for wish in ask.wishes}
    for package, want in matrix.requires.items():
        wanted.setdefault(package, want.spec)
    tags = catalogue.rules.tags
    held = torches.spec_of([b.version for b in fitting], [b.version for b in every])
    try:
        with gateway.serve(catalogue) as index, store.scratch() as folder:
            return uv.compile_requirements(
                [f"{package}{spec}" for package, spec in wanted.items()],
                [f"{TORCH}{held}"],
                index=index,
                python=tags.python,
                platform=tags.uv_platform,
                folder=folder,
            )
    except uv.Unsolvable as error:
        message = f"no set of packages satisfies what is asked for on {tags.arch}"
        raise WorldImpossible(message, reasons=refusal.of_resolver(str(error))) from error
    except ImgbuildError:
        if catalogue.failures:  # uv saw an error of the gateway: its cause is what to show
            raise catalogue.failures[0] from None
        raise


def _cuda(ask: Ask, target: Target | None, torch: Build | None) -> str:
    cuda = ask.cuda or (target.cuda if target is not None else torch.cuda if torch else None)
    if cuda is None:
        message = "nothing in this world tells its CUDA release: no torch is in it"
        raise InputError(message, hint="say which with --cuda")
    return cuda


def warnings(found: Survey, ask: Ask) -> tuple[str, ...]:
    """What fell far behind its newest version though nothing asks for an old one."""
    offers = {
        item.package: offer
        for item in found.chosen
        if (offer := found.catalogue.chosen(item.package, Version(item.version))) is not None
    }
    del ask
    return tuple(str(lag) for lag in freshness.lags(found.catalogue, found.chosen, offers))
