"""Selects the target for a project by comparing its requirements with all locked targets.

All packages that are missing on the index are reported before files are written.
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
from imgbuild.deb import apt
from imgbuild.doctor.host import Host
from imgbuild.doctor.targets import judge_target, target_needs
from imgbuild.errors import InputError, NothingSelected, ToolMissing
from imgbuild.lock import lock_file
from imgbuild.lock.lock_file import Lock
from imgbuild.matrix import constraints
from imgbuild.matrix.model import DebianBase, Matrix
from imgbuild.matrix.project_paths import Project
from imgbuild.pipeline import source_packages
from imgbuild.plan import image_digests
from imgbuild.project.model import Declarations
from imgbuild.resolve import (
    choose,
    engine_torch,
    locked,
    project_indexes,
    resolve_request,
    source_only,
    url_wheels,
)
from imgbuild.resolve.choose import LockedFacts, TargetCandidate, TargetChange
from imgbuild.resolve.demands import PackageDemand, package_demands
from imgbuild.resolve.demands import cuda_releases as cuda_named
from imgbuild.resolve.feasible import IndexPages, UnmetDemand, find_obstacles, similar_packages
from imgbuild.resolve.imports import import_sites
from imgbuild.resolve.project_indexes import ProjectIndexes
from imgbuild.resolve.range_conflicts import find_contradictions, range_conflicts, required_changes
from imgbuild.resolve.source_only import BuildAdvice, WheelNeeds, required_sdists
from imgbuild.resolve.unavailable import unavailable_demands
from imgbuild.show import status
from imgbuild.smoke import recording
from imgbuild.solve.solve import base_python
from imgbuild.system import threads
from imgbuild.system.console import console
from imgbuild.values import Arch, normalize_package
from imgbuild.wheel.tags import WheelTags

CONDA_REASON = "a conda package that is missing on the index"
PAGES = 100  # packages that are looked up at most, the heaviest first; `lock` looks up all


class ChoiceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `imgbuild init` that select a target.

    If `target` or `extends` is set, only this target is considered. Versions of `extends` must not
    change. `host` has the driver and GPUs that targets must support. For packages in `relax`, any
    version is accepted. Packages in `exclude` are omitted.
    """

    host: Host
    arch: Arch
    target: str | None = None
    extends: bool = False
    cuda: str | None = None
    relax: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


class WheelCount(msgspec.Struct, frozen=True, kw_only=True):
    """The number of pinned packages with a wheel for a Python, and the packages without one.

    `unlocked` are the targets with this Python, if none is locked.
    """

    python: str
    pinned: int
    missing: tuple[str, ...]
    unlocked: tuple[str, ...] = ()


class TargetChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The target for a project, ordered alternatives, and packages to exclude or build.

    `excluded` maps packages to reasons, `missed` says what needs those named by the user; `sdists`
    are built; `relaxed` maps packages to the selected version. `indexes` are the used indexes of
    the project's files. `as_of` is None if the target's cut-off suffices.
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


def target_facts(project: Project, matrix: Matrix, request: ChoiceRequest) -> list[LockedFacts]:
    """The facts of each locked target on the requested architecture."""
    facts = []
    for name in project.locked_targets():
        lock = lock_file.read_lock(project.images, name)
        if request.arch in lock.arch and name in matrix.targets:
            facts.append(_facts(project, matrix, lock, request))
    return facts


def _facts(project: Project, matrix: Matrix, lock: Lock, request: ChoiceRequest) -> LockedFacts:
    target, needs = matrix.targets[lock.target], target_needs(project.images, lock)
    floors, resolution = needs.floors[request.arch], lock.arch[request.arch]
    path = image_digests.digests_path(project.images, lock.target)
    size = (
        image_digests.read_digests(project.images, lock).arch[request.arch].size
        if path.exists()
        else 0
    )
    return LockedFacts(
        target=lock.target,
        arch=request.arch,
        versions=resolution.versions,
        python=base_python(matrix.bases[target.base], resolution),
        cuda=lock.cuda,
        as_of=lock.as_of,
        tested=recording.highest_passed_tier(project, lock, [request.arch]) or "",
        recommended=target.recommended,
        retired=target.retired != "",
        driver=floors.driver,
        gpu=floors.gpu,
        size=size,
        unfit=judge_target(request.host, needs).reasons,
        learned=constraints.read_constraints(project.images),
    )


def select_facts(
    facts: Sequence[LockedFacts], request: ChoiceRequest, matrix: Matrix
) -> list[LockedFacts]:
    """The eligible targets. Raises NothingSelected, with available targets, if there are none."""
    if request.target is not None:
        named = [each for each in facts if each.target == request.target]
        if named:
            return named
        row = matrix.targets.get(request.target)
        if row is not None and request.arch in row.arch:
            message = f"{request.target} is not locked"
            raise NothingSelected(message, hint=status.lock_remedy(matrix, request.target))
        message = f"no locked target {request.target} for {request.arch}"
        raise NothingSelected(
            message, hint=f"available: {', '.join(each.target for each in facts)}"
        )
    of_cuda = [each for each in facts if request.cuda in (None, each.cuda)]
    if not of_cuda:
        have = sorted({each.cuda for each in facts}, key=gpus.version_numbers)
        message = f"no locked target for {request.arch} has CUDA {request.cuda}"
        raise NothingSelected(message, hint=f"available CUDA versions: {', '.join(have)}")
    fitting = [each for each in of_cuda if not each.unfit]
    if not fitting:
        message = f"no target can run on this machine: {of_cuda[0].unfit[0]}"
        raise NothingSelected(message, hint="specify another machine with --driver and --gpu")
    return fitting


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
        self._demands: dict[str, tuple[PackageDemand, ...]] = {}
        self._advice: list[BuildAdvice] = []

    def package_demands(self, python: str) -> tuple[PackageDemand, ...]:
        """The requirements for a Python version, without excluded and with relaxed packages."""
        if python not in self._demands:
            every = package_demands(self._declared, self._tags(python).environment_markers)
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
                    self._tags(python).environment_markers,
                    lambda demand: self._metadata(demand, python),
                )
        return self._demands[python]

    def _metadata(self, demand: PackageDemand, python: str) -> bytes:
        """METADATA of the wheel that satisfies a requirement. Empty if there is none."""
        pages, tags = self.pages, self._tags(python)
        wheel = (
            pages.pinned_wheel(demand, tags)
            if demand.pinned_version
            else pages.newest_wheel(demand, tags)
        )
        return pages.metadata(wheel) if wheel is not None else b""

    def _torch(self, facts: LockedFacts) -> tuple[str, str]:
        """The torch version of the image and its CUDA release, from the project or from `facts`.

        Of the versions that the project accepts, prefers the newest build for the CUDA release of
        the target or for a release in the files.
        """
        has = facts.versions.get("torch", "")
        demand = next((d for d in self.package_demands(facts.python) if d.package == "torch"), None)
        named = self.cuda() or (facts.cuda,)
        if (
            demand is None
            or demand.source
            or (demand.allows_version(has or "0") and facts.cuda in named)
        ):
            return has or "2.0", facts.cuda
        tags = self._tags(facts.python)
        wheels = self.pages.wheels(demand, tags)
        build = engine_torch.newest_build(
            wheels, self.pages.metadata, tags.environment_markers, named
        )
        if build is None:
            return demand.pinned_version or has or "2.0", max(named, key=gpus.version_numbers)
        return build.version.public, build.cuda or facts.cuda

    def cuda(self) -> tuple[str, ...]:
        """The CUDA releases implied by the project's files."""
        python = next(iter(self._matrix.bases.values())).python
        return cuda_named(self._declared, self._tags(python).environment_markers)

    def _tags(self, python: str) -> WheelTags:
        if python not in self._tags_of:
            minor = ".".join(python.split(".")[:2])
            bases = self._matrix.bases.values()
            glibc = next(base.glibc for base in bases if base.python in (python, minor))
            tags = WheelTags(python=python, glibc=glibc, arch=self._request.arch)
            self._tags_of[python] = tags
        return self._tags_of[python]

    def choose_target(self, folder: Path) -> TargetChoice:
        """The nearest target. The imports in the project's `folder` are read."""
        facts = target_facts(self._project, self._matrix, self._request)
        self._read_indexes({name for each in facts for name in each.versions}, folder)
        facts = select_facts(facts, self._request, self._matrix)
        facts = url_wheels.most_compatible(facts, self.package_demands, self._tags)
        by_name = {each.target: each for each in facts}
        near = choose.rank_candidates(facts, self._declared, self.package_demands, cuda=self.cuda())
        self._read_pages(near, by_name)
        while True:
            order = choose.rank_candidates(
                facts, self._declared, self.package_demands, self._conflicts, cuda=self.cuda()
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
        """All problems that prevent an image based on `chosen`, with `facts`."""
        pages, tags = self.pages, self._tags(facts.python)
        required = self._missing_pins(facts, asked)
        blocked = [
            *self._indexes.obstacles,
            *find_obstacles(asked, pages, tags),
            *url_wheels.unfit_wheels(asked, tags),
            *find_contradictions(required, self.package_demands(facts.python), self._declared),
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
        """Omit targets with the Python of `nearest` if a different Python has more wheels.

        The project must accept that Python. Only direct requirements are counted.
        """
        direct = {each.package for each in self.package_demands(nearest.python)}
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
            asked = [each for each in self.package_demands(python) if each.package in names]
            tags = self._tags(python)
            lacking = (
                *find_obstacles(asked, self.pages, tags),
                *url_wheels.unfit_wheels(asked, tags),
            )
            if len(lacking) < len(names):
                return [each for each in facts if each.python != nearest.python]
        return facts

    def _read_indexes(self, published: Collection[str], folder: Path) -> None:
        """Look up packages in the indexes declared in the project's files."""
        if not self._declared.indexes:
            return
        tags = self._tags(next(iter(self._matrix.bases.values())).python)
        wanted = [
            each
            for each in package_demands(self._declared, tags.environment_markers)
            if each.installed and each.package not in self._request.exclude
        ]
        self._indexes = project_indexes.find_project_indexes(
            self._declared.indexes, wanted, self.pages, tags,
            published=published, folder=folder,
        )  # fmt: skip
        addresses, assigned = self._indexes.addresses, self._indexes.packages
        self.pages = IndexPages(self._matrix, self._context, self.as_of, addresses, assigned)

    def _other_cuda(self, chosen: TargetCandidate, facts: LockedFacts) -> str:
        """The CUDA release that the files or their torch imply, if it is not the target's.

        The build of an exact torch decides if the files name another release of the same major
        version, with which it shares drivers.
        """
        if chosen.form != "like":
            return ""
        releases = sorted(() if self._request.cuda else self.cuda(), key=gpus.version_numbers)
        cuda = self._torch(facts)[1]
        exact = any(
            each.package == "torch" and each.pinned_version
            for each in self.package_demands(facts.python)
        )
        majors = {release.partition(".")[0] for release in releases}
        if releases and (not exact or cuda.partition(".")[0] not in majors):
            cuda = chosen.cuda if chosen.cuda in releases else releases[-1]
        return cuda if cuda != chosen.cuda else ""

    def _missing_toolkit_obstacles(
        self, chosen: TargetCandidate, facts: LockedFacts
    ) -> list[UnmetDemand]:
        """The torch or the CUDA release of the project, if no image can have this release."""
        built, named = self._torch(facts)[1], self._other_cuda(chosen, facts)
        if chosen.form != "like" or {built, named} <= {"", facts.cuda}:
            return []
        torch = next((d for d in self.package_demands(facts.python) if d.package == "torch"), None)
        return engine_torch.missing_toolkit_obstacles(
            torch, built, named, self._declared.cuda, self.pages, self._tags(facts.python)
        )

    def _overridden_packages(self) -> set[str]:
        return {r.package for r in self._declared.requirements if r.kind == "override"}

    def _excluded_packages(self) -> dict[str, str]:
        """Packages that the user excluded, or that are available only as CUDA source code."""
        named = sorted(self._request.exclude)
        return dict.fromkeys(named, "excluded with imgbuild init --exclude") | {
            each.package: each.reason for each in self._advice
        }

    def _open_demands(self, facts: LockedFacts) -> list[PackageDemand]:
        """The requirements that a target does not satisfy, up to the limit of lookups."""
        demands_left = [
            each for each in self.package_demands(facts.python) if not _is_satisfied(each, facts)
        ]
        return sorted(demands_left, key=lambda each: _weight(each.package))[:PAGES]

    def _read_pages(
        self, order: Sequence[TargetCandidate], facts: Mapping[str, LockedFacts]
    ) -> None:
        """Fetch index pages of open requirements of the nearest target, and of pins in others."""
        nearest = facts[order[0].target]
        names = {
            demand.package
            for demand in self._open_demands(nearest)
            if demand.installed and not demand.source
        }
        for each in order[: choose.FIRST_CANDIDATES]:
            pinned = (
                demand for demand in self.package_demands(each.python) if demand.pinned_version
            )
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
        """Conflicts between versions of the target and requirements of packages that it lacks."""
        changes: dict[str, TargetChange] = {}
        overrides = self._overridden_packages()
        for demand, requirements in self._missing_pins(facts, asked):
            is_torch = demand.package == "torch"  # its CUDA packages are those of the target
            needed = [
                each
                for each in requirements
                if not (is_torch and normalize_package(each.name).startswith("nvidia-"))
            ]
            needed += facts.learned_requirements(demand.package, str(demand.pinned_version))
            for change in required_changes(
                demand, str(demand.pinned_version), needed, facts.versions
            ):
                changes.setdefault(change.package, change)
        added = [d for d in asked if d.installed and d.package not in facts.versions][:PAGES]
        tags = self._tags(facts.python)
        ranges = range_conflicts(added, facts, self.pages, tags)
        every = {each.package: each for each in (*ranges, *changes.values())}
        return [each for each in every.values() if each.package not in overrides]

    def _missing_pins(
        self, facts: LockedFacts, asked: Sequence[PackageDemand]
    ) -> list[tuple[PackageDemand, list[Requirement]]]:
        """The pins missing in the target, up to the limit of lookups, with their requirements."""
        tags = self._tags(facts.python)
        pins = [
            demand
            for demand in asked
            if demand.installed
            and demand.pinned_version
            and not demand.source
            and not _is_satisfied(demand, facts)
        ]
        pins = sorted(pins, key=lambda each: _weight(each.package))[:PAGES]
        texts = threads.run_for_each(
            pins, lambda each, _: self._metadata(each, facts.python), threads=8
        )
        return [
            (demand, engine_torch.required_with_extras(demand, text, tags.environment_markers))
            for demand, text in zip(pins, texts, strict=True)
        ]

    def _add_suggestion(self, obstacle: UnmetDemand) -> UnmetDemand:
        """Add a similar name from the catalogue to `obstacle`, if the index lacks the package."""
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
        """The packages with only an sdist that compile CUDA code, and those that can be built."""
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
        """The requirements that a target does not satisfy and whose METADATA needs `package`."""
        demands_left = (
            d for d in self.package_demands(facts.python) if d.package not in facts.versions
        )
        added = sorted(demands_left, key=lambda each: _weight(each.package))
        return source_packages.demands_requiring(
            package, added, self.pages, self._tags(facts.python)
        )

    def _missed(self, facts: LockedFacts, folder: Path) -> tuple[str, ...]:
        """The packages excluded by the user that the project imports or its packages require."""
        modules = {name: source_only.imported_module(name) for name in self._request.exclude}
        imports = import_sites(folder, frozenset(modules.values()))
        needed = {
            name: [*map(str, imports[module]), *self._requiring(facts, name)]
            for name, module in modules.items()
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
        """The cut-off of the row. With `extends`, the target's, or the date for additions."""
        if chosen.form == "like":
            return self.as_of
        days = [
            day
            for demand in asked
            if demand.package in chosen.added and demand.installed and not demand.source
            if demand.package not in decided
            if (day := self.pages.first_day(demand, tags)) is not None
        ]
        latest = max(days, default=datetime.date.min)
        return latest if latest > datetime.date.fromisoformat(facts.as_of) else None

    def _wheel_counts(self) -> tuple[WheelCount, ...]:
        """The number of pinned wheels for each Python of a base."""
        locked = set(self._project.locked_targets())
        targets: dict[str, list[str]] = {}
        for name, target in self._matrix.targets.items():
            targets.setdefault(self._matrix.bases[target.base].python, []).append(name)
        counts = []
        for python in sorted(targets, key=Version):
            pinned = [
                demand
                for demand in self.package_demands(python)
                if demand.pinned_version and demand.installed and not demand.source
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
    """A sort key: packages that probably have no wheel, then packages with the most dependents."""
    known = source_only.is_source_project(package)
    return (not known, -choose.WEIGHTS.get(package, 1), package)


def _is_satisfied(demand: PackageDemand, facts: LockedFacts) -> bool:
    has = facts.versions.get(demand.package)
    return has is not None and not choose.contradicts_version(demand, has)


def unknown_debs(
    matrix: Matrix, base: str, names: Sequence[str], arch: Arch, context: Context
) -> dict[str, str]:
    """The Debian packages that the suite of a base lacks, with a similar name or ""."""
    debian = matrix.bases[base]
    if not names:
        return {}
    if not isinstance(debian, DebianBase):
        message = f"Debian packages cannot be added, because the base {base} is a registry image"
        raise InputError(message, hint="omit --system")
    try:
        return apt.unknown_packages(debian, arch, names, context)
    except ToolMissing as error:
        console.warn(f"could not check Debian packages: {error.message}")
        return {}
