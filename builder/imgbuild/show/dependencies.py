"""Computes the dependencies between packages in a set, and the bounds on their versions.

The requirements are read from the METADATA files of wheels, as recorded in `images/packages.json`,
and from the lock of the target.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from packaging.requirements import Requirement
from packaging.specifiers import Specifier, SpecifierSet
from packaging.version import Version

from imgbuild.attest.sbom import needs
from imgbuild.errors import InputError
from imgbuild.lock.lock_file import Lock
from imgbuild.matrix.constraints import Constraint
from imgbuild.matrix.notes import nearest_choice
from imgbuild.plan.image_digests import LayerDigests
from imgbuild.plan.plan import FilesRecipe, Plan, WheelsRecipe
from imgbuild.system.syntax import is_within
from imgbuild.values import Arch, Bytes, normalize_package
from imgbuild.wheel.tags import WheelTags

ANY_VERSION = "any version"
REPEATED_MARK = " (*)"  # after a package whose dependencies are above


class PackageDependency(msgspec.Struct, frozen=True, kw_only=True):
    """A requirement of `package` on `needs`. `requirement` is the text in METADATA.

    `spec` is the specifier, or "" for any version. `extra` is the extra of `package` that declares
    the requirement. Markers are omitted, because only requirements that apply are included.
    """

    package: str
    version: str
    needs: str
    requirement: str
    spec: str
    extra: str = ""


class DependencyGraph(msgspec.Struct, frozen=True, kw_only=True):
    """The packages of a target and their dependencies. The target requires the packages in `roots`.

    `packages` maps packages to versions, and `roots` maps packages to specifiers.
    """

    target: str
    arch: Arch
    roots: dict[str, str]
    packages: dict[str, str]
    dependencies: tuple[PackageDependency, ...]


class PackageLayer(msgspec.Struct, frozen=True, kw_only=True):
    """The layers that change with the version of a package, and their download size.

    `position` (starting at 1) and `name` refer to the layer with the package. `others` is the
    number of other packages in this layer. `layers` and `size` include the layer with imgbuild's
    files if these files contain versions.
    """

    position: int
    name: str
    others: int
    layers: tuple[str, ...]
    size: Bytes


class VersionReason(msgspec.Struct, frozen=True, kw_only=True):
    """The reasons for the version of a package in a target.

    `target_spec` is the specifier of the target, or None if the target does not require the
    package. `dependents` lists the packages that require the package. `bounds` combines all bounds,
    and `unpinned` all bounds except `target_spec`. `exact` lists the requirements of the package on
    exact versions of other packages. `learned` lists learned constraints on the package. `as_of` is
    the cut-off date for uploads. `notes` has sentences about the package from notes of the target.
    `refused` has versions that `imgbuild update` rejected, with reasons. `layer` has the layers
    that change with the version, or None for a target without digests.
    """

    target: str
    arch: Arch
    package: str
    version: str
    as_of: str
    target_spec: str | None
    dependents: tuple[PackageDependency, ...]
    bounds: str
    unpinned: str = ""
    exact: tuple[PackageDependency, ...] = ()
    learned: tuple[Constraint, ...] = ()
    notes: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    layer: PackageLayer | None = None


class UnmetRequirement(msgspec.Struct, frozen=True, kw_only=True):
    """A requirement on `package` that a target with `version` does not satisfy."""

    package: str
    spec: str
    version: str
    learned: bool = False


class AbsentPackage(msgspec.Struct, frozen=True, kw_only=True):
    """The reasons against adding `version` of a package, which other `targets` have, to a target.

    `lacks` lists other required packages that the target does not have. `pythons` are those of
    `targets`.
    """

    target: str
    arch: Arch
    package: str
    version: str
    targets: tuple[str, ...]
    obstacles: tuple[UnmetRequirement, ...]
    lacks: tuple[str, ...] = ()
    pythons: tuple[str, ...] = ()


def dependency_graph(
    lock: Lock, arch: Arch, requires: Mapping[str, Iterable[str]]
) -> DependencyGraph:
    """Return the dependencies between packages of `lock`. `requires` maps packages to lines."""
    versions = {
        normalize_package(name): version for name, version in lock.arch[arch].versions.items()
    }
    base = lock.base
    markers = WheelTags(python=base.python, glibc=base.glibc, arch=arch).markers
    return DependencyGraph(
        target=lock.target,
        arch=arch,
        roots={name: spec for name, spec in lock.requirements.items() if name in versions},
        packages=versions,
        dependencies=tuple(
            PackageDependency(
                package=need.package,
                version=versions[need.package],
                needs=normalize_package(need.requirement.name),
                requirement=_without_marker(need.requirement),
                spec=str(need.requirement.specifier),
                extra=need.extra,
            )
            for need in needs.applied_requirements(requires, markers)
        ),
    )


def _without_marker(requirement: Requirement) -> str:
    """Format a requirement without the marker, such as torch[opt]<3,>=2.1."""
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    address = f" @ {requirement.url}" if requirement.url else ""
    return f"{normalize_package(requirement.name)}{extras}{requirement.specifier}{address}"


def package_name(package: str, versions: Mapping[str, str], target: str) -> str:
    """Normalize the name `package`. Raises InputError if `versions` does not contain the name."""
    name = normalize_package(package)
    if name not in versions:
        near = nearest_choice(name, versions)
        suggestion = f"did you mean {near}? " if near else ""
        message = f"{target} has no package {package}"
        raise InputError(
            message, hint=f"{suggestion}to list packages, run: imgbuild show {target} --packages"
        )
    return name


def absent_package(
    graph: DependencyGraph, package: str, lock: Lock, arch: Arch, learned: Sequence[Constraint]
) -> AbsentPackage:
    """Return requirements of `package` in `graph`, from METADATA and code, that a lock violates."""
    has, version = lock.arch[arch].versions, graph.packages[package]
    needed = {
        need.needs: need.spec
        for need in graph.dependencies
        if need.package == package and need.needs != package
    }
    bounds = [(name, spec, False) for name, spec in needed.items()]
    bounds += [
        (constraint.other, str(constraint.spec), True)
        for constraint in learned
        if constraint.package == package and constraint.restricts_other_for(version)
    ]
    return AbsentPackage(
        target=lock.target,
        arch=arch,
        package=package,
        version=version,
        targets=(graph.target,),
        obstacles=tuple(
            UnmetRequirement(package=name, spec=spec, version=has[name], learned=by_code)
            for name, spec, by_code in bounds
            if name in has and not is_within(has[name], spec)
        ),
        lacks=tuple(sorted(needed.keys() - has.keys())),
    )


def version_reason(
    graph: DependencyGraph, package: str, as_of: str, learned: Sequence[Constraint]
) -> VersionReason:
    """Return the reasons for the version of `package`, a normalized name in `graph`."""
    dependents = tuple(
        dependent
        for dependent in graph.dependencies
        if dependent.needs == package and dependent.package != package
    )
    specs = [SpecifierSet(dependent.spec) for dependent in dependents]
    concerned = tuple(
        constraint for constraint in learned if _bounds_package(constraint, package, graph.packages)
    )
    specs += [constraint.spec for constraint in concerned if constraint.other == package]
    return VersionReason(
        target=graph.target,
        arch=graph.arch,
        package=package,
        version=graph.packages[package],
        as_of=as_of,
        target_spec=graph.roots.get(package),
        dependents=dependents,
        bounds=_intersection([SpecifierSet(graph.roots.get(package, "")), *specs]),
        unpinned=_intersection(specs),
        exact=tuple(
            need
            for need in graph.dependencies
            if need.package == package and need.needs != package and "==" in need.spec
        ),
        learned=concerned,
    )


def _intersection(specs: Iterable[SpecifierSet]) -> str:
    """Combine `specs` into one specifier with the tightest lower and upper bounds."""
    parts = {part for spec in specs for part in spec}
    tightest: list[Specifier] = []
    for operators, closer in (((">", ">="), max), (("<", "<="), min)):
        bounds = sorted(
            (specifier for specifier in parts if specifier.operator in operators), key=str
        )
        # Of two bounds at the same version the open one, ">" or "<", which is first.
        tightest += (
            [closer(bounds, key=lambda specifier: Version(specifier.version))] if bounds else []
        )
    others = (specifier for specifier in parts if specifier.operator not in ("<", "<=", ">", ">="))
    return ",".join([*map(str, tightest), *sorted(map(str, others))])


def _bounds_package(constraint: Constraint, package: str, versions: Mapping[str, str]) -> bool:
    """Whether a constraint requires or excludes versions of `package`."""
    if constraint.other == package:
        return constraint.applies_to(versions)
    other = versions.get(constraint.other)
    rules_out = other is not None and not constraint.spec.contains(other, prereleases=True)
    return (
        constraint.package == package
        and rules_out
        and not constraint.restricts_other_for(versions[package])
    )


def replaced_layers(
    planned: Plan, layers: Sequence[LayerDigests], package: str
) -> PackageLayer | None:
    """Return the layers that change with the version of a package, if it is in a layer."""
    lists_versions = [
        layer
        for layer in planned.layers
        if isinstance(recipe := layer.recipe, FilesRecipe)
        and (recipe.readme or recipe.user_packages)
    ]
    sizes = {layer.name: made.size for layer, made in zip(planned.layers, layers, strict=True)}
    for position, layer in enumerate(planned.layers, start=1):
        if isinstance(layer.recipe, WheelsRecipe):
            packages = [normalize_package(wheel.package) for wheel in layer.recipe.wheels]
            if package in packages:
                changed = (layer.name, *(each.name for each in lists_versions))
                return PackageLayer(
                    position=position,
                    name=layer.name,
                    others=len(packages) - 1,
                    layers=changed,
                    size=sum(sizes[name] for name in changed),
                )
    return None


def why_lines(reason: VersionReason) -> Iterator[tuple[str, str]]:
    """Yield (origin, bound) for each bound on the version."""
    if reason.target_spec is not None:
        pinned = ", a pin of the matrix" if reason.target_spec.startswith("==") else ""
        yield f"target {reason.target}", (reason.target_spec or ANY_VERSION) + pinned
    for dependent in reason.dependents:
        extra = f"[{dependent.extra}]" if dependent.extra else ""
        yield f"{dependent.package}{extra} {dependent.version}", dependent.spec or ANY_VERSION
    if reason.as_of:
        yield "as_of", f"uploaded before {reason.as_of}"


def bounds_summary(reason: VersionReason) -> str:
    """Format bounds with origins, such as ">=1.25 (mistral-common), <2.3,!=2.1 (numba)"."""
    sources = [("target", SpecifierSet(reason.target_spec or ""))]
    sources += [
        (dependent.package, SpecifierSet(dependent.spec)) for dependent in reason.dependents
    ]
    sources += [
        (f"{constraint.package}, learned", constraint.spec)
        for constraint in reason.learned
        if constraint.other == reason.package
    ]
    together: dict[str, list[str]] = {}
    for part in sorted(SpecifierSet(reason.bounds), key=str):
        names = dict.fromkeys(name for name, spec in sources if part in set(spec))
        together.setdefault(", ".join(names), []).append(str(part))
    return (
        ", ".join(f"{','.join(parts)} ({names})" for names, parts in together.items())
        or ANY_VERSION
    )


class DependencyTree:
    """Formats a graph as indented lines. Lists the dependencies of each package once."""

    def __init__(
        self, graph: DependencyGraph, *, invert: bool = False, depth: int | None = None
    ) -> None:
        self._graph = graph
        self._depth = depth
        self._invert = invert
        self._next: dict[str, list[tuple[str, str]]] = {name: [] for name in graph.packages}
        for dependency in graph.dependencies:
            if dependency.package == dependency.needs:
                continue  # its own extra
            start, end = (
                (dependency.needs, dependency.package)
                if invert
                else (dependency.package, dependency.needs)
            )
            if all(name != end for name, _ in self._next[start]):
                self._next[start].append((end, dependency.requirement))
        self._shown: set[str] = set()

    def tree_lines(self, roots: Sequence[str]) -> Iterator[str]:
        """Yield the lines of the trees below `roots`."""
        for name in roots:
            yield from self._lines_below(name, "", "", "", 0)

    def reached(self, roots: Sequence[str]) -> set[str]:
        """Return the packages in the trees of `roots`, up to the displayed depth."""
        names, edge, level = set(roots), list(roots), 0
        while edge and (self._depth is None or level < self._depth):
            edge = list(
                dict.fromkeys(
                    end for name in edge for end, _ in self._next[name] if end not in names
                )
            )
            names |= set(edge)
            level += 1
        return names

    def _lines_below(
        self, name: str, note: str, first: str, rest: str, level: int
    ) -> Iterator[str]:
        below = sorted(self._next[name])
        repeated = bool(below) and name in self._shown
        mark = REPEATED_MARK if repeated else ""
        yield f"{first}{name} {self._graph.packages[name]}{note}{mark}"
        if repeated or (self._depth is not None and level >= self._depth):
            return
        self._shown.add(name)
        for number, (end, requirement) in enumerate(below, start=1):
            last = number == len(below)
            branch, space = ("└── ", "    ") if last else ("├── ", "│   ")
            label = f" [{requirement}]" if self._invert or requirement != end else ""
            yield from self._lines_below(end, label, rest + branch, rest + space, level + 1)
