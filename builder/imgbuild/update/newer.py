"""Newer versions on the index: which there are, which METADATA allow, what stops the rest.

Only pages of indexes and METADATA are read; nothing is solved. A version is allowed if nothing
that is pinned or kept stops it; packages that are only required by others may have to move with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from imgbuild.attest.sbom import needs
from imgbuild.cache.context import Context
from imgbuild.errors import ImgbuildError
from imgbuild.index.candidates import best, final_releases, is_sdist, public
from imgbuild.index.cuda_releases import METAPACKAGE, active, is_cpu_build
from imgbuild.index.pages import Indexes, IndexFile
from imgbuild.index.remote_wheel import metadata
from imgbuild.matrix import constraints
from imgbuild.matrix.constraints import Constraint
from imgbuild.project.model import exact_version
from imgbuild.solve.torch import TORCH, build_of
from imgbuild.system import threads
from imgbuild.values import normalize
from imgbuild.wheel.tags import Tags

THREADS = 16
TRIED = 6  # versions of a package of which METADATA is read, the newest first

Progress = Callable[[int], object]


class RequiredVersion(msgspec.Struct, frozen=True, kw_only=True):
    """What a user requires of a package: a specifier, where it is written, extras."""

    spec: str = ""
    place: str = ""
    extras: tuple[str, ...] = ()


class VersionSet(msgspec.Struct, frozen=True, kw_only=True):
    """Packages at their versions, on machines with `tags`, the first of which METADATA is for.

    `wanted` are those that the user requires. `requires` is package → the requirements of its
    version. `kept` maps packages that cannot be changed to the reason. `cuda` is the release of the
    set, "" if none is known; `known` are learned constraints, `sdists` packages that may be built.
    """

    name: str
    tags: tuple[Tags, ...]
    versions: Mapping[str, str]
    wanted: Mapping[str, RequiredVersion]
    requires: Mapping[str, Iterable[str]]
    kept: Mapping[str, str] = {}
    cuda: str = ""
    known: tuple[Constraint, ...] = ()
    sdists: frozenset[str] = frozenset()


class NewerVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A package: its version, the newest final one on its index, and the newest allowed one.

    `newest` is the package's own version if there is no newer one. `takes` is "" if no newer
    version is allowed; `moves` are packages that have to move with it. `reasons` say what stops
    `newest`; `elsewhere` the engines that locked targets with `takes` have, if none has that of the
    set; `error` why nothing is known. `required` is false for what only other packages
    require.
    """

    package: str
    version: str
    newest: str = ""
    takes: str = ""
    moves: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    elsewhere: str = ""
    required: bool = True
    error: str = ""

    @property
    def outdated(self) -> bool:
        """Whether there is a newer version, or whether that is unknown."""
        return bool(self.error) or self.newest not in ("", self.version)


def look(
    packages: VersionSet,
    names: Sequence[str],
    indexes: Indexes,
    context: Context,
    advance: Progress,
) -> list[NewerVersion]:
    """What the indexes have newer of `names`, in this order; several are looked up at once.

    A page that cannot be read is the error of its package alone.
    """
    lookup = _Lookup(packages, indexes, context)

    def _newer(name: str, _: threads.Stop) -> NewerVersion:
        try:
            return lookup.newer(name)
        except ImgbuildError as error:
            return lookup.row(name, error=error.message)
        finally:
            advance(1)

    return threads.each(names, _newer, threads=THREADS)


class _Stops(msgspec.Struct, frozen=True, kw_only=True):
    """What stops a version, and what has to move with it; whether its METADATA was read."""

    reasons: tuple[str, ...]
    moves: tuple[str, ...]
    metadata: bool


class _Lookup:
    """One set of packages and the indexes that it is compared with."""

    def __init__(self, packages: VersionSet, indexes: Indexes, context: Context) -> None:
        self._set, self._indexes, self._context = packages, indexes, context
        self._markers = packages.tags[0].markers
        self._bounds: dict[str, list[tuple[str, Requirement]]] = {}
        self._extras: dict[str, set[str]] = {
            package: set(wanted.extras) for package, wanted in packages.wanted.items()
        }
        for need in needs.applied(packages.requires, self._markers):
            other = normalize(need.requirement.name)
            self._bounds.setdefault(other, []).append((need.package, need.requirement))
            self._extras.setdefault(other, set()).update(need.requirement.extras)
        self._violated = set(constraints.violations(packages.known, packages.versions))

    def row(self, package: str, **fields: object) -> NewerVersion:
        """A row of `package` with its version and `fields`."""
        values = {
            "package": package,
            "version": self._set.versions.get(package, ""),
            "required": package in self._set.wanted,
            **fields,
        }
        return msgspec.convert(values, NewerVersion)

    def newer(self, package: str) -> NewerVersion:
        """What the index of `package` has newer than its version."""
        has = public(self._set.versions[package])
        files = self._indexes.files(package)
        if not files:
            return self.row(package, error="the index has no such package")
        releases = final_releases(file for file in files if file.is_wheel or is_sdist(file))
        later = sorted((version for version in releases if version > has), reverse=True)
        if not later:
            return self.row(package, newest=self._set.versions[package])
        first = self._stops(package, later[0], releases[later[0]], whole=True)
        takes, tried = "", 0
        moves: tuple[str, ...] = ()
        for version in later:
            stops = first
            if version != later[0]:
                stops = self._stops(package, version, releases[version], whole=False)
                tried += stops.metadata
            if not stops.reasons:
                takes, moves = str(version), stops.moves
                break
            if tried >= TRIED:
                break
        return self.row(
            package, newest=str(later[0]), takes=takes, moves=moves, reasons=first.reasons
        )

    # -- what stops a version

    def _stops(
        self, package: str, version: Version, files: Sequence[IndexFile], *, whole: bool
    ) -> _Stops:
        """What stops a version; its METADATA is read if nothing else does, or if `whole`.

        For a package that is kept, this is the only reason.
        """
        if package in self._set.kept:
            return _Stops(reasons=(self._set.kept[package],), moves=(), metadata=False)
        built = package in self._set.sdists and any(map(is_sdist, files))
        reasons = [] if built else list(file_reasons(files, self._set.tags))
        wanted = self._set.wanted.get(package, RequiredVersion())
        spec = SpecifierSet(wanted.spec)
        if not self._hard(package) and not spec.contains(version, prereleases=True):
            reasons.append(f"{wanted.place} requires {package}{wanted.spec}".strip())
        moves: list[str] = []
        for other, requirement in self._bounds.get(package, ()):
            if other == package or requirement.specifier.contains(version, prereleases=True):
                continue
            if self._hard(other):
                has = self._set.versions[other]
                reasons.append(f"{other} {has} requires {package}{requirement.specifier}")
            else:
                moves.append(other)
        reasons += self._learned(package, version)
        wheel = _readable(files, self._set.tags[0]) if whole or not reasons else None
        if wheel is not None:
            self._read(package, version, wheel, reasons, moves)
        return _Stops(
            reasons=tuple(dict.fromkeys(reasons)),
            moves=tuple(dict.fromkeys(moves)),
            metadata=wheel is not None,
        )

    def _hard(self, package: str) -> bool:
        """Whether a package is pinned by the user, or kept."""
        if package in self._set.kept:
            return True
        wanted = self._set.wanted.get(package)
        return wanted is not None and exact_version(SpecifierSet(wanted.spec)) is not None

    def _read(
        self,
        package: str,
        version: Version,
        wheel: IndexFile,
        reasons: list[str],
        moves: list[str],
    ) -> None:
        """Add what METADATA of a version requires that the set has otherwise."""
        data = metadata(wheel, self._context.http, self._context.store)
        required = active(data, self._markers, sorted(self._extras.get(package, ())))
        for each in required:
            other = normalize(each.name)
            has = self._set.versions.get(other)
            if has is None or other == package or (package == TORCH and _of_cuda(each)):
                continue
            if each.specifier.contains(has, prereleases=True):
                continue
            if self._hard(other):
                reasons.append(f"{version} requires {other}{each.specifier}, not {has}")
            else:
                moves.append(other)
        if package == TORCH and self._set.cuda and wheel.version is not None:
            reasons += _cuda_reasons(wheel.version, required, self._set.cuda)

    def _learned(self, package: str, version: Version) -> list[str]:
        changed = {**self._set.versions, package: str(version)}
        new = [
            entry
            for entry in self._set.known
            if package in (entry.package, entry.other)
            and entry not in self._violated
            and entry.violated(changed)
        ]
        return [f"learned: {entry.package}{entry.versions} needs {entry.needs}" for entry in new]


def file_reasons(files: Sequence[IndexFile], machines: Sequence[Tags]) -> tuple[str, ...]:
    """Why the files of one version cannot be installed on all of `machines`; empty if they can."""
    wheels = [file for file in files if file.is_wheel]
    if not wheels:
        return ("only an sdist",)
    reasons: dict[str, None] = {}
    for tags in machines:
        here = [file for file in wheels if tags.fits(file.name)]
        if any(_accepts(file, tags) for file in here):
            continue
        refusing = next((file for file in (*here, *wheels) if not _accepts(file, tags)), None)
        if refusing is not None:
            reasons[f"requires Python {refusing.requires_python}, the set has {tags.python}"] = None
        else:
            minor = ".".join(tags.python.split(".")[:2])
            reasons[f"no wheel for {tags.arch} with Python {minor}"] = None
    return tuple(reasons)


def _accepts(file: IndexFile, tags: Tags) -> bool:
    """Whether the Python of `tags` is one that `file` says it is for."""
    try:
        spec = SpecifierSet(file.requires_python or "")
    except InvalidSpecifier:
        return True
    return spec.contains(tags.markers["python_full_version"], prereleases=True)


def _readable(files: Sequence[IndexFile], tags: Tags) -> IndexFile | None:
    """The wheel whose METADATA is read: the best for `tags`, else any."""
    wheels = [file for file in files if file.is_wheel]
    versions = {file.version for file in wheels if file.version is not None}
    fitting = (best(wheels, version, tags) for version in sorted(versions, reverse=True))
    return next((file for file in fitting if file is not None), next(iter(wheels), None))


def _of_cuda(requirement: Requirement) -> bool:
    name = normalize(requirement.name)
    return name == METAPACKAGE or name.startswith("nvidia-")


def _cuda_reasons(version: Version, required: Sequence[Requirement], cuda: str) -> list[str]:
    """Whether a torch is built for another CUDA release than the set has."""
    if is_cpu_build(version, required):
        return [f"torch {version} has no CUDA on this index"]
    release = build_of(version, required).cuda
    if release in (None, cuda):
        return []
    return [f"its wheel is built for CUDA {release}, the set has CUDA {cuda}"]
