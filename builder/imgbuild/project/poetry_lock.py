"""Reads the locked requirements of groups and extras in a poetry.lock."""

# A separate module: a file format.
from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from imgbuild.project import platforms, pylock
from imgbuild.project.pylock import LockLines
from imgbuild.project.reading import ProjectReading
from imgbuild.values import normalize_package


class PoetryFile(msgspec.Struct):
    """A wheel or an sdist in a poetry.lock."""

    hash: str = ""


class PoetryEdge(msgspec.Struct):
    """A dependency of a package in a poetry.lock."""

    optional: bool = False
    markers: str = ""
    extras: list[str] = []


class PoetryPackage(msgspec.Struct, eq=False):
    """A package in a poetry.lock. `markers` is a marker, or maps groups to markers."""

    name: str
    version: str
    files: list[PoetryFile] = []
    dependencies: dict[str, str | PoetryEdge | list[str | PoetryEdge]] = {}
    extras: dict[str, list[str]] = {}
    source: dict[str, str] = {}
    markers: str | dict[str, str] = ""


class PoetryMetadata(msgspec.Struct):
    """The table `[metadata]`. Up to Poetry 1.2, it lists the files of all packages."""

    files: dict[str, list[PoetryFile]] = {}


class PoetryLock(msgspec.Struct):
    """The relevant fields of a poetry.lock. Source: poetry.lock files of formats 1.1 to 2.1."""

    package: list[PoetryPackage]
    metadata: PoetryMetadata = msgspec.field(default_factory=PoetryMetadata)


def read_file(reading: ProjectReading, name: str, roots: Iterable[str]) -> None:
    """Read the packages `roots` ("NAME[EXTRA,…]") and their dependencies in lock file `name`."""
    lock = reading.lock_file(name, PoetryLock, "Poetry")
    if lock is None:
        return
    lines = LockLines(name, reading.sources.text(name))
    for package in _closure(lock.package, roots):
        files = package.files or lock.metadata.files.get(package.name, [])
        _add_package(reading, package, files, lines)


def _closure(packages: Sequence[PoetryPackage], roots: Iterable[str]) -> Iterator[PoetryPackage]:
    """Yield `roots` and their dependencies on Linux, in the order of poetry.lock."""
    by_name: dict[str, list[PoetryPackage]] = {}
    for package in packages:
        by_name.setdefault(normalize_package(package.name), []).append(package)
    seen: set[tuple[str, frozenset[str]]] = set()
    queue = [_name_and_extras(root) for root in roots]
    while queue:
        name, extras = queue.pop()
        if (name, extras) not in seen:
            seen.add((name, extras))
            for package in by_name.get(name, []):
                queue += _needs(package, extras)
    names = {name for name, _ in seen}
    yield from (package for package in packages if normalize_package(package.name) in names)


def _name_and_extras(text: str) -> tuple[str, frozenset[str]]:
    name, _, extras = text.partition("[")
    names = (each.strip() for each in extras.rstrip("]").split(","))
    return normalize_package(name), frozenset(normalize_package(each) for each in names if each)


def _needs(package: PoetryPackage, extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    optional = {
        normalize_package(re.split(r"[\s\[]", text, maxsplit=1)[0])
        for extra, texts in package.extras.items()
        if normalize_package(extra) in extras
        for text in texts
    }
    for name, value in package.dependencies.items():
        for each in value if isinstance(value, list) else [value]:
            edge = each if isinstance(each, PoetryEdge) else PoetryEdge()
            marker = edge.markers.partition("extra ==")[0].strip().removesuffix("and").strip()
            absent = edge.optional and normalize_package(name) not in optional
            if not absent and platforms.is_possible(marker):
                yield normalize_package(name), frozenset(map(normalize_package, edge.extras))


def _add_package(
    reading: ProjectReading, package: PoetryPackage, files: Iterable[PoetryFile], lines: LockLines
) -> None:
    name, source = package.name, package.source
    place = lines.place(name, package.version)
    url = source.get("url", "")
    markers = package.markers
    marker = markers if isinstance(markers, str) else markers.get("main", "")
    if not platforms.is_possible(marker):
        return
    text = f"{name}=={package.version}"
    match source.get("type"):
        case "git":
            commit = source.get("resolved_reference") or source.get("reference")
            directory = source.get("subdirectory")
            address = f"git+{url}@{commit}" + (f"#subdirectory={directory}" if directory else "")
            text = f"{name} @ {address}"
        case "url":
            text = f"{name} @ {url}"
        case "directory" | "file":
            pylock.request_local(reading, name, url, place, marker=marker)
            return
        case "legacy":
            reading.index(url, place)
    hashes = [each.hash for each in files if each.hash.startswith("sha256:")]
    reading.add_requirement(text, place, hashes=hashes, locked=True, marker=marker)
