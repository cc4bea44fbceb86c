"""Finds the shortest explanation of a conflict.

A resolver's derivation has as many steps as the resolver took. This module follows packages that
can have only one version until no version satisfies two demands. Each step is a fact that users can
check, and the result names the requested package to change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations

import msgspec
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from imgbuild.errors import FetchFailed
from imgbuild.index.catalogue import Catalogue
from imgbuild.index.cuda_releases import active
from imgbuild.index.pages import IndexFile
from imgbuild.matrix.constraints import Constraint
from imgbuild.solve import refusal
from imgbuild.solve import torch as torches
from imgbuild.solve.torch import READERS, TORCH, TorchBuild
from imgbuild.system.threads import each
from imgbuild.values import normalize
from imgbuild.wheel.local_version import local_version_label

STEPS = 6  # of an explanation


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """A requirement of `dependent` for a version of `package` in `spec`.

    `dependent` is "" for a requirement of the user. `learned`: not declared by the dependent
    package, but derived from its code. The requirements of the package's `extras` are included.
    """

    package: str
    spec: str
    words: str
    dependent: str = ""
    learned: bool = False
    extras: tuple[str, ...] = ()


class RequirementConflict(msgspec.Struct, frozen=True, kw_only=True):
    """The reasons why demands contradict each other; `requests` are the packages involved.

    `cuda`: the CUDA release is one of the reasons.
    """

    reasons: tuple[str, ...]
    requests: tuple[str, ...]
    package: str
    cuda: bool = False


class PackageFacts:
    """Facts about packages, each read once: available versions, requirements, torch's CUDA."""

    def __init__(
        self,
        catalogue: Catalogue,
        read: Callable[[IndexFile], bytes],
        learned: Sequence[Constraint],
        torches: Sequence[TorchBuild],
    ) -> None:
        self.catalogue = catalogue
        self.learned = learned
        self.torches = torches
        self._read = read
        self._versions: dict[str, tuple[Version, ...] | None] = {}
        self._requires: dict[tuple[str, Version, frozenset[str]], tuple[Demand, ...]] = {}
        self._fitting: dict[tuple[str, str], tuple[Version, ...]] = {}

    def with_learned(self, learned: Sequence[Constraint]) -> PackageFacts:
        """The same facts with other `learned` constraints; nothing is read twice."""
        facts = PackageFacts(self.catalogue, self._read, learned, self.torches)
        facts._versions, facts._fitting = self._versions, self._fitting
        return facts

    def versions(self, package: str) -> tuple[Version, ...] | None:
        """The usable versions of `package`, newest first; None if its index does not respond."""
        if package not in self._versions:
            try:
                offered = {offer.wheel.version for offer in self.catalogue.offers(package)}
            except FetchFailed:
                self._versions[package] = None
            else:
                parsed = (version for version in offered if version is not None)
                self._versions[package] = tuple(sorted(parsed, reverse=True))
        return self._versions[package]

    def look_up(self, packages: Iterable[str]) -> None:
        """Read the pages of `packages` in parallel."""
        unread = [package for package in dict.fromkeys(packages) if package not in self._versions]
        each(unread, lambda package, _: self.versions(package), threads=READERS)

    def read_ahead(self, package: str, versions: Iterable[Version]) -> None:
        """Read METADATA of these versions in parallel."""
        each(tuple(versions), lambda version, _: self.requires(package, version), threads=READERS)

    def fitting(self, package: str, spec: str) -> tuple[Version, ...] | None:
        """The versions that `spec` allows, newest first; None if the index does not respond."""
        versions = self.versions(package)
        if versions is None:
            return None
        if (package, spec) not in self._fitting:
            self._fitting[package, spec] = tuple(SpecifierSet(spec).filter(versions))
        return self._fitting[package, spec]

    def requires(
        self, package: str, version: Version, extras: frozenset[str] = frozenset()
    ) -> tuple[Demand, ...]:
        """The requirements of `package` at `version`, from METADATA and learned constraints."""
        key = (package, version, extras)
        if key not in self._requires:
            self._requires[key] = (
                *_compiled_for(package, version),
                *self._declared(package, version, extras),
                *self._learned(package, version),
            )
        return self._requires[key]

    def metadata(self, package: str, version: Version) -> bytes | None:
        """METADATA of the wheel of a version; None if the index has no such wheel."""
        offer = self.catalogue.chosen(package, version) if self.versions(package) else None
        return None if offer is None or offer.sdist is not None else self._read(offer.wheel)

    def compiled_tag(self, package: str, version: Version) -> str:
        """The tag of the wheel of a version, if it is for one platform; "" for a pure one."""
        offer = self.catalogue.chosen(package, version) if self.versions(package) else None
        if offer is None or offer.sdist is not None:
            return ""
        tag = "-".join(offer.wheel.name.removesuffix(".whl").split("-")[-3:])
        return "" if tag.endswith("-any") else tag

    def _declared(self, package: str, version: Version, extras: frozenset[str]) -> Iterator[Demand]:
        data = self.metadata(package, version)
        name = f"{package}[{','.join(sorted(extras))}]" if extras else package
        for line in active(data or b"", self.catalogue.rules.tags.markers, sorted(extras)):
            words = f"{name} {version} requires {normalize(line.name)}{line.specifier}"
            yield Demand(
                package=normalize(line.name),
                spec=str(line.specifier),
                words=f"{words} (its METADATA)",
                dependent=package,
                extras=tuple(sorted(map(normalize, line.extras))),
            )

    def _learned(self, package: str, version: Version) -> Iterator[Demand]:
        for entry in self.learned:
            if entry.package == package and entry.covers(str(version)):
                yield Demand(
                    package=entry.other,
                    spec=str(entry.spec),
                    words=learned_words(entry, str(version)),
                    dependent=package,
                    learned=True,
                )


def learned_words(entry: Constraint, version: str) -> str:
    """A learned constraint as a sentence with its evidence."""
    place = f"{entry.file}:{entry.line}" if entry.line else entry.file
    what = {"imports": "imports", "calls": "uses"}.get(entry.check, "has")
    turned = f", added in {entry.other} {entry.came}" if entry.came else ""
    turned = f", removed in {entry.other} {entry.went}" if entry.went else turned
    why = f": {place} {what} {entry.name}{turned}" if place else ""
    return f"{entry.package} {version} needs {entry.needs}{why}"


def window_words(entry: Constraint) -> str:
    """A version window outside of which a package only warns, as a sentence."""
    return (
        f"{entry.package} {entry.read_in} supports {entry.needs} according to its code"
        f" ({entry.file}:{entry.line})"
    )


def _compiled_for(package: str, version: Version) -> Iterator[Demand]:
    """The demand on torch of a wheel whose version names the torch that it is compiled for."""
    tag = local_version_label(str(version))
    if tag.torch:
        words = f"{package} {version} is compiled for torch {tag.torch}, according to its version"
        yield Demand(
            package=TORCH,
            spec=f"=={tag.torch}.*",
            words=f"{words}: a library compiled for one C++ ABI of torch lacks symbols with"
            " another",
            dependent=package,
        )


class _Search:
    """Follows demands that leave one version; `fixed` are those demands."""

    def __init__(self, facts: PackageFacts, cuda: str | None) -> None:
        self.facts = facts
        self.cuda = cuda
        self.demands: dict[str, list[Demand]] = {}
        self.fixed: dict[str, tuple[Demand, ...]] = {}
        self._followed: dict[str, frozenset[str]] = {}  # the extras of each fixed package

    def run(self, requests: Iterable[Demand]) -> RequirementConflict | None:
        """Follow exact demands and those on torch first, because they explain most; then ranges."""
        pending = list(requests)
        ranges: list[Demand] = []
        while pending or ranges:
            if not pending:
                self.facts.look_up(item.package for item in ranges)
                pending, ranges = ranges, []
            demand = pending.pop(0)
            collected = self.demands.setdefault(demand.package, [])
            if demand in collected:
                continue
            collected.append(demand)
            left = self.left(demand.package, collected)
            if left is not None and not left:
                return self.conflict(demand.package)
            exact = [item for item in collected if _exact(item.spec) is not None]
            extras = frozenset(extra for item in collected for extra in item.extras)
            if self._followed.get(demand.package) == extras:
                continue
            if not (exact or (left and len(left) == 1)):
                continue
            self.fixed.setdefault(demand.package, tuple(exact[:1] or collected))
            self._followed[demand.package] = extras
            version = left[0] if left else Version(_exact(exact[0].spec) or "0")
            for item in self.facts.requires(demand.package, version, extras):
                first = item.package == TORCH or item.learned or _exact(item.spec) is not None
                if first or item.spec or item.extras:
                    (pending if first else ranges).append(item)
            pending.sort(key=lambda item: item.package != TORCH)
        return None

    def run_compiled(self, requests: Iterable[Demand]) -> RequirementConflict | None:
        """Follow only local versions (`+cu124torch2.6`), even if no index has them."""
        pending = []
        for requested in requests:
            pin = _exact(requested.spec)
            compiled = list(_compiled_for(requested.package, Version(pin))) if pin else []
            if compiled:
                self.fixed[requested.package] = (requested,)
                self.demands[requested.package] = [requested]
                pending += compiled
            elif requested.package == TORCH:
                pending.insert(0, requested)
        return self.run(pending) if self.fixed else None

    @property
    def torch(self) -> TorchBuild | None:
        """The newest torch that the demands allow; None if none of them is on torch."""
        left = self.left(TORCH, self.demands[TORCH]) if TORCH in self.demands else None
        return next((b for b in self.facts.torches if left and b.version == left[0]), None)

    def left(self, package: str, demands: Sequence[Demand]) -> tuple[Version, ...] | None:
        """The versions that all demands allow; None if this cannot be determined."""
        if package == TORCH and self.facts.torches:
            allowed = tuple(b.version for b in self.facts.torches if self._fits(b))
            return tuple(v for v in allowed if all(_allows(d.spec, v) for d in demands))
        return self.facts.fitting(package, ",".join(d.spec for d in demands if d.spec))

    def _fits(self, build: TorchBuild) -> bool:
        return build.cuda is not None and self.cuda in (None, build.cuda)

    def conflict(self, package: str) -> RequirementConflict:
        """The fewest demands on `package` that exclude every version, with their causes."""
        demands = self.demands[package]
        # Between versions first: their conflict is more specific than one with a CUDA release.
        core = next(
            (
                group
                for cuda in (None, self.cuda)
                for size in (1, 2, 3)
                for group in combinations(demands, size)
                if not _Search(self.facts, cuda).left(package, group)
            ),
            tuple(demands),
        )
        steps: dict[str, None] = {}
        requests: dict[str, None] = {}
        for demand in core:
            self._lead(demand, steps, requests, set())
        reasons = [*steps, *self._last(package, core)]
        of_cuda = package == TORCH and any(
            _allows_all(core, build.version) for build in self.facts.torches
        )
        shown = reasons if len(reasons) <= STEPS else [*reasons[: STEPS - 3], *reasons[-3:]]
        return RequirementConflict(
            reasons=tuple(shown), requests=tuple(requests), package=package, cuda=of_cuda
        )

    def _lead(
        self, demand: Demand, steps: dict[str, None], requests: dict[str, None], seen: set[str]
    ) -> None:
        if not demand.dependent:
            requests[demand.package] = None
        elif demand.dependent not in seen:
            seen.add(demand.dependent)
            for before in self.fixed.get(demand.dependent, ()):
                self._lead(before, steps, requests, seen)
        steps[demand.words] = None

    def _last(self, package: str, core: Sequence[Demand]) -> list[str]:
        """The last reasons, which name the versions of `package` that exist."""
        catalogue = self.facts.catalogue
        spec = ",".join(demand.spec for demand in core if demand.spec)
        pin = _exact(spec)
        if package == TORCH and self.facts.torches:
            return self._last_torch(core)
        versions = self.facts.versions(package)
        if pin is not None and (reason := refusal.of_pin(catalogue, package, pin)):
            return [reason]
        if not versions:
            return [f"{package}: {refusal.of_package(catalogue, package)}"]
        if len(core) == 1:
            return [refusal.of_range(catalogue, package, spec)]
        return []

    def _last_torch(self, core: Sequence[Demand]) -> list[str]:
        arch = self.facts.catalogue.rules.tags.arch.wheel
        meant = [build for build in self.facts.torches if _allows_all(core, build.version)]
        has = f"torch on {arch}: {torches.summary(self.facts.torches)}"
        if len(meant) == 1:
            lines = [f"{meant[0]} on {arch}"]
            return [*lines, has] if meant[0].cuda is None else lines
        if meant:
            suffix = f" for CUDA {self.cuda}" if self.cuda else " for any CUDA"
            return [f"none of these is built{suffix}", has]
        if len(core) > 1:
            return [text for text in map(self._abi_reason, core) if text]
        pin = _exact(core[0].spec)
        reason = refusal.of_pin(self.facts.catalogue, TORCH, pin) if pin else None
        return [reason or has]

    def _abi_reason(self, demand: Demand) -> str:
        """The reason why a compiled package requires exactly one torch; "" for another `demand`."""
        left = (
            self.left(demand.dependent, self.demands.get(demand.dependent, ()))
            if demand.dependent
            else ()
        )
        if not left or _exact(demand.spec) is None:
            return ""
        tag = self.facts.compiled_tag(demand.dependent, left[0])
        return (
            f"{demand.dependent} {left[0]} is compiled ({tag}): with another torch than the one it"
            " requires, it may lack symbols of torch's C++ ABI"
            if tag
            else ""
        )


def conflict(
    facts: PackageFacts, requests: Iterable[Demand], cuda: str | None, *, row: str = ""
) -> RequirementConflict | None:
    """The first contradiction of `requests` on CUDA `cuda` (None for any release), or None.

    `row` is the target of the matrix that sets the CUDA release, "" if the user does.
    """
    demands = tuple(requests)
    clash = _Search(facts, cuda).run_compiled(demands) or _Search(facts, cuda).run(demands)
    if cuda is not None and facts.torches and all(build.cuda != cuda for build in facts.torches):
        return _unknown_cuda(facts, demands, cuda, clash)
    if clash is None or not clash.cuda or cuda is None:
        return clash
    return msgspec.structs.replace(clash, reasons=(_cuda_reason(cuda, row), *clash.reasons))


def _cuda_reason(cuda: str, row: str) -> str:
    return f"the target {row} is for CUDA {cuda}" if row else f"you require CUDA {cuda}"


def _unknown_cuda(
    facts: PackageFacts, requests: Iterable[Demand], cuda: str, clash: RequirementConflict | None
) -> RequirementConflict:
    """The conflict if no torch is built for the CUDA release, with other contradictions."""
    arch = facts.catalogue.rules.tags.arch.wheel
    has = f"no torch on {arch} is built for CUDA {cuda}: {torches.summary(facts.torches)}"
    pins = pins_of(requests).items()
    lacking = (refusal.of_pin(facts.catalogue, package, pin) for package, pin in pins)
    more = [reason for reason in lacking if reason is not None]
    pinned = [b for b in facts.torches if _allows(f"=={dict(pins).get(TORCH, '0')}", b.version)]
    reasons = [*(f"{build} on {arch}" for build in pinned), has, *more]
    requests_of = clash.requests if clash is not None else tuple(item.package for item in requests)
    return RequirementConflict(
        reasons=tuple(reasons[:STEPS]), requests=requests_of, package=TORCH, cuda=True
    )


def torch_of(
    facts: PackageFacts, requests: Iterable[Demand], cuda: str | None
) -> TorchBuild | None:
    """The newest torch that `requests` without a conflict allow; None without torch."""
    search = _Search(facts, cuda)
    search.run(tuple(requests))
    return search.torch


def demand(
    package: str, spec: str, words: str | None = None, extras: tuple[str, ...] = ()
) -> Demand:
    """A request of the user."""
    words = words or f"you require {package}{spec}"
    return Demand(package=package, spec=spec, words=words, extras=extras)


def _exact(spec: str) -> str | None:
    """The one version of a specifier such as `==2.6.0`; None for any other."""
    if spec.startswith("==") and not spec.startswith("===") and "," not in spec and "*" not in spec:
        return spec.removeprefix("==").strip()
    return None


def _allows(spec: str, version: Version) -> bool:
    return SpecifierSet(spec).contains(version, prereleases=True)


def _allows_all(demands: Iterable[Demand], version: Version) -> bool:
    return all(_allows(demand.spec, version) for demand in demands)


def pins_of(requests: Iterable[Demand]) -> Mapping[str, str]:
    """Package → version, for the requests of an exact version."""
    return {item.package: pin for item in requests if (pin := _exact(item.spec)) is not None}
