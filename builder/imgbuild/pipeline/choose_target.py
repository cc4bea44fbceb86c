"""Selects the target for a project by comparing its requirements with all locked targets.

All packages that are missing from the index are reported before files are written.
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec
from packaging.requirements import Requirement
from packaging.version import Version

from imgbuild.audit.binaries import gpus
from imgbuild.cache.context import Context
from imgbuild.matrix.model import Matrix
from imgbuild.matrix.project_paths import MATRIX, Project
from imgbuild.pipeline import source_packages
from imgbuild.pipeline.target_facts import (
    ChoiceRequest,
    add_learned_constraints,
    select_facts,
    target_facts,
)
from imgbuild.project.model import Declarations
from imgbuild.resolve import (
    choose,
    cutoff,
    engine_torch,
    locked,
    project_indexes,
    resolve_request,
    source_only,
    url_wheels,
)
from imgbuild.resolve.choose import LockedFacts, TargetCandidate, TargetChange
from imgbuild.resolve.demands import PackageDemand, package_demands, required_cuda
from imgbuild.resolve.demands import cuda_releases as cuda_named
from imgbuild.resolve.feasible import IndexPages, UnmetDemand, find_obstacles, similar_packages
from imgbuild.resolve.project_indexes import ProjectIndexes
from imgbuild.resolve.range_conflicts import find_contradictions, range_conflicts, required_changes
from imgbuild.resolve.source_only import BuildAdvice, WheelNeeds, required_sdists
from imgbuild.resolve.unavailable import unavailable_demands
from imgbuild.system import threads
from imgbuild.values import normalize_package
from imgbuild.wheel.tags import WheelTags

CONDA_REASON = "a Conda package that is missing from the index"
PAGES = 100  # packages that are looked up at most, the heaviest first; `lock` looks up all


class WheelCount(msgspec.Struct, frozen=True, kw_only=True):
    """The number of pinned packages with a wheel for a Python version, and packages without one.

    If no target with this Python version is locked, `unlocked` lists these targets.
    """

    python: str
    pinned: int
    missing: tuple[str, ...]
    unlocked: tuple[str, ...] = ()


class TargetChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The target for a project, alternatives in order, and packages to exclude or build.

    `excluded` and `sdists` map packages to reasons. `missed` are messages about packages that the
    user excluded but the project needs. `relaxed` maps packages to the selected version. `indexes`
    are the indexes of the project's files that are used. `as_of` is None if the cut-off date of the
    target is late enough.
    """

    candidates: tuple[TargetCandidate, ...]
    chosen: TargetCandidate
    advice: tuple[BuildAdvice, ...] = ()
    missed: tuple[str, ...] = ()
    excluded: Mapping[str, str] = {}
    sdists: Mapping[str, str] = {}
    relaxed: Mapping[str, str] = {}
    cuda: str = ""
    as_of: datetime.date | None = None
    wheels: tuple[WheelCount, ...] = ()
    obstacles: tuple[UnmetDemand, ...] = ()
    indexes: ProjectIndexes = ProjectIndexes()


class TargetChooser:
    """Compares one project with the targets of a catalogue."""

    def __init__(
        self,
        project: Project,
        matrix: Matrix,
        declared: Declarations,
        request: ChoiceRequest,
        context: Context,
    ) -> None:
        self._project, self._matrix, self._declared = project, matrix, declared
        self._request, self._context = request, context
        self.as_of = (
            declared.cut_off.day if declared.cut_off is not None else resolve_request.today_utc()
        )
        self.pages = IndexPages(matrix, context, self.as_of)
        self._indexes = ProjectIndexes()
        self._tags_of: dict[str, WheelTags] = {}
        self._cuda_of: dict[str, frozenset[str]] = {}  # Python → releases for which torch is built
        self._demands: dict[str, tuple[PackageDemand, ...]] = {}
        self._advice: list[BuildAdvice] = []

    def demands(self, python: str) -> tuple[PackageDemand, ...]:
        """Return the requirements for a Python version.

        Excluded packages are omitted, and relaxed packages accept any version.
        """
        if python not in self._demands:
            every = package_demands(self._declared, self._tags(python).markers)
            excluded = {
                *self._request.exclude,
                *(each.package for each in self._advice),
                *(each.package for each in self._indexes.obstacles),
            }
            self._demands[python] = tuple(
                msgspec.structs.replace(demand, spec="")
                if demand.package in self._request.relax
                else demand
                for demand in every
                if demand.package not in excluded
            )
            if "torch" not in self._request.relax:
                self._demands[python] = engine_torch.add_engine_torch(
                    self._demands[python],
                    self._tags(python).markers,
                    lambda demand: self._metadata(demand, python),
                )
        return self._demands[python]

    def _metadata(self, demand: PackageDemand, python: str) -> bytes:
        """Return METADATA of the wheel that meets `demand`, or b"" if no wheel does."""
        pages, tags = self.pages, self._tags(python)
        wheel = pages.pinned_wheel(demand, tags) if demand.pin else pages.newest_wheel(demand, tags)
        return pages.metadata(wheel) if wheel is not None else b""

    def _torch_demand(self, facts: LockedFacts) -> PackageDemand | None:
        return next((d for d in self.demands(facts.python) if d.package == "torch"), None)

    def _torch(self, facts: LockedFacts) -> tuple[str, str]:
        """Return the torch version and CUDA release of the image, from the project or from `facts`.

        Among the versions that the project accepts, the newest build for the CUDA release of the
        target, or for a release in the project's files, is preferred.
        """
        has = facts.versions.get("torch", "")
        demand = self._torch_demand(facts)
        named = self._usable_cuda(facts) or [facts.cuda]
        if (
            demand is None
            or demand.source
            or (demand.allows_version(has or "0") and facts.cuda in named)
        ):
            return has or "2.0", facts.cuda
        tags = self._tags(facts.python)
        wheels = self.pages.wheels(demand, tags)
        build = engine_torch.newest_build(wheels, self.pages.metadata, tags.markers, named)
        if build is None:
            return demand.pin or has or "2.0", max(named, key=gpus.version_numbers)
        return build.version.public, build.cuda or facts.cuda

    def cuda(self) -> tuple[str, ...]:
        """Return the CUDA releases in the project's files."""
        python = next(iter(self._matrix.bases.values())).python
        return cuda_named(self._declared, self._tags(python).markers)

    def _tags(self, python: str) -> WheelTags:
        if python not in self._tags_of:
            minor = ".".join(python.split(".")[:2])
            bases = self._matrix.bases.values()
            glibc = next(base.glibc for base in bases if base.python in (python, minor))
            tags = WheelTags(python=python, glibc=glibc, arch=self._request.arch)
            self._tags_of[python] = tags
        return self._tags_of[python]

    def choose_target(self, folder: Path) -> TargetChoice:
        """Choose the nearest target. The imports in the project's `folder` are read."""
        facts = target_facts(self._project, self._matrix, self._request)
        facts = add_learned_constraints(facts, Project(matrix=folder / MATRIX))
        self._read_indexes({name for each in facts for name in each.versions}, folder)
        facts = select_facts(facts, self._request, self._matrix)
        facts = url_wheels.most_compatible(facts, self.demands, self._tags)
        by_name = {each.target: each for each in facts}
        near = choose.rank_candidates(facts, self._declared, self.demands, cuda=self.cuda())
        self._read_pages(near, by_name)
        while True:
            order = choose.rank_candidates(
                facts, self._declared, self.demands, self._conflicts, cuda=self.cuda()
            )
            nearest = by_name[order[0].target]
            tags = self._tags(nearest.python)
            asked = self._open_demands(nearest)
            blocked = self._find_obstacles(order[0], nearest, asked)
            better = self._drop_python(blocked, nearest, facts)
            if len(better) < len(facts):  # without the Python of the nearest
                facts = better
                continue
            advice, sdists = self._source_packages(blocked, nearest, folder)
            if not advice:
                break
            self._advice += advice  # exclusions may make another target the nearest
            self._demands.clear()
        of_conda = {each.package: CONDA_REASON for each in blocked if each.conda}
        decided = {*(each.package for each in self._advice), *sdists, *of_conda}
        chosen = order[0]
        if self._request.extends and not chosen.changed:  # as selected, even if untested
            chosen = msgspec.structs.replace(chosen, form="extends")
        return TargetChoice(
            candidates=(chosen, *order[1:]),
            chosen=chosen,
            advice=tuple(self._advice),
            missed=self._missed(nearest, folder),
            excluded=self._excluded_packages() | of_conda,
            sdists=sdists,
            cuda=self._other_cuda(chosen, nearest),
            relaxed={
                name: nearest.versions[name]
                for name in self._request.relax
                if name in nearest.versions
            },
            as_of=self._day(chosen, nearest, asked, tags, decided),
            wheels=() if chosen.python_accepted else self._wheel_counts(),
            indexes=self._indexes,
            obstacles=tuple(
                self._add_suggestion(each)
                for each in source_packages.name_obstacles(blocked, self.pages)
                if each.package not in decided
            ),
        )

    def _find_obstacles(
        self, chosen: TargetCandidate, facts: LockedFacts, asked: Sequence[PackageDemand]
    ) -> list[UnmetDemand]:
        pages, tags = self.pages, self._tags(facts.python)
        required = self._missing_pins(facts, asked)
        blocked = [
            *self._indexes.obstacles,
            *find_obstacles(asked, pages, tags),
            *url_wheels.unfit_wheels(asked, tags),
            *find_contradictions(required, self.demands(facts.python), self._declared),
            *required_sdists(asked, {*facts.versions, *self._excluded_packages()}, pages, tags),
            *self._missing_toolkit_obstacles(chosen, facts),
        ]
        omitted = {
            *self._excluded_packages(),
            *self._overridden_packages(),
            *(each.package for each in blocked),
        }
        alone = {each.package for each in self._declared.requirements if each.no_deps}
        examined = [each for each in asked if each.package not in omitted | alone]
        return [*blocked, *unavailable_demands(examined, facts.versions, omitted, pages, tags)]

    def _drop_python(
        self, blocked: Sequence[UnmetDemand], nearest: LockedFacts, facts: list[LockedFacts]
    ) -> list[LockedFacts]:
        """Omit targets with the Python version of `nearest` if another version has more wheels.

        The project must accept the other version. Only direct requirements are counted.
        """
        direct = {each.package for each in self.demands(nearest.python)}
        lacks = (each.package for each in blocked if each.cause in ("python", "source"))
        names = direct.intersection(lacks)
        accepted = choose.accepts_python(self._declared, nearest.python)
        others = {
            each.python
            for each in facts
            if each.python != nearest.python
            if choose.accepts_python(self._declared, each.python) or not accepted
        }
        for python in others if names else ():
            asked = [each for each in self.demands(python) if each.package in names]
            tags = self._tags(python)
            lacking = (
                *find_obstacles(asked, self.pages, tags),
                *url_wheels.unfit_wheels(asked, tags),
            )
            if len(lacking) < len(names):
                return [each for each in facts if each.python != nearest.python]
        return facts

    def _read_indexes(self, published: Collection[str], folder: Path) -> None:
        if not self._declared.indexes:
            return
        tags = self._tags(next(iter(self._matrix.bases.values())).python)
        wanted = [
            each
            for each in package_demands(self._declared, tags.markers)
            if each.installed and each.package not in self._request.exclude
        ]
        self._indexes = project_indexes.find_project_indexes(
            self._declared.indexes, wanted, self.pages, tags,
            published=published, folder=folder,
        )  # fmt: skip
        addresses, assigned = self._indexes.addresses, self._indexes.packages
        self.pages = IndexPages(self._matrix, self._context, self.as_of, addresses, assigned)

    def _other_cuda(self, chosen: TargetCandidate, facts: LockedFacts) -> str:
        """Return the CUDA release in the project's files, or "" if it is the target's.

        If the files pin torch, the CUDA release of this build is used, unless the files require a
        different major version of CUDA. Releases of container images are ignored if torch has no
        build for them.
        """
        if chosen.form != "like":
            return ""
        releases = () if self._request.cuda else self._usable_cuda(facts)
        cuda = self._torch(facts)[1]
        torch = self._torch_demand(facts)
        exact = torch is not None and bool(torch.pin)
        majors = {each.partition(".")[0] for each in required_cuda(self._declared)}
        if releases and not (exact and (not majors or cuda.partition(".")[0] in majors)):
            cuda = chosen.cuda if chosen.cuda in releases else releases[-1]
        return cuda if cuda != chosen.cuda else ""

    def _usable_cuda(self, facts: LockedFacts) -> list[str]:
        required = required_cuda(self._declared)
        return [
            release
            for release in sorted(self.cuda(), key=gpus.version_numbers)
            if release in required or self._is_built(release, facts)
        ]

    def _is_built(self, cuda: str, facts: LockedFacts) -> bool:
        if cuda != facts.cuda and facts.python not in self._cuda_of:
            self._cuda_of[facts.python] = engine_torch.releases(
                self.pages, self._tags(facts.python)
            )
        return cuda == facts.cuda or cuda in self._cuda_of[facts.python]

    def _missing_toolkit_obstacles(
        self, chosen: TargetCandidate, facts: LockedFacts
    ) -> list[UnmetDemand]:
        built, named = self._torch(facts)[1], self._other_cuda(chosen, facts)
        if chosen.form != "like" or {built, named} <= {"", facts.cuda}:
            return []
        torch = self._torch_demand(facts)
        if torch is not None and named and not torch.pin and not self._is_built(named, facts):
            return [engine_torch.without_build(named, self._declared.cuda)]
        return engine_torch.missing_toolkit_obstacles(
            torch, built, named, self._declared.cuda, self.pages, self._tags(facts.python)
        )

    def _overridden_packages(self) -> set[str]:
        return {r.package for r in self._declared.requirements if r.kind == "override"}

    def _excluded_packages(self) -> dict[str, str]:
        named = sorted(self._request.exclude)
        return dict.fromkeys(named, "excluded with imgbuild init --exclude") | {
            each.package: each.reason for each in self._advice
        }

    def _open_demands(self, facts: LockedFacts) -> list[PackageDemand]:
        demands_left = [
            each for each in self.demands(facts.python) if not _is_satisfied(each, facts)
        ]
        return sorted(demands_left, key=lambda each: _weight(each.package))[:PAGES]

    def _read_pages(
        self, order: Sequence[TargetCandidate], facts: Mapping[str, LockedFacts]
    ) -> None:
        nearest = facts[order[0].target]
        names = {
            demand.package
            for demand in self._open_demands(nearest)
            if demand.installed and not demand.source
        }
        for each in order[: choose.FIRST_CANDIDATES]:
            pinned = (demand for demand in self.demands(each.python) if demand.pin)
            lacking = {*each.added, *(change.package for change in each.changed)}
            names |= {
                demand.package
                for demand in pinned
                if demand.package in lacking and demand.installed and not demand.source
            }
        self.pages.read(sorted(names, key=_weight)[:PAGES])

    def _conflicts(
        self, facts: LockedFacts, asked: Sequence[PackageDemand]
    ) -> Sequence[TargetChange]:
        changes: dict[str, TargetChange] = {}
        overrides = self._overridden_packages()
        for demand, requirements in self._missing_pins(facts, asked):
            is_torch = demand.package == "torch"  # its CUDA packages are those of the target
            needed = [
                each
                for each in requirements
                if not (is_torch and normalize_package(each.name).startswith("nvidia-"))
            ]
            needed += facts.learned_requirements(demand.package, str(demand.pin))
            for change in required_changes(demand, str(demand.pin), needed, facts.versions):
                changes.setdefault(change.package, change)
        added = [d for d in asked if d.installed and d.package not in facts.versions][:PAGES]
        tags = self._tags(facts.python)
        ranges = range_conflicts(added, facts, self.pages, tags)
        every = {each.package: each for each in (*ranges, *changes.values())}
        return [each for each in every.values() if each.package not in overrides]

    def _missing_pins(
        self, facts: LockedFacts, asked: Sequence[PackageDemand]
    ) -> list[tuple[PackageDemand, list[Requirement]]]:
        tags = self._tags(facts.python)
        pins = [
            demand
            for demand in asked
            if demand.installed
            and demand.pin
            and not demand.source
            and not _is_satisfied(demand, facts)
        ]
        pins = sorted(pins, key=lambda each: _weight(each.package))[:PAGES]
        texts = threads.run_for_each(
            pins, lambda each, _: self._metadata(each, facts.python), threads=8
        )
        return [
            (demand, engine_torch.required_with_extras(demand, text, tags.markers))
            for demand, text in zip(pins, texts, strict=True)
        ]

    def _add_suggestion(self, obstacle: UnmetDemand) -> UnmetDemand:
        if obstacle.cause == "version" and source_only.is_nightly(obstacle.demand):
            reason = f"{obstacle.reason}, because it is a nightly build; require the wheel by URL"
            return msgspec.structs.replace(obstacle, reason=reason)
        if obstacle.cause != "name":
            return obstacle
        names = locked.locked_packages(self._project)
        return msgspec.structs.replace(obstacle, nearest=similar_packages(obstacle.package, names))

    def _source_packages(
        self, blocked: Sequence[UnmetDemand], facts: LockedFacts, folder: Path
    ) -> tuple[list[BuildAdvice], dict[str, str]]:
        cuda, sdists = source_packages.split_obstacles(blocked, self.pages)
        torch, release = self._torch(facts)
        needs = WheelNeeds(
            python=".".join(facts.python.split(".")[:2]),
            cuda=release,
            torch=torch,
            machine=self._request.arch.wheel,
        )

        requiring = functools.partial(self._requiring, facts)
        return source_packages.advise_on_builds(cuda, needs, folder, requiring), sdists

    def _requiring(self, facts: LockedFacts, package: str) -> list[str]:
        demands_left = (d for d in self.demands(facts.python) if d.package not in facts.versions)
        added = sorted(demands_left, key=lambda each: _weight(each.package))
        return source_packages.demands_requiring(
            package, added, self.pages, self._tags(facts.python)
        )

    def _missed(self, facts: LockedFacts, folder: Path) -> tuple[str, ...]:
        imports = source_packages.package_imports(folder, self._request.exclude)
        needed = {
            name: [*map(str, sites), *self._requiring(facts, name)]
            for name, sites in imports.items()
        }
        return tuple(
            f"{name} is excluded, but needed by {', '.join(users)}"
            for name, users in needed.items()
            if users
        )

    def _day(
        self,
        chosen: TargetCandidate,
        facts: LockedFacts,
        asked: Sequence[PackageDemand],
        tags: WheelTags,
        decided: Collection[str],
    ) -> datetime.date | None:
        """Return the cut-off date of the row, or None to keep the date of the extended target.

        If all versions are solved again, this is the date in the project's files, or half a year
        after the first upload of the newest pinned version, as in `imgbuild resolve`. If neither
        torch nor an engine is pinned, the target's versions of them must remain available.
        """
        solved = chosen.form == "like"
        days = {
            demand.package: self.pages.first_day(demand, tags)
            for demand in asked
            if (solved or demand.package in chosen.added)
            if demand.installed and not demand.source and demand.package not in decided
        }
        latest = max((day for day in days.values() if day is not None), default=datetime.date.min)
        if solved:
            pinned = [demand.package for demand in asked if demand.pin and demand.package in days]
            if self._declared.cut_off is not None or not pinned or not all(map(days.get, pinned)):
                return self.as_of
            day = min(self.as_of, latest + cutoff.MARGIN)
            decisive = {"torch", *choose.ENGINES} & {*pinned}
            return day if decisive else max(day, datetime.date.fromisoformat(facts.as_of))
        return latest if latest > datetime.date.fromisoformat(facts.as_of) else None

    def _wheel_counts(self) -> tuple[WheelCount, ...]:
        locked = set(self._project.locked_targets())
        targets: dict[str, list[str]] = {}
        for name, target in self._matrix.targets.items():
            targets.setdefault(self._matrix.bases[target.base].python, []).append(name)
        counts = []
        for python in sorted(targets, key=Version):
            pinned = [
                demand
                for demand in self.demands(python)
                if demand.pin and demand.installed and not demand.source
            ]
            pinned.sort(key=lambda demand: _weight(demand.package))
            pinned = pinned[:PAGES]
            missing = find_obstacles(pinned, self.pages, self._tags(python))
            counts.append(
                WheelCount(
                    python=python,
                    pinned=len(pinned),
                    missing=tuple(each.demand for each in missing),
                    unlocked=() if locked & {*targets[python]} else tuple(targets[python]),
                )
            )
        return tuple(counts)


def _weight(package: str) -> tuple[bool, int, str]:
    """Return a sort key: packages that probably lack wheels first, then by most dependents."""
    known = source_only.is_source_project(package)
    return (not known, -choose.WEIGHTS.get(package, 1), package)


def _is_satisfied(demand: PackageDemand, facts: LockedFacts) -> bool:
    has = facts.versions.get(demand.package)
    return has is not None and not choose.contradicts_version(demand, has)
