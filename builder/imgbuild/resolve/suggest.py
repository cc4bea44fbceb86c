"""Suggests similar requests without a conflict.

A suggestion changes one package, or else several. It is checked with the same facts as the original
request, and lists the packages whose code was not read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from imgbuild.matrix import near
from imgbuild.matrix.constraints import Constraint
from imgbuild.matrix.model import Matrix
from imgbuild.resolve import conflict
from imgbuild.resolve.conflict import PackageFacts, RequirementConflict, VersionDemand
from imgbuild.solve import refusal
from imgbuild.solve.torch import TORCH, TorchBuild
from imgbuild.values import Arch

TRIED_LIMIT = 96  # versions on each side
THREADS = 16
ROUNDS = 6  # of learning from the code of a suggestion
SHOWN_SUGGESTIONS = 4  # suggestions
UNREAD_NOTE = "according to METADATA; its code was not read"


class QuickLook(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a quick audit of packages at given versions.

    `clashes` means that the packages are incompatible, `learned` contains the resulting
    constraints, if any, and `read` the packages whose code was read.
    """

    clashes: bool = False
    learned: tuple[Constraint, ...] = ()
    read: frozenset[str] = frozenset()


CheckVersions = Callable[[Mapping[str, str]], QuickLook]
RequestKey = frozenset[tuple[str, str]]


class SuggestionSearch:
    """Finds package sets similar to requests that contradict each other.

    `retained` are packages whose versions should not change. Constraints in the results of `check`
    are learned.
    """

    def __init__(
        self,
        facts: PackageFacts,
        requests: Sequence[VersionDemand],
        clash: RequirementConflict,
        check: CheckVersions,
        retained: Sequence[str],
    ) -> None:
        self.facts = facts
        self.requests = tuple(requests)
        self.found = clash
        self.check = check
        self.kept = retained
        self.clashing: set[RequestKey] = set()  # requests whose code is incompatible
        self.cuda: str | None = None  # a release on which the same requests have a solution

    def find_suggestions(self, cuda: str | None) -> tuple[str, ...]:
        """Return suggestions that change one request, or else several requests.

        Changes of the CUDA release come last.
        """
        changeable = [
            requested
            for requested in self.requests
            if requested.package in self.found.requests
            and requested.package not in self.kept
            and requested.spec
        ]
        near = self._nearest_suggestions(changeable, cuda)
        if cuda is not None and (self.found.cuda or not near):
            near += self._other_cuda(cuda)
        if cuda is not None and not near:
            near = self._nearest_suggestions(changeable, None)
        near = near or self._several_changes()
        return tuple(near[:SHOWN_SUGGESTIONS])

    def _nearest_suggestions(
        self, changeable: Sequence[VersionDemand], cuda: str | None
    ) -> list[str]:
        both = [self._neighbours(requested, cuda) for requested in changeable]
        return [texts[side] for side in (0, 1) for texts in both if texts[side]]

    def _neighbours(self, requested: VersionDemand, cuda: str | None) -> tuple[str, str]:
        """Return the next newer and the next older version without a conflict, as text.

        An older version is omitted if it is more releases away than the newer one, because it
        usually fits only because it declares fewer requirements.
        """
        newer, older = _sides(self.facts, requested, self.found)
        text, distance = self._neighbour(requested, newer[:TRIED_LIMIT], cuda)
        near = older[: distance or TRIED_LIMIT]
        return text, self._neighbour(requested, near, cuda)[0]

    def _neighbour(
        self, requested: VersionDemand, side: Sequence[Version], cuda: str | None
    ) -> tuple[str, int]:
        """Return the first version in `side` without a conflict, and its position (from 1).

        Return "" and 0 if there is none.
        """
        for _ in range(ROUNDS):
            fits = self._first_without_conflict(requested, side, cuda)
            if fits is None:
                break
            changed = _change_request(self.requests, requested, fits)
            read = self._compatible_code(changed)
            if read is not None:
                text = self._suggestion_text(f"{requested.package} {fits}", changed, cuda, read)
                return text, side.index(fits) + 1
        return "", 0

    def _other_cuda(self, cuda: str) -> list[str]:
        others = {build.cuda for build in self.facts.torches if build.cuda not in (None, cuda)}
        for other in sorted(filter(None, others), key=lambda text: _release_distance(text, cuda)):
            if conflict.find_conflict(self.facts, self.requests, other) is None:
                read = self._compatible_code(self.requests)
                if read is None:
                    return []  # on no release, since their code is the same on each
                self.cuda = other
                return [
                    self._suggestion_text(
                        f"CUDA {other} instead of {cuda}", self.requests, other, read
                    )
                ]
        return []

    def _several_changes(self) -> list[str]:
        for _ in range(ROUNDS):
            moved = self._moved_requests()
            if not moved:
                break
            changed = list(self.requests)
            for requested, version in moved:
                changed = _change_request(changed, requested, version)
            read = self._compatible_code(changed)
            if read is not None:
                text = " and ".join(
                    f"{requested.package} {version}" for requested, version in moved
                )
                return [self._suggestion_text(text, changed, None, read)]
        return []

    def _compatible_code(self, requests: Sequence[VersionDemand]) -> frozenset[str] | None:
        """Return the packages whose code was read, or None if it contradicts pins in `requests`."""
        look = self.check(conflict.exact_requests(requests))
        if not look.clashes:
            return look.read
        self.clashing.add(_key(requests))
        if look.learned:
            self.facts = self.facts.replace_learned((*self.facts.learned, *look.learned))
        return None

    def _suggestion_text(
        self,
        summary: str,
        requests: Sequence[VersionDemand],
        cuda: str | None,
        read: frozenset[str],
    ) -> str:
        text = _add_torch(summary, conflict.newest_torch(self.facts, requests, cuda))
        unread = [w.package for w in requests if w.package not in read and w.package != TORCH]
        if not unread:
            return text
        partly = f"the code of {', '.join(unread)} was not read"
        return f"{text} ({partly if read else UNREAD_NOTE})"

    def _first_without_conflict(
        self, requested: VersionDemand, side: Sequence[Version], cuda: str | None
    ) -> Version | None:
        for start in range(0, len(side), THREADS):
            some = side[start : start + THREADS]
            self.facts.read_ahead(requested.package, some)
            for version in some:
                changed = _change_request(self.requests, requested, version)
                if _key(changed) in self.clashing:
                    continue
                if conflict.find_conflict(self.facts, changed, cuda) is None:
                    return version
        return None

    def _moved_requests(self) -> list[tuple[VersionDemand, Version]]:
        changed, moved = list(self.requests), list[tuple[VersionDemand, Version]]()
        while (now := conflict.find_conflict(self.facts, changed, None)) is not None:
            done = [requested.package for requested, _ in moved]
            step = self._step(changed, now, [*self.kept, *done])
            if step is None:
                return []
            changed = _change_request(changed, *step)
            moved.append(step)
        return moved

    def _step(
        self, requests: Sequence[VersionDemand], clash: RequirementConflict, retained: Sequence[str]
    ) -> tuple[VersionDemand, Version] | None:
        for requested in requests:
            if (
                requested.package not in clash.requests
                or requested.package in retained
                or not requested.spec
            ):
                continue
            for side in _sides(self.facts, requested, clash):
                for version in side[:TRIED_LIMIT]:
                    changed = _change_request(requests, requested, version)
                    if _key(changed) in self.clashing:
                        continue
                    after = conflict.find_conflict(self.facts, changed, None)
                    if after is None or requested.package not in after.requests:
                        return requested, version
        return None


def _sides(
    facts: PackageFacts, requested: VersionDemand, clash: RequirementConflict
) -> tuple[list[Version], list[Version]]:
    """Return the newer and the older versions outside of `requested`, nearest first.

    If the requested version has no usable file, older versions must be from about the same time.
    """
    versions = facts.versions(requested.package)
    if not versions:
        return [], []
    spec, pivot = SpecifierSet(requested.spec), _pivot_version(requested.spec)
    if clash.package == requested.package:
        versions = tuple(refusal.versions_within_a_year(facts.catalogue, requested.package, pivot))
    final = {v for v in versions if not v.is_prerelease and not spec.contains(v)}
    older = sorted((v for v in final if v < pivot), reverse=True)
    newer = sorted(v for v in final if v > pivot)
    return newer, older


def _change_request(
    requests: Sequence[VersionDemand], requested: VersionDemand, version: Version
) -> list[VersionDemand]:
    other = conflict.user_demand(requested.package, f"=={version}", extras=requested.extras)
    return [other if item == requested else item for item in requests]


def _key(requests: Iterable[VersionDemand]) -> RequestKey:
    return frozenset((requested.package, requested.spec) for requested in requests)


def _add_torch(summary: str, torch: TorchBuild | None) -> str:
    if torch is None or torch.cuda is None:
        return summary
    torch_words = f"torch {torch.version}"
    return (
        f"{summary} for CUDA {torch.cuda}"
        if summary == torch_words
        else f"{summary}, with {torch_words} for CUDA {torch.cuda}"
    )


def _pivot_version(spec: str) -> Version:
    return min(Version(item.version.removesuffix(".*")) for item in SpecifierSet(spec))


def _release_distance(cuda: str, other: str) -> int:
    return abs(_number(cuda) - _number(other))


def _number(cuda: str) -> int:
    major, minor = cuda.split(".")
    return int(major) * 100 + int(minor)


def nearest_targets(
    matrix: Matrix,
    requests: Sequence[VersionDemand],
    cuda: str | None,
    arch: Arch,
    *,
    excluded: str = "",
    locked: Collection[str] | None = None,
) -> tuple[str, ...]:
    """Return the target in the matrix for `arch` with most of the requested packages, as text.

    If the names of the `locked` targets are known, the text says whether the target is not locked.
    """
    specs = {requested.package: requested.spec for requested in requests}
    names = near.rank_targets(matrix, specs, cuda, arch, excluded=excluded)
    return tuple(near.describe_target(matrix, name, arch, locked) for name in names[:1])
