"""Finds newer versions on indexes, and determines which versions METADATA allows.

Only index pages and METADATA are read. Nothing is resolved. A version is allowed if no pinned or
kept package excludes it, even if other packages must change, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from imgbuild.attest.sbom import needs
from imgbuild.cache.context import Context
from imgbuild.errors import FetchFailed, ImgbuildError
from imgbuild.index.candidates import best_wheel, final_releases, is_sdist, public_version
from imgbuild.index.cuda_releases import METAPACKAGE, active_requirements, is_cpu_build
from imgbuild.index.pages import IndexFile, IndexLookup
from imgbuild.index.remote_wheel import read_wheel_metadata
from imgbuild.matrix import constraints
from imgbuild.matrix.constraints import Constraint
from imgbuild.project.model import exact_version
from imgbuild.solve.torch import TORCH, torch_build
from imgbuild.system import threads
from imgbuild.values import normalize_package
from imgbuild.wheel.tags import WheelTags

THREADS = 16
TRIED_LIMIT = 6  # versions of a package of which METADATA is read, the newest first

AdvanceFunction = Callable[[int], object]


class RequiredVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A requirement of the user for a package: specifier, place in a file, and extras."""

    spec: str = ""
    place: str = ""
    extras: tuple[str, ...] = ()


class VersionSet(msgspec.Struct, frozen=True, kw_only=True):
    """The versions of packages for machines with `tags`. METADATA is read for the first tags.

    `wanted` are requirements of the user. `requires` maps packages to the requirements of their
    versions. `kept` maps packages that cannot be changed to reasons. `cuda` is the CUDA release of
    the set, or "" if unknown. `known` are learned constraints. `sdists` are packages that can be
    built from an sdist.
    """

    name: str
    tags: tuple[WheelTags, ...]
    versions: Mapping[str, str]
    wanted: Mapping[str, RequiredVersion]
    requires: Mapping[str, Iterable[str]]
    kept: Mapping[str, str] = {}
    cuda: str = ""
    known: tuple[Constraint, ...] = ()
    sdists: frozenset[str] = frozenset()


class NewerVersion(msgspec.Struct, frozen=True, kw_only=True, rename={"allowed": "takes"}):
    """A package with its version, the newest version on the index, and the newest allowed version.

    `newest` is the current version if the index has no newer version. `allowed` is "" if no newer
    version is allowed. `moves` are packages that must change together with the package. `reasons`
    are reasons against `newest`. If all locked targets with version `allowed` have another engine
    than the set, `elsewhere` lists these engines. `error` is set if the package could not be
    checked, and `unreachable` if the index could not be read. `required` is false if only other
    packages require the package. `pinned` is set if the row of the target pins the package. `notes`
    are sentences about the package in the notes of the target.
    """

    package: str
    version: str
    newest: str = ""
    allowed: str = ""
    moves: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    elsewhere: str = ""
    required: bool = True
    pinned: bool = False
    notes: tuple[str, ...] = ()
    error: str = ""
    unreachable: bool = False

    @property
    def is_outdated(self) -> bool:
        """True if a newer version exists or the newest version is unknown."""
        return bool(self.error) or self.newest not in ("", self.version)


def look_up_newer(
    packages: VersionSet,
    names: Sequence[str],
    indexes: IndexLookup,
    context: Context,
    advance: AdvanceFunction,
) -> list[NewerVersion]:
    """Look up newer versions of `names` on the indexes in parallel, and return them in order.

    If the page of a package cannot be read, the result of the package contains the error.
    """
    lookup = _NewerLookup(packages, indexes, context)

    def _newer_version(name: str, _: threads.StopFlag) -> NewerVersion:
        try:
            return lookup.find_newer(name)
        except ImgbuildError as error:
            unreachable = isinstance(error, FetchFailed)
            return lookup.row(name, error=error.message, unreachable=unreachable)
        finally:
            advance(1)

    return threads.run_for_each(names, _newer_version, threads=THREADS)


class _VersionObstacles(msgspec.Struct, frozen=True, kw_only=True):
    reasons: tuple[str, ...]
    moves: tuple[str, ...]
    metadata: bool


class _NewerLookup:
    def __init__(self, packages: VersionSet, indexes: IndexLookup, context: Context) -> None:
        self._set, self._indexes, self._context = packages, indexes, context
        self._markers = packages.tags[0].markers
        self._bounds: dict[str, list[tuple[str, Requirement]]] = {}
        self._extras: dict[str, set[str]] = {
            package: set(wanted.extras) for package, wanted in packages.wanted.items()
        }
        for need in needs.applied_requirements(packages.requires, self._markers):
            other = normalize_package(need.requirement.name)
            self._bounds.setdefault(other, []).append((need.package, need.requirement))
            self._extras.setdefault(other, set()).update(need.requirement.extras)
        self._violated = set(constraints.violated_constraints(packages.known, packages.versions))

    def row(self, package: str, **fields: Any) -> NewerVersion:
        values: dict[str, Any] = {
            "package": package,
            "version": self._set.versions.get(package, ""),
            "required": package in self._set.wanted,
            **fields,
        }
        return NewerVersion(**values)

    def find_newer(self, package: str) -> NewerVersion:
        has = public_version(self._set.versions[package])
        files = self._indexes.files(package)
        if not files:
            return self.row(package, error="the index has no such package")
        releases = final_releases(file for file in files if file.is_wheel or is_sdist(file))
        later = sorted((version for version in releases if version > has), reverse=True)
        if not later:
            return self.row(package, newest=self._set.versions[package])
        first = self._version_obstacles(package, later[0], releases[later[0]], whole=True)
        allowed, tried = "", 0
        moves: tuple[str, ...] = ()
        for version in later:
            stops = first
            if version != later[0]:
                stops = self._version_obstacles(package, version, releases[version], whole=False)
                tried += stops.metadata
            if not stops.reasons:
                allowed, moves = str(version), stops.moves
                break
            if tried >= TRIED_LIMIT:
                break
        return self.row(
            package, newest=str(later[0]), allowed=allowed, moves=moves, reasons=first.reasons
        )

    # -- reasons against a version

    def _version_obstacles(
        self, package: str, version: Version, files: Sequence[IndexFile], *, whole: bool
    ) -> _VersionObstacles:
        """Find the reasons against a version.

        METADATA is read only if no other reason is found, or if `whole` is set. For a kept package,
        the reason to keep it is the only reason.
        """
        if package in self._set.kept:
            return _VersionObstacles(reasons=(self._set.kept[package],), moves=(), metadata=False)
        built = package in self._set.sdists and any(map(is_sdist, files))
        reasons = [] if built else list(file_reasons(files, self._set.tags))
        wanted = self._set.wanted.get(package, RequiredVersion())
        spec = SpecifierSet(wanted.spec)
        if not self._is_fixed(package) and not spec.contains(version, prereleases=True):
            reasons.append(f"{wanted.place} requires {package}{wanted.spec}".strip())
        moves: list[str] = []
        for other, requirement in self._bounds.get(package, ()):
            if other == package or requirement.specifier.contains(version, prereleases=True):
                continue
            if self._is_fixed(other):
                has = self._set.versions[other]
                reasons.append(f"{other} {has} requires {package}{requirement.specifier}")
            else:
                moves.append(other)
        reasons += self._learned_reasons(package, version)
        wheel = _readable_wheel(files, self._set.tags[0]) if whole or not reasons else None
        if wheel is not None:
            self._read_requirements(package, version, wheel, reasons, moves)
        return _VersionObstacles(
            reasons=tuple(dict.fromkeys(reasons)),
            moves=tuple(dict.fromkeys(moves)),
            metadata=wheel is not None,
        )

    def _is_fixed(self, package: str) -> bool:
        if package in self._set.kept:
            return True
        wanted = self._set.wanted.get(package)
        return wanted is not None and exact_version(wanted.spec) is not None

    def _read_requirements(
        self,
        package: str,
        version: Version,
        wheel: IndexFile,
        reasons: list[str],
        moves: list[str],
    ) -> None:
        data = read_wheel_metadata(wheel, self._context.http, self._context.store)
        required = active_requirements(data, self._markers, sorted(self._extras.get(package, ())))
        for each in required:
            other = normalize_package(each.name)
            has = self._set.versions.get(other)
            if has is None or other == package or (package == TORCH and _is_cuda_requirement(each)):
                continue
            if each.specifier.contains(has, prereleases=True):
                continue
            if self._is_fixed(other):
                reasons.append(f"{version} requires {other}{each.specifier}, not {has}")
            else:
                moves.append(other)
        reasons += self._too_old(package, version, data)
        if package == TORCH and self._set.cuda and wheel.version is not None:
            reasons += _cuda_reasons(wheel.version, required, self._set.cuda)

    def _too_old(self, package: str, version: Version, data: bytes) -> list[str]:
        """Find packages in the set that are older than the code of `package` supports.

        If an extra of `package` has the name of a package, its range shows which versions the code
        supports, even if the extra is not used. Packages newer than the range are ignored, because
        ranges often end at the version that was current at the time of the release.
        """
        reasons = []
        plain = active_requirements(data, self._markers)
        for other, has in self._set.versions.items():
            if (
                other == package
                or other in self._extras.get(package, ())
                or not self._is_fixed(other)
            ):
                continue
            for each in active_requirements(data, self._markers, [other]):
                if each in plain or normalize_package(each.name) != other:
                    continue
                if _is_below(has, each.specifier):
                    line = f"{other}{each.specifier}"
                    reasons.append(f"{version} supports {line} (extra {other}), not {has}")
        return reasons

    def _learned_reasons(self, package: str, version: Version) -> list[str]:
        changed = {**self._set.versions, package: str(version)}
        new = [
            entry
            for entry in self._set.known
            if package in (entry.package, entry.other)
            and entry not in self._violated
            and entry.is_violated(changed)
        ]
        return [f"learned: {entry.package}{entry.versions} needs {entry.needs}" for entry in new]


def _is_below(version: str, spec: SpecifierSet) -> bool:
    lowest = [clause for clause in spec if clause.operator in (">=", ">", "~=", "==")]
    return any(
        not clause.contains(version, prereleases=True)
        and public_version(version) < public_version(clause.version.removesuffix(".*"))
        for clause in lowest
    )


def file_reasons(files: Sequence[IndexFile], machines: Sequence[WheelTags]) -> tuple[str, ...]:
    """Return the reasons why files of a version cannot be installed on all of `machines`."""
    wheels = [file for file in files if file.is_wheel]
    if not wheels:
        return ("only an sdist",)
    reasons: dict[str, None] = {}
    for tags in machines:
        here = [file for file in wheels if tags.is_compatible(file.name)]
        if any(_accepts_python(file, tags) for file in here):
            continue
        refusing = next(
            (file for file in (*here, *wheels) if not _accepts_python(file, tags)), None
        )
        if refusing is not None:
            reasons[
                f"requires Python {refusing.requires_python}, but the package set has {tags.python}"
            ] = None
        else:
            minor = ".".join(tags.python.split(".")[:2])
            reasons[f"no wheel for {tags.arch} with Python {minor}"] = None
    return tuple(reasons)


def _accepts_python(file: IndexFile, tags: WheelTags) -> bool:
    try:
        spec = SpecifierSet(file.requires_python or "")
    except InvalidSpecifier:
        return True
    return spec.contains(tags.markers["python_full_version"], prereleases=True)


def _readable_wheel(files: Sequence[IndexFile], tags: WheelTags) -> IndexFile | None:
    """Return the best wheel for `tags`, or else any wheel, to read its METADATA."""
    wheels = [file for file in files if file.is_wheel]
    versions = {file.version for file in wheels if file.version is not None}
    fitting = (best_wheel(wheels, version, tags) for version in sorted(versions, reverse=True))
    return next((file for file in fitting if file is not None), next(iter(wheels), None))


def _is_cuda_requirement(requirement: Requirement) -> bool:
    name = normalize_package(requirement.name)
    return name == METAPACKAGE or name.startswith("nvidia-")


def _cuda_reasons(version: Version, required: Sequence[Requirement], cuda: str) -> list[str]:
    if is_cpu_build(version, required):
        return [f"this index has no CUDA build of torch {version}"]
    release = torch_build(version, required).cuda
    if release in (None, cuda):
        return []
    return [f"the wheel is built for CUDA {release}, but the package set has CUDA {cuda}"]
