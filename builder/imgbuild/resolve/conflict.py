"""Finds the shortest explanation of a conflict.

A resolver's explanation contains every step that the resolver took. This module follows packages
that can have only one version, until no version satisfies two demands. Each step is a fact that
users can check, and the result names the requested package to change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations

import msgspec
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from imgbuild.errors import FetchFailed
from imgbuild.index.catalogue import FileCatalogue
from imgbuild.index.cuda_releases import active_requirements
from imgbuild.index.pages import IndexFile
from imgbuild.matrix.constraints import Constraint
from imgbuild.project.model import exact_version
from imgbuild.solve import refusal
from imgbuild.solve import torch as torches
from imgbuild.solve.torch import READERS, TORCH, TorchBuild
from imgbuild.system.threads import run_for_each
from imgbuild.values import normalize_package
from imgbuild.wheel.local_version import local_version_label

STEPS = 6  # of an explanation


class VersionDemand(msgspec.Struct, frozen=True, kw_only=True):
    """A requirement of `dependent` on versions `spec` of `package`, with its `extras`.

    `dependent` is "" for a requirement of the user. A `learned` requirement is derived from the
    code of the dependent package instead of its METADATA.
    """

    package: str
    spec: str
    words: str
    dependent: str = ""
    learned: bool = False
    extras: tuple[str, ...] = ()


class RequirementConflict(msgspec.Struct, frozen=True, kw_only=True):
    """The reasons why demands contradict each other.

    `requests` are the requested packages that are involved. `cuda` is set if the CUDA release is
    one of the reasons.
    """

    reasons: tuple[str, ...]
    requests: tuple[str, ...]
    package: str
    cuda: bool = False


class PackageFacts:
    """The versions and requirements of packages and the CUDA builds of torch, each read once."""

    def __init__(
        self,
        catalogue: FileCatalogue,
        read: Callable[[IndexFile], bytes],
        learned: Sequence[Constraint],
        torches: Sequence[TorchBuild],
    ) -> None:
        self.catalogue = catalogue
        self.learned = learned
        self.torches = torches
        self._read = read
        self._versions: dict[str, tuple[Version, ...] | None] = {}
        self._requires: dict[tuple[str, Version, frozenset[str]], tuple[VersionDemand, ...]] = {}
        self._fitting: dict[tuple[str, str], tuple[Version, ...]] = {}

    def replace_learned(self, learned: Sequence[Constraint]) -> PackageFacts:
        """Return the same facts with other constraints, without reading files again."""
        facts = PackageFacts(self.catalogue, self._read, learned, self.torches)
        facts._versions, facts._fitting = self._versions, self._fitting
        return facts

    def versions(self, package: str) -> tuple[Version, ...] | None:
        """Return the usable versions of `package`, newest first.

        Return None if its index does not respond.
        """
        if package not in self._versions:
            try:
                offered = {offer.wheel.version for offer in self.catalogue.offered_files(package)}
            except FetchFailed:
                self._versions[package] = None
            else:
                parsed = (version for version in offered if version is not None)
                self._versions[package] = tuple(sorted(parsed, reverse=True))
        return self._versions[package]

    def look_up_pages(self, packages: Iterable[str]) -> None:
        """Read the pages of `packages` in parallel."""
        unread = [package for package in dict.fromkeys(packages) if package not in self._versions]
        run_for_each(unread, lambda package, _: self.versions(package), threads=READERS)

    def read_ahead(self, package: str, versions: Iterable[Version]) -> None:
        """Read METADATA of `versions` in parallel."""
        run_for_each(
            tuple(versions), lambda version, _: self.requires(package, version), threads=READERS
        )

    def allowed_versions(self, package: str, spec: str) -> tuple[Version, ...] | None:
        """Return the versions of `package` that `spec` allows, newest first.

        Return None if the index does not respond.
        """
        versions = self.versions(package)
        if versions is None:
            return None
        if (package, spec) not in self._fitting:
            self._fitting[package, spec] = tuple(SpecifierSet(spec).filter(versions))
        return self._fitting[package, spec]

    def requires(
        self, package: str, version: Version, extras: frozenset[str] = frozenset()
    ) -> tuple[VersionDemand, ...]:
        """Return the requirements of a version according to METADATA and learned constraints."""
        key = (package, version, extras)
        if key not in self._requires:
            self._requires[key] = (
                *_torch_build_demand(package, version),
                *self._declared_demands(package, version, extras),
                *self._learned_demands(package, version),
            )
        return self._requires[key]

    def metadata(self, package: str, version: Version) -> bytes | None:
        """Return METADATA of a version's wheel, or None if the index has no wheel."""
        offer = self.catalogue.chosen(package, version) if self.versions(package) else None
        return None if offer is None or offer.sdist is not None else self._read(offer.wheel)

    def compiled_tag(self, package: str, version: Version) -> str:
        """Return the tag of a version's wheel if it is platform-specific, and "" if it is pure."""
        offer = self.catalogue.chosen(package, version) if self.versions(package) else None
        if offer is None or offer.sdist is not None:
            return ""
        tag = "-".join(offer.wheel.name.removesuffix(".whl").split("-")[-3:])
        return "" if tag.endswith("-any") else tag

    def _declared_demands(
        self, package: str, version: Version, extras: frozenset[str]
    ) -> Iterator[VersionDemand]:
        data = self.metadata(package, version)
        name = f"{package}[{','.join(sorted(extras))}]" if extras else package
        for line in active_requirements(
            data or b"", self.catalogue.rules.tags.markers, sorted(extras)
        ):
            words = f"{name} {version} requires {normalize_package(line.name)}{line.specifier}"
            yield VersionDemand(
                package=normalize_package(line.name),
                spec=str(line.specifier),
                words=f"{words} (its METADATA)",
                dependent=package,
                extras=tuple(sorted(map(normalize_package, line.extras))),
            )

    def _learned_demands(self, package: str, version: Version) -> Iterator[VersionDemand]:
        for entry in self.learned:
            if entry.package == package and entry.restricts_other_for(str(version)):
                yield VersionDemand(
                    package=entry.other,
                    spec=str(entry.spec),
                    words=learned_sentence(entry, str(version)),
                    dependent=package,
                    learned=True,
                )


def learned_sentence(entry: Constraint, version: str) -> str:
    """Return a sentence that states a learned constraint and its evidence."""
    place = f"{entry.file}:{entry.line}" if entry.line else entry.file
    what = {"imports": "imports", "calls": "uses"}.get(entry.check, "has")
    turned = f", added in {entry.other} {entry.came}" if entry.came else ""
    turned = f", removed in {entry.other} {entry.went}" if entry.went else turned
    why = f": {place} {what} {entry.name}{turned}" if place else ""
    return f"{entry.package} {version} needs {entry.needs}{why}"


def window_words(entry: Constraint) -> str:
    """Return a sentence on a version window outside of which a package only warns."""
    return (
        f"{entry.package} {entry.read_in} supports {entry.needs} according to its code"
        f" ({entry.file}:{entry.line})"
    )


def _torch_build_demand(package: str, version: Version) -> Iterator[VersionDemand]:
    tag = local_version_label(str(version))
    if tag.torch:
        words = f"{package} {version} is compiled for torch {tag.torch}, according to its version"
        yield VersionDemand(
            package=TORCH,
            spec=f"=={tag.torch}.*",
            words=f"{words}: a library compiled for one C++ ABI of torch cannot be loaded with"
            " another ABI",
            dependent=package,
        )


class _ConflictSearch:
    def __init__(self, facts: PackageFacts, cuda: str | None) -> None:
        self.facts = facts
        self.cuda = cuda
        self.demands: dict[str, list[VersionDemand]] = {}
        self.fixed: dict[str, tuple[VersionDemand, ...]] = {}
        self._followed: dict[str, frozenset[str]] = {}  # the extras of each fixed package

    def run(self, requests: Iterable[VersionDemand]) -> RequirementConflict | None:
        pending = list(requests)
        ranges: list[VersionDemand] = []
        while pending or ranges:
            if not pending:
                self.facts.look_up_pages(item.package for item in ranges)
                pending, ranges = ranges, []
            demand = pending.pop(0)
            collected = self.demands.setdefault(demand.package, [])
            if demand in collected:
                continue
            collected.append(demand)
            left = self.remaining_versions(demand.package, collected)
            if left is not None and not left:
                return self.minimal_conflict(demand.package)
            exact = [item for item in collected if exact_version(item.spec) is not None]
            extras = frozenset(extra for item in collected for extra in item.extras)
            if self._followed.get(demand.package) == extras:
                continue
            if not (exact or (left and len(left) == 1)):
                continue
            self.fixed.setdefault(demand.package, tuple(exact[:1] or collected))
            self._followed[demand.package] = extras
            version = left[0] if left else Version(exact_version(exact[0].spec) or "0")
            for item in self.facts.requires(demand.package, version, extras):
                first = (
                    item.package == TORCH or item.learned or exact_version(item.spec) is not None
                )
                if first or item.spec or item.extras:
                    (pending if first else ranges).append(item)
            pending.sort(key=lambda item: item.package != TORCH)
        return None

    def run_compiled(self, requests: Iterable[VersionDemand]) -> RequirementConflict | None:
        """Follow only versions with a local part (`+cu124torch2.6`), even if no index has them."""
        pending = []
        for requested in requests:
            pin = exact_version(requested.spec)
            compiled = list(_torch_build_demand(requested.package, Version(pin))) if pin else []
            if compiled:
                self.fixed[requested.package] = (requested,)
                self.demands[requested.package] = [requested]
                pending += compiled
            elif requested.package == TORCH:
                pending.insert(0, requested)
        return self.run(pending) if self.fixed else None

    @property
    def newest_torch(self) -> TorchBuild | None:
        left = (
            self.remaining_versions(TORCH, self.demands[TORCH]) if TORCH in self.demands else None
        )
        return next((b for b in self.facts.torches if left and b.version == left[0]), None)

    def remaining_versions(
        self, package: str, demands: Sequence[VersionDemand]
    ) -> tuple[Version, ...] | None:
        """Return None if the versions are unknown."""
        if package == TORCH and self.facts.torches:
            allowed = tuple(
                b.version
                for b in self.facts.torches
                if b.cuda is not None and self.cuda in (None, b.cuda)
            )
            return tuple(v for v in allowed if all(_spec_allows(d.spec, v) for d in demands))
        return self.facts.allowed_versions(package, ",".join(d.spec for d in demands if d.spec))

    def minimal_conflict(self, package: str) -> RequirementConflict:
        demands = self.demands[package]
        # Between versions first: their conflict is more specific than one with a CUDA release.
        core = next(
            (
                group
                for cuda in (None, self.cuda)
                for size in (1, 2, 3)
                for group in combinations(demands, size)
                if not _ConflictSearch(self.facts, cuda).remaining_versions(package, group)
            ),
            tuple(demands),
        )
        steps: dict[str, None] = {}
        requests: dict[str, None] = {}
        for demand in core:
            self._leading_steps(demand, steps, requests, set())
        reasons = [*steps, *self._final_reasons(package, core)]
        of_cuda = package == TORCH and any(
            _all_allow(core, build.version) for build in self.facts.torches
        )
        shown = reasons if len(reasons) <= STEPS else [*reasons[: STEPS - 3], *reasons[-3:]]
        return RequirementConflict(
            reasons=tuple(shown), requests=tuple(requests), package=package, cuda=of_cuda
        )

    def _leading_steps(
        self,
        demand: VersionDemand,
        steps: dict[str, None],
        requests: dict[str, None],
        seen: set[str],
    ) -> None:
        if not demand.dependent:
            requests[demand.package] = None
        elif demand.dependent not in seen:
            seen.add(demand.dependent)
            for before in self.fixed.get(demand.dependent, ()):
                self._leading_steps(before, steps, requests, seen)
        steps[demand.words] = None

    def _final_reasons(self, package: str, core: Sequence[VersionDemand]) -> list[str]:
        catalogue = self.facts.catalogue
        spec = ",".join(demand.spec for demand in core if demand.spec)
        pin = exact_version(spec)
        if len(core) == 1 and pin is None and "==" in spec and "*" not in spec:
            return [f"no version of {package} satisfies {spec}"]
        if package == TORCH and self.facts.torches:
            return self._last_torch(core)
        versions = self.facts.versions(package)
        if pin is not None and (reason := refusal.pin_refusal(catalogue, package, pin)):
            return [reason]
        if not versions:
            return [f"{package}: {refusal.package_refusal(catalogue, package)}"]
        if len(core) == 1:
            return [refusal.range_refusal(catalogue, package, spec)]
        return []

    def _last_torch(self, core: Sequence[VersionDemand]) -> list[str]:
        arch = self.facts.catalogue.rules.tags.arch.wheel
        meant = [build for build in self.facts.torches if _all_allow(core, build.version)]
        has = f"torch on {arch}: {torches.cuda_summary(self.facts.torches)}"
        if len(meant) == 1:
            lines = [f"{meant[0]} on {arch}"]
            return [*lines, has] if meant[0].cuda is None else lines
        if meant:
            suffix = f" for CUDA {self.cuda}" if self.cuda else " for any CUDA"
            return [f"none of these torch versions is built{suffix}", has]
        if len(core) > 1:
            return [text for text in map(self._abi_reason, core) if text]
        pin = exact_version(core[0].spec)
        reason = refusal.pin_refusal(self.facts.catalogue, TORCH, pin) if pin else None
        return [reason or has]

    def _abi_reason(self, demand: VersionDemand) -> str:
        """Return "" if `demand` is not exact or its dependent is a pure wheel."""
        left = (
            self.remaining_versions(demand.dependent, self.demands.get(demand.dependent, ()))
            if demand.dependent
            else ()
        )
        if not left or exact_version(demand.spec) is None:
            return ""
        tag = self.facts.compiled_tag(demand.dependent, left[0])
        return (
            f"{demand.dependent} {left[0]} is compiled ({tag}): with a torch other than the one it"
            " requires, it may lack symbols of torch's C++ ABI"
            if tag
            else ""
        )


def find_conflict(
    facts: PackageFacts, requests: Iterable[VersionDemand], cuda: str | None, *, row: str = ""
) -> RequirementConflict | None:
    """Return the first contradiction in `requests` for the CUDA release `cuda`, or None.

    If `cuda` is None, any release is possible. If the CUDA release is involved, another
    contradiction that does not involve it is added. `row` is the target of the matrix that sets the
    CUDA release, or "" if the user sets it.
    """
    demands = tuple(requests)
    clash = _ConflictSearch(facts, cuda).run_compiled(demands) or _ConflictSearch(facts, cuda).run(
        demands
    )
    if cuda is not None and facts.torches and all(build.cuda != cuda for build in facts.torches):
        return _unknown_cuda(facts, demands, cuda, clash)
    if clash is None or not clash.cuda or cuda is None:
        return clash
    general = _ConflictSearch(facts, None).run(demands)
    reasons = (_cuda_reason(cuda, row), *clash.reasons, *(general.reasons if general else ()))
    return msgspec.structs.replace(clash, reasons=tuple(dict.fromkeys(reasons)))


def _cuda_reason(cuda: str, row: str) -> str:
    return f"the target {row} is for CUDA {cuda}" if row else f"you require CUDA {cuda}"


def _unknown_cuda(
    facts: PackageFacts,
    requests: Iterable[VersionDemand],
    cuda: str,
    clash: RequirementConflict | None,
) -> RequirementConflict:
    arch = facts.catalogue.rules.tags.arch.wheel
    has = f"no torch on {arch} is built for CUDA {cuda}: {torches.cuda_summary(facts.torches)}"
    pins = exact_requests(requests).items()
    lacking = (refusal.pin_refusal(facts.catalogue, package, pin) for package, pin in pins)
    more = [reason for reason in lacking if reason is not None]
    pinned = [
        b for b in facts.torches if _spec_allows(f"=={dict(pins).get(TORCH, '0')}", b.version)
    ]
    reasons = [*(f"{build} on {arch}" for build in pinned), has, *more]
    requests_of = clash.requests if clash is not None else tuple(item.package for item in requests)
    return RequirementConflict(
        reasons=tuple(reasons[:STEPS]), requests=requests_of, package=TORCH, cuda=True
    )


def newest_torch(
    facts: PackageFacts, requests: Iterable[VersionDemand], cuda: str | None
) -> TorchBuild | None:
    """Return the newest torch that `requests` allow, or None if they do not include torch."""
    search = _ConflictSearch(facts, cuda)
    search.run(tuple(requests))
    return search.newest_torch


def user_demand(
    package: str, spec: str, words: str | None = None, extras: tuple[str, ...] = ()
) -> VersionDemand:
    """Return a demand of the user."""
    words = words or f"you require {package}{spec}"
    return VersionDemand(package=package, spec=spec, words=words, extras=extras)


def _spec_allows(spec: str, version: Version) -> bool:
    return SpecifierSet(spec).contains(version, prereleases=True)


def _all_allow(demands: Iterable[VersionDemand], version: Version) -> bool:
    return all(_spec_allows(demand.spec, version) for demand in demands)


def exact_requests(requests: Iterable[VersionDemand]) -> Mapping[str, str]:
    """Map each package that is requested in one exact version to this version."""
    return {item.package: pin for item in requests if (pin := exact_version(item.spec)) is not None}
