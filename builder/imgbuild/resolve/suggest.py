"""Suggestions: similar requests without a conflict, found by changing one package at a time.

Each is checked by the same facts as the original, as far as the conflict was followed; a suggestion
says which code was not read for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from imgbuild.matrix import near
from imgbuild.matrix.constraints import Constraint
from imgbuild.matrix.model import Matrix
from imgbuild.resolve import conflict
from imgbuild.resolve.conflict import Demand, PackageFacts, RequirementConflict
from imgbuild.solve import refusal
from imgbuild.solve.torch import TORCH, TorchBuild
from imgbuild.values import Arch

TRIED = 96  # versions on each side
AT_ONCE = 16
ROUNDS = 6  # of what the code of a near world teaches
SHOWN = 4  # worlds that are told
UNREAD = "by METADATA; its code was not looked at"


class QuickLook(msgspec.Struct, frozen=True, kw_only=True):
    """What the code of packages says of each other at some versions.

    `clashes`: they do not get along, and `taught` is what follows from that: perhaps nothing.
    `read` are the packages whose code was read.
    """

    clashes: bool = False
    taught: tuple[Constraint, ...] = ()
    read: frozenset[str] = frozenset()


Check = Callable[[Mapping[str, str]], QuickLook]
Key = frozenset[tuple[str, str]]


class Suggestions:
    """Looks for worlds near to contradicting wishes; what `check` teaches is heeded from then on.

    `kept` are packages whose versions are not to be changed.
    """

    def __init__(
        self,
        facts: PackageFacts,
        wishes: Sequence[Demand],
        found: RequirementConflict,
        check: Check,
        kept: Sequence[str],
    ) -> None:
        self.facts = facts
        self.wishes = tuple(wishes)
        self.found = found
        self.check = check
        self.kept = kept
        self.clashing: set[Key] = set()  # wishes whose code does not get along

    def worlds(self, cuda: str | None) -> tuple[str, ...]:
        """Worlds that differ in one wish, those of the same CUDA first; else in more of them."""
        changeable = [
            wish
            for wish in self.wishes
            if wish.package in self.found.wishes and wish.package not in self.kept and wish.spec
        ]
        near = [text for wish in changeable for text in self._neighbours(wish, cuda)]
        if cuda is not None and (self.found.cuda or not near):
            near += self._other_cuda(cuda)
        if cuda is not None and not near:
            near = [text for wish in changeable for text in self._neighbours(wish, None)]
        near = near or self._several()
        return tuple(near[:SHOWN])

    def _neighbours(self, wish: Demand, cuda: str | None) -> Iterator[str]:
        """The next older and the next newer version of `wish`'s package with which all is well."""
        for side in _sides(self.facts, wish, self.found):
            for _ in range(ROUNDS):
                fits = self._first(wish, side[:TRIED], cuda)
                if fits is None:
                    break
                changed = _changed(self.wishes, wish, fits)
                read = self._get_along(changed)
                if read is not None:
                    yield self._told(f"{wish.package} {fits}", changed, cuda, read)
                    break

    def _other_cuda(self, cuda: str) -> list[str]:
        """The same wishes on the next CUDA release, if that is all that has to change."""
        others = {build.cuda for build in self.facts.torches if build.cuda not in (None, cuda)}
        for other in sorted(filter(None, others), key=lambda text: _apart(text, cuda)):
            if conflict.conflict(self.facts, self.wishes, other) is None:
                read = self._get_along(self.wishes)
                if read is None:
                    return []  # on no release, since their code is the same on each
                return [self._told(f"CUDA {other} in place of {cuda}", self.wishes, other, read)]
        return []

    def _several(self) -> list[str]:
        """One world in which several wishes are changed, one after the other, on any CUDA."""
        for _ in range(ROUNDS):
            moved = self._moved()
            if not moved:
                break
            changed = list(self.wishes)
            for wish, version in moved:
                changed = _changed(changed, wish, version)
            read = self._get_along(changed)
            if read is not None:
                text = " and ".join(f"{wish.package} {version}" for wish, version in moved)
                return [self._told(text, changed, None, read)]
        return []

    def _get_along(self, wishes: Sequence[Demand]) -> frozenset[str] | None:
        """The packages whose code was read; None if it is against what `wishes` pin.

        What it teaches is heeded, and these wishes are tried no more, whether it teaches or not.
        """
        look = self.check(conflict.pins_of(wishes))
        if not look.clashes:
            return look.read
        self.clashing.add(_key(wishes))
        if look.taught:
            self.facts = self.facts.knowing((*self.facts.learned, *look.taught))
        return None

    def _told(
        self, world: str, wishes: Sequence[Demand], cuda: str | None, read: frozenset[str]
    ) -> str:
        """A world in words: its torch, and what was not read of the packages that are named."""
        text = _with_torch(world, conflict.torch_of(self.facts, wishes, cuda))
        unread = [w.package for w in wishes if w.package not in read and w.package != TORCH]
        if not unread:
            return text
        partly = f"the code of {', '.join(unread)} was not looked at"
        return f"{text} ({partly if read else UNREAD})"

    def _first(self, wish: Demand, side: Sequence[Version], cuda: str | None) -> Version | None:
        for start in range(0, len(side), AT_ONCE):
            some = side[start : start + AT_ONCE]
            self.facts.read_ahead(wish.package, some)
            for version in some:
                changed = _changed(self.wishes, wish, version)
                if _key(changed) in self.clashing:
                    continue
                if conflict.conflict(self.facts, changed, cuda) is None:
                    return version
        return None

    def _moved(self) -> list[tuple[Demand, Version]]:
        """Wishes and the versions to change them to, in turn; empty if that is no way."""
        changed, moved = list(self.wishes), list[tuple[Demand, Version]]()
        while (now := conflict.conflict(self.facts, changed, None)) is not None:
            done = [wish.package for wish, _ in moved]
            step = self._step(changed, now, [*self.kept, *done])
            if step is None:
                return []
            changed = _changed(changed, *step)
            moved.append(step)
        return moved

    def _step(
        self, wishes: Sequence[Demand], found: RequirementConflict, kept: Sequence[str]
    ) -> tuple[Demand, Version] | None:
        """A wish of the conflict and its nearest version that takes no part in it any more."""
        for wish in wishes:
            if wish.package not in found.wishes or wish.package in kept or not wish.spec:
                continue
            for side in _sides(self.facts, wish, found, newer_first=True):
                for version in side[:TRIED]:
                    changed = _changed(wishes, wish, version)
                    if _key(changed) in self.clashing:
                        continue
                    after = conflict.conflict(self.facts, changed, None)
                    if after is None or wish.package not in after.wishes:
                        return wish, version
        return None


def _sides(
    facts: PackageFacts, wish: Demand, found: RequirementConflict, *, newer_first: bool = False
) -> list[list[Version]]:
    """The versions that `wish` leaves out, older and newer than it names, each nearest first.

    Where its own files are what is lacking, an older version must be near in time too.
    """
    versions = facts.versions(wish.package)
    if not versions:
        return []
    spec, pivot = SpecifierSet(wish.spec), _pivot(wish.spec)
    if found.package == wish.package:
        versions = tuple(refusal.in_reach(facts.catalogue, wish.package, pivot))
    final = {v for v in versions if not v.is_prerelease and not spec.contains(v)}
    older = sorted((v for v in final if v < pivot), reverse=True)
    newer = sorted(v for v in final if v > pivot)
    return [newer, older] if newer_first else [older, newer]


def _changed(wishes: Sequence[Demand], wish: Demand, version: Version) -> list[Demand]:
    other = conflict.demand(wish.package, f"=={version}")
    return [other if item == wish else item for item in wishes]


def _key(wishes: Iterable[Demand]) -> Key:
    return frozenset((wish.package, wish.spec) for wish in wishes)


def _with_torch(world: str, torch: TorchBuild | None) -> str:
    if torch is None or torch.cuda is None:
        return world
    own = f"torch {torch.version}"
    return (
        f"{world} for CUDA {torch.cuda}"
        if world == own
        else f"{world}, with {own} for CUDA {torch.cuda}"
    )


def _pivot(spec: str) -> Version:
    return min(Version(item.version.removesuffix(".*")) for item in SpecifierSet(spec))


def _apart(cuda: str, other: str) -> int:
    return abs(_number(cuda) - _number(other))


def _number(cuda: str) -> int:
    major, minor = cuda.split(".")
    return int(major) * 100 + int(minor)


def targets(
    matrix: Matrix, wishes: Sequence[Demand], cuda: str | None, arch: Arch, *, apart_from: str = ""
) -> tuple[str, ...]:
    """The target of the matrix on `arch` that has most of what is wished for, in words."""
    specs = {wish.package: wish.spec for wish in wishes}
    found = near.ranked(matrix, specs, cuda, arch, apart_from=apart_from)
    return tuple(near.words(matrix, name, arch) for name in found[:1])
