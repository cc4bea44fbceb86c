"""Which package of a package set needs which, and what bounds the version of one.

The requirements are those of the wheels' METADATA, as `images/packages.json` has them; what the
target itself asks for is in its lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from packaging.requirements import Requirement
from packaging.specifiers import Specifier, SpecifierSet
from packaging.version import Version

from imgbuild.attest.sbom import needs
from imgbuild.errors import InputError
from imgbuild.lock.lock import Lock
from imgbuild.matrix.constraints import Constraint
from imgbuild.matrix.notes import nearest
from imgbuild.values import Arch, normalize
from imgbuild.wheel.tags import Tags

ANY = "any version"
REPEATED = " (*)"  # after a package whose dependencies are above


class Dependency(msgspec.Struct, frozen=True, kw_only=True):
    """One requirement: `package` needs `needs`, as `requirement` in its METADATA says.

    `spec` is the specifier in it, "" for any version; `extra` the extra of `package` that it
    belongs to. The marker, which applies, is left out.
    """

    package: str
    version: str
    needs: str
    requirement: str
    spec: str
    extra: str = ""


class Graph(msgspec.Struct, frozen=True, kw_only=True):
    """The packages of a target and what they need; `roots` are those that the target names.

    `packages` is package → version, `roots` package → specifier.
    """

    target: str
    arch: Arch
    roots: dict[str, str]
    packages: dict[str, str]
    dependencies: tuple[Dependency, ...]


class VersionReason(msgspec.Struct, frozen=True, kw_only=True):
    """Why a package of a target has its version.

    `target_spec` is what the target asks of it, None if the target does not name it; `dependents`
    are the packages that need it; `bounds` what all of them allow together; `learned` the
    constraints on it; `as_of` the day before which its file was uploaded.
    """

    target: str
    arch: Arch
    package: str
    version: str
    as_of: str
    target_spec: str | None
    dependents: tuple[Dependency, ...]
    bounds: str
    learned: tuple[Constraint, ...] = ()


def graph(lock: Lock, arch: Arch, requires: Mapping[str, Iterable[str]]) -> Graph:
    """The dependencies within the packages of `lock`; `requires` is package → requirements."""
    versions = {normalize(name): one for name, one in lock.arch[arch].versions.items()}
    base = lock.base
    markers = Tags(python=base.python, glibc=base.glibc, arch=arch).markers
    return Graph(
        target=lock.target,
        arch=arch,
        roots={name: spec for name, spec in lock.requirements.items() if name in versions},
        packages=versions,
        dependencies=tuple(
            Dependency(
                package=need.package,
                version=versions[need.package],
                needs=normalize(need.requirement.name),
                requirement=_plain(need.requirement),
                spec=str(need.requirement.specifier),
                extra=need.extra,
            )
            for need in needs.applied(requires, markers)
        ),
    )


def _plain(asked: Requirement) -> str:
    """The requirement without its marker: torch[opt]<3,>=2.1."""
    extras = f"[{','.join(sorted(asked.extras))}]" if asked.extras else ""
    address = f" @ {asked.url}" if asked.url else ""
    return f"{normalize(asked.name)}{extras}{asked.specifier}{address}"


def known(package: str, versions: Mapping[str, str], target: str) -> str:
    """The normalized name of `package`; InputError if `versions` do not have it."""
    name = normalize(package)
    if name not in versions:
        near = nearest(name, versions)
        ask = f"did you mean {near}? " if near else ""
        message = f"{target} has no package {package}"
        raise InputError(message, hint=f"{ask}imgbuild show {target} --packages lists all")
    return name


def why(found: Graph, package: str, as_of: str, learned: Sequence[Constraint]) -> VersionReason:
    """What bounds `package`, a normalized name that `found` has."""
    dependents = tuple(
        one for one in found.dependencies if one.needs == package and one.package != package
    )
    specs = [SpecifierSet(found.roots.get(package, ""))]
    specs += [SpecifierSet(one.spec) for one in dependents]
    concerned = tuple(one for one in learned if _bounds(one, package, found.packages))
    specs += [one.spec for one in concerned if one.other == package]
    return VersionReason(
        target=found.target,
        arch=found.arch,
        package=package,
        version=found.packages[package],
        as_of=as_of,
        target_spec=found.roots.get(package),
        dependents=dependents,
        bounds=_together(specs),
        learned=concerned,
    )


def _together(specs: Iterable[SpecifierSet]) -> str:
    """One specifier for all of `specs`: of lower and of upper bounds the tightest alone."""
    parts = {part for spec in specs for part in spec}
    tightest: list[Specifier] = []
    for operators, closer in (((">", ">="), max), (("<", "<="), min)):
        bounds = sorted((one for one in parts if one.operator in operators), key=str)
        # Of two bounds at the same version the open one, ">" or "<", which is first.
        tightest += [closer(bounds, key=lambda one: Version(one.version))] if bounds else []
    others = (one for one in parts if one.operator not in ("<", "<=", ">", ">="))
    return ",".join([*map(str, tightest), *sorted(map(str, others))])


def _bounds(one: Constraint, package: str, versions: Mapping[str, str]) -> bool:
    """Whether a constraint requires versions of `package`, or rules out other ones of it."""
    if one.other == package:
        return one.concerns(versions)
    other = versions.get(one.other)
    rules_out = other is not None and not one.spec.contains(other, prereleases=True)
    return one.package == package and rules_out and not one.covers(versions[package])


def why_lines(found: VersionReason) -> Iterator[tuple[str, str]]:
    """The packages that bound the version, and how: pairs for two columns."""
    if found.target_spec is not None:
        yield f"target {found.target}", found.target_spec or ANY
    for one in found.dependents:
        extra = f"[{one.extra}]" if one.extra else ""
        yield f"{one.package}{extra} {one.version}", one.spec or ANY
    if found.as_of:
        yield "as_of", f"uploaded before {found.as_of}"


def in_short(found: VersionReason) -> str:
    """Each part of the bounds with its packages: "<2.3 (numba), >=1.25 (mistral-common)"."""
    sources = [("target", SpecifierSet(found.target_spec or ""))]
    sources += [(one.package, SpecifierSet(one.spec)) for one in found.dependents]
    sources += [("learned", one.spec) for one in found.learned if one.other == found.package]
    said = [
        f"{part} ({', '.join(dict.fromkeys(name for name, spec in sources if part in set(spec)))})"
        for part in sorted(SpecifierSet(found.bounds), key=str)
    ]
    return ", ".join(said) or ANY


class DependencyTree:
    """A graph as indented lines, each package with its dependencies once."""

    def __init__(self, found: Graph, *, invert: bool = False, depth: int | None = None) -> None:
        self._graph = found
        self._depth = depth
        self._invert = invert
        self._next: dict[str, list[tuple[str, str]]] = {name: [] for name in found.packages}
        for one in found.dependencies:
            if one.package == one.needs:
                continue  # an extra of its own
            start, end = (one.needs, one.package) if invert else (one.package, one.needs)
            if all(name != end for name, _ in self._next[start]):
                self._next[start].append((end, one.requirement))
        self._shown: set[str] = set()

    def lines(self, roots: Sequence[str]) -> Iterator[str]:
        """The tree below each of `roots`."""
        for name in roots:
            yield from self._below(name, "", "", "", 0)

    def reached(self, roots: Sequence[str]) -> set[str]:
        """The packages below `roots`, these included, as deep as the tree is shown."""
        found, edge, level = set(roots), list(roots), 0
        while edge and (self._depth is None or level < self._depth):
            edge = list(
                dict.fromkeys(
                    end for name in edge for end, _ in self._next[name] if end not in found
                )
            )
            found |= set(edge)
            level += 1
        return found

    def _below(self, name: str, note: str, first: str, rest: str, level: int) -> Iterator[str]:
        below = sorted(self._next[name])
        repeated = bool(below) and name in self._shown
        mark = REPEATED if repeated else ""
        yield f"{first}{name} {self._graph.packages[name]}{note}{mark}"
        if repeated or (self._depth is not None and level >= self._depth):
            return
        self._shown.add(name)
        for number, (end, requirement) in enumerate(below, start=1):
            last = number == len(below)
            branch, space = ("└── ", "    ") if last else ("├── ", "│   ")
            said = f" [{requirement}]" if self._invert or requirement != end else ""
            yield from self._below(end, said, rest + branch, rest + space, level + 1)
