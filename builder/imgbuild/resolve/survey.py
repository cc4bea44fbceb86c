"""A first look at a world: which torch fits what is asked for, and with it which CUDA release.

Comes in: an `Ask` and an architecture. Goes out: a `Survey`, or a NoSolution. The resolver is
asked once without the rule of one CUDA release, but with only those versions of torch that are
built for the release that was asked for, or for any: never a CPU build.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec
from packaging.version import Version

from imgbuild.cache.download import Http
from imgbuild.cache.store import Store
from imgbuild.errors import ImgbuildError, InputError, NoSolution
from imgbuild.index import server
from imgbuild.index.candidates import Rules, same_version
from imgbuild.index.pages import File, Indexes, places
from imgbuild.index.remote_wheel import metadata
from imgbuild.index.server import Catalogue
from imgbuild.matrix import constraints
from imgbuild.matrix.constraints import Constraint
from imgbuild.matrix.model import Flashinfer, Matrix, Target
from imgbuild.resolve import conflict, gaps, quick_audit, request, suggest
from imgbuild.resolve.conflict import Demand, Facts
from imgbuild.resolve.gaps import Gaps
from imgbuild.resolve.quick_audit import Glance
from imgbuild.resolve.request import Ask
from imgbuild.solve import freshness, refusal, torch, uv
from imgbuild.solve.build_root import host_root
from imgbuild.solve.sdists import Workshop, host_arch, host_rules
from imgbuild.solve.torch import TORCH, Build
from imgbuild.values import Arch
from imgbuild.wheel.tags import Tags


class Memory:
    """What is learned while a world is looked for: used at once, written nowhere.

    `known` is the strongest of what is known, which is enough to resolve; `seen` is all of it, each
    with its own evidence and its own versions.
    """

    def __init__(self, known: Sequence[Constraint]) -> None:
        self.known = tuple(known)
        self.seen: tuple[Constraint, ...] = ()
        self.windows: tuple[Constraint, ...] = ()

    def keep(self, learned: Iterable[Constraint]) -> tuple[Constraint, ...]:
        """Add what was learned; all that is known now."""
        self.known = constraints.merge(self.known, learned)
        return self.known

    def see(self, seen: Glance) -> bool:
        """Take in what a glance saw; whether anything of it is new and binds."""
        before = self.known
        self.windows = seen.windows
        self.seen += tuple(entry for entry in seen.learned if entry not in self.seen)
        return self.keep(seen.learned) != before


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """What the resolver chose at first sight; `torch` is None in a world without it."""

    chosen: tuple[uv.Chosen, ...]
    facts: Facts
    demands: tuple[Demand, ...]
    torch: Build | None
    cuda: str

    @property
    def versions(self) -> dict[str, str]:
        """Package → version."""
        return {item.package: item.version for item in self.chosen}


def survey(
    ask: Ask,
    matrix: Matrix,
    arch: Arch,
    target: Target | None,
    memory: Memory,
    store: Store,
    http: Http,
) -> Survey:
    """Look at `ask` on `arch`; `target` is what another architecture made of it, to be kept to.

    NoSolution if nothing fits; InputError if no CUDA release can be told.
    """
    demands = _demands(ask, target)
    cuda = ask.cuda or (target.cuda if target is not None else None)
    with opened(ask, matrix, arch, target, memory, store, http) as own:
        facts = own
        refuse(ask, facts, demands, cuda, matrix, memory, store, http)
        pins = conflict.pins_of(demands)
        named = {package: pin for package, pin in pins.items() if package != TORCH}
        if memory.see(quick_audit.glance(facts.catalogue, named, named, store, http)):
            facts = facts.knowing((*memory.seen, *memory.known))
            refuse(ask, facts, demands, cuda, matrix, memory, store, http)
        chosen = _ask(matrix, facts, demands, cuda, store)
    versions = {item.package: item.version for item in chosen}
    torch = next((b for b in facts.torches if str(b.version) == versions.get(TORCH)), None)
    cuda = cuda or (torch.cuda if torch is not None else None)
    if cuda is None:
        message = "nothing in this world tells its CUDA release: no torch is in it"
        raise InputError(message, hint="say which with --cuda")
    return Survey(chosen=chosen, facts=facts, demands=demands, torch=torch, cuda=cuda)


@contextlib.contextmanager
def opened(
    ask: Ask,
    matrix: Matrix,
    arch: Arch,
    target: Target | None,
    memory: Memory,
    store: Store,
    http: Http,
) -> Iterator[Facts]:
    """What `ask` may use on `arch`; an sdist may be built as long as it is open."""
    base = matrix.bases[request.base_of(ask, matrix)]
    provisional = _provisional(ask, matrix, target)
    rules = Rules(
        as_of=provisional.as_of,
        tags=Tags(python=base.python, glibc=base.glibc, arch=arch),
        pins=conflict.pins_of(_demands(ask, target)),
    )
    indexes = Indexes(
        places(matrix, provisional, uv.default_index), ask.indexes, matrix.default_index, http
    )
    own = Catalogue(indexes, host_rules(rules), http, store)
    with host_root(base, matrix.image.user, host_arch(), store, http) as root:
        workshop = Workshop(matrix.sdists, own, (), root, store, http)
        builders = dict.fromkeys(matrix.sdists, workshop.metadata)
        gaps = Gaps(indexes, rules.tags, matrix.sdists)
        catalogue = Catalogue(
            indexes, rules, http, store, sdists=builders, hide=_unless_pinned(gaps, rules.pins)
        )
        yield facts_of(catalogue, (*memory.seen, *memory.known), store, http)


def explained(
    error: NoSolution,
    matrix: Matrix,
    name: str,
    arch: Arch,
    known: Sequence[Constraint],
    store: Store,
    http: Http,
) -> NoSolution:
    """`error` of target `name` on `arch`, with a short chain and the nearest worlds if there are.

    For targets of the matrix, whose resolution failed with whatever the resolver had to say.
    """
    target = matrix.targets[name]
    ask = request.of_target(name, target, arch)
    memory = Memory(known)
    try:
        with opened(ask, matrix, arch, None, memory, store, http) as facts:
            refuse(ask, facts, _demands(ask, None), target.cuda, matrix, memory, store, http)
    except NoSolution as better:
        return better
    except ImgbuildError:
        return error  # what stopped the explanation is no reason of this world
    return error


def facts_of(
    catalogue: Catalogue, learned: Sequence[Constraint], store: Store, http: Http
) -> Facts:
    """What chains of reasons are made of; reads METADATA of every torch that may be used."""

    def _read(file: File) -> bytes:
        return metadata(file, http, store)

    return Facts(catalogue, _read, learned, torch.builds(catalogue, _read))


def _demands(ask: Ask, target: Target | None) -> tuple[Demand, ...]:
    """The wishes as demands, and the torch that another architecture came to."""
    found = [conflict.demand(wish.package, wish.spec, str(wish)) for wish in ask.wishes]
    pin = target.pins.get(TORCH) if target is not None else None
    if pin is not None and not any(item.package == TORCH for item in found):
        found.append(conflict.demand(TORCH, f"=={pin}", f"torch {pin} is what the other one has"))
    return tuple(found)


def refuse(
    ask: Ask,
    facts: Facts,
    demands: Sequence[Demand],
    cuda: str | None,
    matrix: Matrix,
    memory: Memory,
    store: Store,
    http: Http,
) -> None:
    """NoSolution, with the chain and the nearest worlds, if the demands contradict."""
    catalogue = facts.catalogue
    found = conflict.conflict(facts, demands, cuda, row=ask.row)
    if found is None:
        return
    pins = conflict.pins_of(demands)
    outside = [window for window in memory.windows if window.violated(pins)]
    reasons = [*found.reasons, *(conflict.window_words(window) for window in outside)]
    wide = quick_audit.widened(facts.learned, found.wishes, catalogue, store, http)
    kept = [wish.package for wish in ask.wishes if wish.have]

    def _check(versions: Mapping[str, str]) -> suggest.Look:
        named = {package: version for package, version in versions.items() if package != TORCH}
        seen = quick_audit.glance(catalogue, named, (), store, http)
        return suggest.Look(clashes=seen.clashes, taught=seen.learned, read=seen.read)

    looked = suggest.Nearest(facts.knowing((*wide, *outside)), demands, found, _check, kept)
    near = looked.worlds(cuda)
    arch = catalogue.rules.tags.arch
    known = suggest.targets(matrix, demands, cuda, arch, apart_from=ask.row)
    message = f"this world is impossible on {arch}"
    raise NoSolution(message, reasons=tuple(reasons), nearest=(*near, *known))


def _provisional(ask: Ask, matrix: Matrix, target: Target | None) -> Target:
    """A target that fills the addresses of indexes; its CUDA is a guess where none is asked for."""
    cuda = ask.cuda or (target.cuda if target is not None else None)
    for package, index in ask.indexes.items():
        if cuda is None and "{cuda_tag}" in (matrix.indexes[index].url or ""):
            message = f"{package} comes from {index}, which is one index for each CUDA release"
            raise InputError(message, hint="say which with --cuda")
    return Target(
        summary="",
        base=request.base_of(ask, matrix),
        cuda=cuda or "0.0",
        arch=ask.arches,
        as_of=ask.as_of or request.tomorrow(),
        pins={wish.package: wish.pin for wish in ask.wishes if wish.pin is not None},
        indexes=dict(ask.indexes),
        flashinfer=Flashinfer(mode="off", reason="not known yet"),
    )


def _ask(
    matrix: Matrix, facts: Facts, demands: Sequence[Demand], cuda: str | None, store: Store
) -> tuple[uv.Chosen, ...]:
    wanted = {demand.package: demand.spec for demand in demands}
    for package, want in matrix.requires.items():
        wanted.setdefault(package, want.spec)
    catalogue, tags = facts.catalogue, facts.catalogue.rules.tags
    fitting = [b.version for b in facts.torches if b.cuda is not None and cuda in (None, b.cuda)]
    held = torch.spec_of(fitting, [b.version for b in facts.torches]) if fitting else "<0"

    def _amend(package: str, version: Version) -> Sequence[str]:
        return constraints.required(facts.learned, package, str(version), wanted)

    try:
        with server.serve(catalogue, _amend) as index, store.scratch() as folder:
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
        near = suggest.targets(matrix, demands, cuda, tags.arch)
        reasons = refusal.of_resolver(str(error))
        raise NoSolution(message, reasons=reasons, nearest=near) from error
    except ImgbuildError:
        if catalogue.failures:  # uv saw an error of the gateway: its cause is what to show
            raise catalogue.failures[0] from None
        raise


def _unless_pinned(gaps: Gaps, pins: Mapping[str, str]) -> Callable[[str, Version], bool]:
    """Whether a version is to be hidden from the resolver: it lies beyond a gap, and not pinned."""

    def _hide(package: str, version: Version) -> bool:
        return not same_version(version, pins.get(package)) and gaps.beyond(package, version)

    return _hide


def warnings(found: Survey, versions: Mapping[str, str]) -> tuple[str, ...]:
    """What of the chosen `versions` fell behind its newest: wishes by months, others by years."""
    catalogue = found.facts.catalogue
    offers = {
        package: offer
        for package, version in versions.items()
        if (offer := catalogue.chosen(package, Version(version))) is not None
    }
    named = {demand.package for demand in found.demands}
    chosen = [item for item in found.chosen if item.package not in named]
    lags = freshness.lags(catalogue, chosen, offers)
    fallen = gaps.fallen(found.facts, found.demands, versions, found.cuda)
    return (*fallen, *map(str, lags))
