"""Finds the locked target that is closest to the requirements of a project."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec
from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from imgbuild.matrix.constraints import Constraint
from imgbuild.project import addresses
from imgbuild.project.model import Declarations, FilePlace
from imgbuild.resolve.demands import PackageDemand
from imgbuild.smoke.records import TIERS
from imgbuild.solve.kept_releases import FRAMEWORKS
from imgbuild.system.syntax import parse_requirement
from imgbuild.values import Arch, Bytes, normalize_package

RowForm = Literal["extends", "like"]

OTHER_CUDA = 50  # a different CUDA release than the project names costs as much as this weight
# The cost of a contradiction; an addition costs twice that of an engine, half that of others.
# Another version of one of these packages needs other versions of many.
WEIGHTS = {"torch": 1000, "vllm": 100, "sglang": 100} | dict.fromkeys(
    (*FRAMEWORKS, "triton", "flash-attn"), 10
)
ENGINES = ("torch", "vllm", "sglang")
LIKE_COST = 10  # the cost of a new package set, which no test has run
DISTANCES = 20  # minor releases between two versions that double the cost of a contradiction
DEFAULT_STACK = "vllm"
FIRST_CANDIDATES = 6  # targets whose additions are examined
PATCHES = 30  # of a minor release of Python
CUDA_LIBRARY = re.compile(r"^lib\w+\.so\.(\d+)")
PATCH = re.compile(r"===?\s*(\d+\.\d+)\.\d+")  # a pin of one patch release of Python


class LockedFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of a locked target on one architecture.

    `python` contains the patch release if it is known. `recommended` is the stack for which the
    target is recommended. `tested` is the highest tier of smoke tests that passed, or "" without a
    test record. `size` is the number of bytes that a pull transfers. `unfit` contains the reasons
    why the target does not run on the machine, and `learned` the constraints in the target's
    catalogue.
    """

    target: str
    arch: Arch
    versions: Mapping[str, str]
    python: str
    cuda: str
    as_of: str
    tested: str = ""
    recommended: str = ""
    retired: bool = False
    driver: str = ""
    gpu: tuple[str, ...] = ()
    size: Bytes = 0
    unfit: tuple[str, ...] = ()
    learned: tuple[Constraint, ...] = ()

    def learned_requirements(self, package: str, version: str) -> list[Requirement]:
        """Return the requirements of a version of `package` according to learned constraints.

        If the package contains a library for another CUDA release, the target's version of torch is
        excluded.
        """
        needs = []
        for entry in self.learned:
            if entry.package == package and entry.restricts_other_for(version):
                library = CUDA_LIBRARY.search(entry.name) if entry.check == "cuda" else None
                if library is None:
                    needs.append(entry.needs)
                elif library[1] != self.cuda.partition(".")[0]:
                    needs.append(f"{entry.other}!={self.versions.get(entry.other, '0')}")
        return [parse_requirement(each) for each in needs]


class TargetChange(msgspec.Struct, frozen=True, kw_only=True):
    """A package of a target whose version a project does not accept.

    `wanted` is a specifier, or the required source of the package. `places` are lines of the
    project. `by` is the added package and version that causes the change, or a description of a
    package of the project.
    """

    package: str
    has: str
    wanted: str
    places: tuple[FilePlace, ...] = ()
    by: str = ""

    def __str__(self) -> str:
        who = self.by or ", ".join(map(str, self.places))
        return f"{self.package} {self.has} -> {self.wanted}" + (f" ({who})" if who else "")


class TargetCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """A target as the basis of a project's image, with the packages to add or change.

    `form` is "extends" if the target is tested, needs no changes and has a Python that the project
    accepts. Otherwise, it is "like".
    """

    target: str
    form: RowForm
    met: tuple[str, ...]
    added: tuple[str, ...]
    changed: tuple[TargetChange, ...]
    python: str
    python_accepted: bool
    cuda: str
    as_of: str
    driver: str
    gpu: tuple[str, ...]
    size: Bytes
    tested: str
    unfit: tuple[str, ...] = ()
    retired: bool = False


# Demands that differ by Python: markers.
DemandsFor = Callable[[str], Sequence[PackageDemand]]
Conflicts = Callable[[LockedFacts, Sequence[PackageDemand]], Sequence[TargetChange]]


def accepts_python(declared: Declarations, python: str) -> bool:
    """Return whether the project accepts `python` ("3.11.2").

    If the project pins a patch release, any patch release of the same minor release is accepted. A
    specifier that cannot be parsed accepts any version.
    """
    minor = ".".join(python.split(".")[:2])
    for item in declared.python:
        pin = PATCH.fullmatch(item.spec.strip())
        if pin is not None:
            if pin[1] != minor:
                return False
            continue
        try:
            if not SpecifierSet(item.spec).contains(python, prereleases=True):
                return False
        except InvalidSpecifier:
            continue
    return True


def _python_class(declared: Declarations, python: str) -> int:
    """Return 0 if the project accepts `python`, 1 if only another patch release, and else 2."""
    if accepts_python(declared, python):
        return 0
    minor = ".".join(python.split(".")[:2])
    patches = (f"{minor}.{patch}" for patch in range(PATCHES))
    return 1 if any(accepts_python(declared, patch) for patch in patches) else 2


def create_candidate(
    facts: LockedFacts,
    demands: Sequence[PackageDemand],
    declared: Declarations,
    more: Sequence[TargetChange] = (),
) -> TargetCandidate:
    """Return the candidate for the target `facts`.

    `more` are changes that the packages to add require.
    """
    met, added, changed = [], [], []
    for demand in demands:
        has = facts.versions.get(demand.package)
        if has is None:
            added += [demand.package] if demand.installed else []
        elif contradicts_version(demand, has):
            wanted = addresses.strip_secrets(demand.source) or demand.spec
            changed.append(
                TargetChange(package=demand.package, has=has, wanted=wanted, places=demand.places)
            )
        else:
            met += [demand.package] if demand.installed else []
    changed += _own_packages(facts, declared)
    names = {change.package for change in changed}
    changed += [change for change in more if change.package not in names]
    accepted = accepts_python(declared, facts.python)
    return TargetCandidate(
        target=facts.target,
        form="extends" if not changed and accepted and facts.tested else "like",
        met=tuple(met),
        added=tuple(added),
        changed=tuple(changed),
        python=facts.python,
        python_accepted=accepted,
        cuda=facts.cuda,
        as_of=facts.as_of,
        driver=facts.driver,
        gpu=facts.gpu,
        size=facts.size,
        tested=facts.tested,
        unfit=facts.unfit,
        retired=facts.retired,
    )


def _own_packages(facts: LockedFacts, declared: Declarations) -> list[TargetChange]:
    """Return changes for the project's own packages, which the target's releases would hide."""
    return [
        TargetChange(
            package=name,
            has=facts.versions[name],
            wanted=f"=={item.version}" if item.version else "the project's version",
            by="the project's own package",
        )
        for item in declared.packages
        if item.backend and (name := normalize_package(item.name)) in facts.versions
    ]


def contradicts_version(demand: PackageDemand, has: str) -> bool:
    """Return whether `demand` excludes the version `has` of a target.

    A demand for a source checkout excludes every version.
    """
    if demand.source and not demand.spec:
        return True
    return not demand.allows_version(has)


def rank_candidates(
    targets: Iterable[LockedFacts],
    declared: Declarations,
    demands: DemandsFor,
    conflicts: Conflicts | None = None,
    *,
    cuda: Collection[str] = (),
    first: int = FIRST_CANDIDATES,
) -> list[TargetCandidate]:
    """Return the candidates, nearest first.

    `demands` returns the demands for a Python, and `cuda` contains the CUDA releases of the
    project. `conflicts` finds the packages of a target that contradict the additions. It is called
    for the `first` targets, and for further targets while one of them could be the nearest.
    """
    facts = list(targets)
    classes: dict[int, list[LockedFacts]] = {}
    for each in facts:
        classes.setdefault(_python_class(declared, each.python), []).append(each)
    facts = [each for group in classes.values() for each in _filter_by_torch(group, cuda, demands)]
    by_name = {each.target: each for each in facts}
    order = _CandidateOrder(declared, by_name, demands, cuda)
    candidates = sorted(
        (create_candidate(each, demands(each.python), declared) for each in facts), key=order.key
    )
    if conflicts is None:
        return candidates
    examined: list[TargetCandidate] = []
    while candidates and (not examined or order.key(candidates[0]) < order.key(examined[0])):
        examined += (
            create_candidate(
                by_name[each.target],
                demands(each.python),
                declared,
                conflicts(by_name[each.target], demands(each.python)),
            )
            for each in candidates[:first]
        )
        examined.sort(key=order.key)
        candidates = candidates[first:]
    return [*examined, *candidates]


class _CandidateOrder:
    def __init__(
        self,
        declared: Declarations,
        facts: Mapping[str, LockedFacts],
        demands: DemandsFor,
        cuda: Collection[str],
    ) -> None:
        self._declared = declared
        self._cuda = frozenset(cuda)
        self._facts, self._demands = facts, demands

    def key(self, item: TargetCandidate) -> tuple[object, ...]:
        facts = self._facts[item.target]
        demanded = {demand.package for demand in self._demands(item.python)}
        return (
            _python_class(self._declared, item.python),
            bool(item.unfit),
            self._cost(item),
            facts.retired,
            -self._stack(facts, demanded),
            -(TIERS.index(facts.tested) if facts.tested in TIERS else -1),
            -_day(facts.as_of),
            item.target,
        )

    def _cost(self, item: TargetCandidate) -> float:
        changed = sum(
            WEIGHTS.get(change.package, 1) * (1 + _distance(change) / DISTANCES)
            for change in item.changed
        )
        added = sum(
            WEIGHTS[package] * (2 if package in ENGINES else 0.5)
            for package in item.added
            if package in WEIGHTS
        )
        added += sum(_distance(each) / DISTANCES for each in self._dated_additions(item))
        other_cuda = OTHER_CUDA if self._cuda and item.cuda not in self._cuda else 0
        return changed + added + other_cuda + (LIKE_COST if item.form == "like" else 0)

    def _dated_additions(self, item: TargetCandidate) -> Iterator[TargetChange]:
        """Yield the added pins, with the version in the target of the nearest date that has one.

        A pin of a package that the target lacks also shows from which time the project is.
        """
        day = _day(self._facts[item.target].as_of)
        for demand in self._demands(item.python):
            package = demand.package
            if package not in item.added or demand.pin is None:
                continue
            having = [each for each in self._facts.values() if package in each.versions]
            if having:
                near = min(having, key=lambda each: abs(_day(each.as_of) - day))
                has = near.versions[package]
                yield TargetChange(package=package, has=has, wanted=demand.spec)

    def _stack(self, facts: LockedFacts, demanded: set[str]) -> int:
        if facts.recommended in demanded:
            return 3
        return 2 if facts.recommended == DEFAULT_STACK else 1 if facts.recommended else 0


def _distance(change: TargetChange) -> int:
    """Return the distance in minor releases, at most 10."""
    try:
        bounds = [each.version.removesuffix(".*") for each in SpecifierSet(change.wanted)]
        return min([10, *(abs(_number(bound) - _number(change.has)) for bound in bounds)])
    except ValueError:
        return 10


def _day(date: str) -> int:
    """Return the number of a day, for distances between dates."""
    return datetime.date.fromisoformat(date).toordinal() if date else 0


def _filter_by_torch(
    facts: Sequence[LockedFacts], cuda: Collection[str], demands: DemandsFor
) -> list[LockedFacts]:
    """Return the targets with the minor release of torch that the project pins.

    If there are none, return those with the CUDA release `cuda`, or else those with the nearest
    torch.
    """
    pins = {
        each.target: pin
        for each in facts
        for demand in demands(each.python)
        if demand.package == "torch" and (pin := demand.pin) is not None
    }
    torch = {each.target: each.versions.get("torch") for each in facts}
    if len(pins) < len(facts) or not any(torch.values()):
        return list(facts)
    same = [
        each
        for each in facts
        if _minor_numbers(torch[each.target]) == _minor_numbers(pins[each.target])
    ]
    same = same or [each for each in facts if each.cuda in cuda]
    if same:
        return same
    distance = {
        name: abs(_number(version) - _number(pins[name])) for name, version in torch.items()
    }
    return [each for each in facts if distance[each.target] == min(distance.values())]


def _minor_numbers(version: str | None) -> tuple[int, ...]:
    return Version(version).release[:2] if version else ()


def _number(version: str | None) -> int:
    major, minor = (*_minor_numbers(version), 0, 0)[:2]
    return major * 1000 + minor
