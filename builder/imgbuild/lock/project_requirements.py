"""Combines the requirements in a project's files with those in a row of the matrix.

A pin in a lock file takes precedence over ranges in other files. The row's `exclude` and `relax`
take precedence over all files.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import msgspec
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from imgbuild.errors import InputError, InputProblem
from imgbuild.lock.model import EditablePackage
from imgbuild.matrix.extension import Extension
from imgbuild.project.model import (
    Declarations,
    DeclaredRequirement,
    FilePlace,
    LocalPackage,
    exact_version,
    marker_holds,
)
from imgbuild.system import boundary
from imgbuild.system.syntax import parse_requirement
from imgbuild.values import Sha256, normalize_package, sha256

MATRIX = "matrix.yaml"
NEVER_MARKER = "python_version < '0'"  # the marker of an override that excludes a package
PYTHON = "python"  # in `relax`
NO_VERSIONS: Mapping[str, EditablePackage] = {}
UNKNOWN_VERSION = "0.0.0"  # of a package whose version only its build backend knows


class ProjectRequirements(msgspec.Struct, frozen=True, kw_only=True):
    """The input of the resolver. Requirements are PEP 508 lines that uv accepts.

    `versions` maps packages to the combined specifiers of all files, for requirements that have no
    URL and apply to this Python. `direct` are the requirements with a URL. `hashes` are the hashes
    in files ("sha256:…"), and `python` the accepted versions of Python. `places` maps each package
    to the place of its first requirement.
    """

    lines: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    no_deps: frozenset[str] = frozenset()
    versions: dict[str, str] = {}
    direct: tuple[DeclaredRequirement, ...] = ()
    hashes: dict[str, frozenset[str]] = {}
    debian: tuple[str, ...] = ()
    python: tuple[tuple[str, FilePlace], ...] = ()
    places: dict[str, FilePlace] = {}
    exempt: dict[str, str] = {}
    declared: Declarations = Declarations()

    @property
    def direct_packages(self) -> frozenset[str]:
        """The directly required packages."""
        lines = (normalize_package(parse_requirement(line).name) for line in self.lines)
        return frozenset((*lines, *(item.package for item in self.direct)))

    @property
    def pins(self) -> dict[str, str]:
        """The exact versions of direct requirements, by package."""
        exact = {package: exact_version(spec) for package, spec in self.versions.items()}
        return {package: str(Version(version)) for package, version in exact.items() if version}

    @property
    def recorded_lines(self) -> tuple[str, ...]:
        """All fields as sorted lines, for comparison with a lock."""
        texts = [
            *self.lines,
            *(item.text for item in self.direct),
            *(f"constraint: {line}" for line in self.constraints),
            *(f"override: {line}" for line in self.overrides),
            *(f"no-deps: {package}" for package in self.no_deps),
            *(f"debian: {package}" for package in self.debian),
            *(f"python: {spec}" for spec, _ in self.python),
        ]
        return tuple(sorted(set(texts)))


def editable_packages(
    required: ProjectRequirements,
    workdir: str,
    described: Mapping[str, EditablePackage] = NO_VERSIONS,
    folder: Path | None = None,
) -> dict[str, EditablePackage]:
    """Return the installable packages of the project, which is mounted at `workdir`.

    `described` maps packages to dynamic metadata from build backends. If the project's `folder` is
    given, setup.py files are hashed.
    """
    packages = {}
    for item in required.declared.packages:
        if not item.backend:
            continue
        roots = image_roots(item, workdir)
        same = (name for name, other in described.items() if other.roots == roots)
        name = normalize_package(item.name) if item.name else next(same, "")
        if not name:
            continue
        backend = described.get(name) if item.dynamic else None
        version = item.version or (backend.version if backend is not None else UNKNOWN_VERSION)
        packages[name] = EditablePackage(
            version=str(Version(version)),
            roots=roots,
            scripts=item.scripts or (backend.scripts if backend is not None else {}),
            requires=backend.requires
            if backend is not None and "dependencies" in item.dynamic
            else item.requires,
            python=item.requires_python or (backend.python if backend is not None else ""),
            setup=_setup_hash(folder / item.folder)
            if folder is not None and item.dynamic
            else None,
        )
    return dict(sorted(packages.items()))


def _setup_hash(folder: Path) -> Sha256 | None:
    path = folder / "setup.py"
    return sha256(boundary.read_regular_file(path)) if path.is_file() else None


def image_roots(item: LocalPackage, workdir: str) -> tuple[str, ...]:
    """Return the folders in the image that a package of the project adds to `sys.path`."""
    return tuple(posixpath.normpath(f"{workdir}/{root}") for root in item.roots)


def row_requirements(
    row: Extension, folder: Path, markers: Mapping[str, str]
) -> ProjectRequirements:
    """Return the requirements of a `row` in the matrix in `folder`, for PEP 508 `markers`.

    Raises InputError, with all problems, if a file is unreadable.
    """
    declared = read_declared(row, folder)
    left_out = (each.name for each in declared.excluded if marker_holds(each.marker, markers))
    excluded = {normalize_package(package) for package in (*row.exclude, *left_out)}
    relaxed = {normalize_package(package): item.spec for package, item in row.relax.items()}
    applying = [
        item
        for item in declared.requirements
        if item.applies_to(markers) and item.package not in excluded
        if not item.path or has_address(item)  # a folder is in `declared.packages`
    ]
    direct = [
        item
        for item in applying
        if item.kind == "requirement" and not item.locked and not item.path
    ]
    overrides = [item for item in applying if item.kind == "override"]
    bounds = [item for item in applying if item.kind == "constraint" or item.locked]
    bounds = [item for item in bounds if item.package not in relaxed]
    overridden = {
        item.package: str(item.parsed_requirement.specifier) for item in overrides
    } | relaxed
    return ProjectRequirements(
        lines=_unique_texts(
            _line(item, relaxed) for item in direct if not item.parsed_requirement.url
        ),
        constraints=_unique_texts(
            f"{item.package}{item.parsed_requirement.specifier}"
            for item in bounds
            if not item.parsed_requirement.url
        ),
        overrides=_overrides(overrides, relaxed, excluded),
        no_deps=frozenset(
            (
                *(item.package for item in applying if item.no_deps),
                # Their requirements are already included, with their places.
                *(normalize_package(item.name) for item in declared.packages),
            )
        ),
        versions=_versions(direct, bounds, overridden),
        direct=tuple(item for item in applying if has_address(item)),
        hashes=_hashes(applying),
        debian=_debian(row, declared),
        python=(
            ((relaxed[PYTHON], FilePlace(file=MATRIX)),)
            if PYTHON in relaxed
            else tuple((item.spec, item.place) for item in declared.required_python)
        ),
        places={item.package: item.place for item in reversed(direct)},
        exempt={
            **{item.package: f"overridden in {item.place}" for item in overrides},
            **{normalize_package(name): f"excluded: {why}" for name, why in row.exclude.items()},
        },
        declared=declared,
    )


def _debian(row: Extension, declared: Declarations) -> tuple[str, ...]:
    of_files = {item.name for item in declared.debian} - row.exclude.keys()
    return tuple(sorted({*row.packages, *of_files}))


def _overrides(
    overrides: Sequence[DeclaredRequirement], relaxed: Mapping[str, str], excluded: Iterable[str]
) -> tuple[str, ...]:
    """Return overrides of METADATA. For excluded packages, the marker is never true."""
    return _unique_texts(
        (
            *(
                f"{item.package}{relaxed[item.package]}" if item.package in relaxed else item.text
                for item in overrides
            ),
            *(f"{package} ; {NEVER_MARKER}" for package in sorted(excluded)),
        )
    )


def read_declared(row: Extension, folder: Path) -> Declarations:
    """Read the declarations of `row` and of its files.

    The result is cached until a file changes.
    """
    added = [
        DeclaredRequirement(text=str(parse_requirement(line)), place=FilePlace(file=MATRIX))
        for line in row.add
    ]
    if not row.requirements:
        return Declarations(requirements=tuple(added))
    states = tuple(_state(folder / name) for name in row.requirements)
    names = tuple(sorted(row.names.items()))
    declared = _read_files(folder, row.requirements, row.extras, row.groups, names, states)
    return msgspec.structs.replace(declared, requirements=(*declared.requirements, *added))


@lru_cache(maxsize=64)
def _read_files(
    folder: Path,
    files: tuple[str, ...],
    extras: tuple[str, ...],
    groups: tuple[str, ...],
    names: tuple[tuple[str, str], ...],
    states: tuple[tuple[int, int, int], ...],
) -> Declarations:
    from imgbuild.project import read  # many modules, which a row without files does not need

    del states  # only a key
    return read.read_declared(folder, files, extras=extras, groups=groups, names=dict(names))


def _state(path: Path) -> tuple[int, int, int]:
    try:
        status = path.stat()
    except OSError:
        return (0, 0, 0)  # reading it raises the error
    return (status.st_ino, status.st_size, status.st_mtime_ns)


def _line(item: DeclaredRequirement, relaxed: Mapping[str, str]) -> str:
    """Format a requirement without the marker. A relaxed version replaces the specifier."""
    requirement = parse_requirement(item.text)
    requirement.marker = None
    if item.package in relaxed:
        requirement.specifier = SpecifierSet(relaxed[item.package])
    return str(requirement)


def has_address(item: DeclaredRequirement) -> bool:
    """Return whether `item` is installed from a URL, a path or a git repository."""
    if item.kind != "requirement" or item.locked:
        return False
    return item.parsed_requirement.url is not None or item.path.endswith(".whl")


def _versions(
    direct: Sequence[DeclaredRequirement],
    bounds: Sequence[DeclaredRequirement],
    overridden: Mapping[str, str],
) -> dict[str, str]:
    specs = {item.package: SpecifierSet() for item in direct if not item.parsed_requirement.url}
    for item in (*direct, *bounds):
        if item.package in specs:
            specs[item.package] &= item.parsed_requirement.specifier
    # A lock file takes precedence over ranges of other files.
    locked = {
        item.package: item.parsed_requirement.specifier
        for item in bounds
        if item.locked and item.package in specs
    }
    specs |= locked
    specs |= {name: SpecifierSet(spec) for name, spec in overridden.items() if name in specs}
    return {package: str(spec) for package, spec in sorted(specs.items())}


def _hashes(items: Iterable[DeclaredRequirement]) -> dict[str, frozenset[str]]:
    hashes: dict[str, frozenset[str]] = {}
    for item in items:
        if item.hashes:
            hashes[item.package] = hashes.get(item.package, frozenset()) | set(item.hashes)
    return hashes


def _unique_texts(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))


def contradicted_versions(
    required: ProjectRequirements, versions: Mapping[str, str]
) -> tuple[tuple[str, str, FilePlace], ...]:
    """Return (package, specifier, place) for requirements that exclude a version in `versions`."""
    return tuple(
        (package, spec, required.places[package])
        for package, spec in required.versions.items()
        if package in versions
        and not SpecifierSet(spec).contains(versions[package], prereleases=True)
    )


def refuse_contradictions(
    required: ProjectRequirements, versions: Mapping[str, str], published: str
) -> None:
    """Raise InputError if packages of a published target contradict `required`."""
    problems = tuple(
        InputProblem(
            file=place.file,
            line=place.line or None,
            path=package,
            message=(
                f"{published} has {package} {versions[package]}, and `extends` does not change "
                "versions"
            ),
            value=f"{package}{spec}",
            expected=f"the version in {published}, or `like: {published}`",
        )
        for package, spec, place in contradicted_versions(required, versions)
    )
    if problems:
        message = f"the versions in {published} do not satisfy the project's requirements"
        hint = f"to resolve the packages again, use `like: {published}` in {MATRIX}"
        raise InputError(message, problems=problems, hint=hint)
