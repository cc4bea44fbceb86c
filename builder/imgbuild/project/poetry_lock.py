"""poetry.lock as locked requirements of groups and extras (separate: a file format)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from imgbuild.project import platforms, pylock
from imgbuild.project.model import Place
from imgbuild.project.pylock import Lines
from imgbuild.project.reading import Reading
from imgbuild.values import normalize


class PoetryFile(msgspec.Struct):
    """A wheel or an sdist in a poetry.lock."""

    hash: str = ""


class PoetryPackage(msgspec.Struct):
    """A package in a poetry.lock."""

    name: str
    version: str
    files: list[PoetryFile] = []
    dependencies: dict[str, str | dict[str, Any] | list[str | dict[str, Any]]] = {}
    extras: dict[str, list[str]] = {}
    source: dict[str, str] = {}
    markers: str | dict[str, str] = ""


class PoetryMetadata(msgspec.Struct):
    """The table `[metadata]`, with the files of all packages in locks of Poetry 1.2 and before."""

    files: dict[str, list[PoetryFile]] = {}


class PoetryLock(msgspec.Struct):
    """What a poetry.lock has that is read. Source: poetry.lock files of formats 1.1 to 2.1."""

    package: list[PoetryPackage]
    metadata: PoetryMetadata = msgspec.field(default_factory=PoetryMetadata)


def read_file(reading: Reading, name: str, roots: Iterable[str]) -> None:
    """Read the packages of the lock `name` that the packages `roots` ("NAME[EXTRA,…]") need."""
    document = reading.toml(name)
    if document is None:
        return
    if not reading.fits(document, PoetryLock, Place(file=name), "Poetry"):
        return
    entries = document["package"]
    metadata = document.get("metadata")
    old_files = metadata.get("files") if isinstance(metadata, dict) else None
    lines = Lines(name, reading.sources.text(name))
    for package in _closure(entries, roots):
        files = package.get("files") or (old_files or {}).get(package["name"], [])
        _add(reading, package, files, lines)


def _closure(entries: list[dict[str, Any]], roots: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The packages that the roots need on Linux, in the order of the file."""
    by_name: dict[str, list[dict[str, Any]]] = {}
    for entry in entries:
        by_name.setdefault(normalize(str(entry["name"])), []).append(entry)
    taken: set[int] = set()
    seen: set[tuple[str, frozenset[str]]] = set()
    queue = [_name_and_extras(root) for root in roots]
    while queue:
        name, extras = queue.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        for entry in by_name.get(name, []):
            taken.add(id(entry))
            queue += _needs(entry, extras)
    yield from (entry for entry in entries if id(entry) in taken)


def _name_and_extras(text: str) -> tuple[str, frozenset[str]]:
    name, _, extras = text.partition("[")
    names = (each.strip() for each in extras.rstrip("]").split(","))
    return normalize(name), frozenset(normalize(each) for each in names if each)


def _needs(entry: dict[str, Any], extras: frozenset[str]) -> list[tuple[str, frozenset[str]]]:
    optional: set[str] = set()
    available = entry.get("extras")
    for extra, texts in available.items() if isinstance(available, dict) else ():
        if normalize(extra) in extras:
            optional |= {normalize(str(text).split()[0].partition("[")[0]) for text in texts}
    needs = []
    dependencies = entry.get("dependencies")
    for name, value in dependencies.items() if isinstance(dependencies, dict) else ():
        for each in value if isinstance(value, list) else [value]:
            settings = each if isinstance(each, dict) else {}
            if settings.get("optional") and normalize(name) not in optional:
                continue
            marker = str(settings.get("markers") or "").partition("extra ==")[0]
            if platforms.possible(marker.strip().removesuffix("and").strip()):
                listed = settings.get("extras")
                listed = listed if isinstance(listed, list) else []
                names = frozenset(normalize(str(extra)) for extra in listed)
                needs.append((normalize(name), names))
    return needs


def _add(reading: Reading, package: dict[str, Any], files: list[Any], lines: Lines) -> None:
    name, version = str(package["name"]), str(package["version"])
    place = lines.place(name, version)
    source = package.get("source")
    source = source if isinstance(source, dict) else {}
    url = str(source.get("url", ""))
    markers = package.get("markers")
    if isinstance(markers, dict):  # by group
        markers = markers.get("main", "")
    marker = str(markers or "")
    if not platforms.possible(marker):
        return
    match source.get("type"):
        case "git":
            commit = source.get("resolved_reference") or source.get("reference")
            directory = source.get("subdirectory")
            address = f"git+{url}@{commit}" + (f"#subdirectory={directory}" if directory else "")
            text = f"{name} @ {address}"
        case "url":
            text = f"{name} @ {url}"
        case "directory" | "file":
            pylock.local(reading, name, url, place, marker=marker)
            return
        case "legacy":
            reading.index(url, place)
            text = f"{name}=={version}"
        case _:
            text = f"{name}=={version}"
    hashes = [
        str(each["hash"])
        for each in files
        if isinstance(each, dict) and str(each.get("hash", "")).startswith("sha256:")
    ]
    reading.requirement(text, place, hashes=hashes, locked=True, marker=marker)
