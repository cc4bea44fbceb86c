"""uv.lock as locked requirements, through `uv export` or its tables (separate: a file format).

uv runs in a folder of its own with the project's pyproject.toml files and its lock alone: offline,
without configuration, variables and builds.
"""

from __future__ import annotations

import datetime
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from imgbuild.errors import ToolMissing, WorkFailed
from imgbuild.project import platforms, pylock
from imgbuild.project.model import DeclaredDay, Place
from imgbuild.project.project_files import above, relative
from imgbuild.project.pylock import Lines
from imgbuild.project.reading import Reading
from imgbuild.project.uv_settings import absolute_day
from imgbuild.system import process
from imgbuild.system.uv_program import binary, clean
from imgbuild.values import normalize

LIMIT = 60.0  # seconds; an export takes less than one


class UvFile(msgspec.Struct, rename="kebab"):
    """A wheel or an sdist in a uv.lock."""

    hash: str = ""
    upload_time: Any = None  # a text, or a moment of TOML


class UvEdge(msgspec.Struct, rename="kebab"):
    """A dependency of a package in a uv.lock."""

    name: str
    version: str | None = None
    source: dict[str, str] | None = None
    marker: str = ""
    extra: list[str] = []


class UvPackage(msgspec.Struct, rename="kebab"):
    """A package in a uv.lock."""

    name: str
    version: str | None = None
    source: dict[str, str] = {}
    dependencies: list[UvEdge] = []
    optional_dependencies: dict[str, list[UvEdge]] = {}
    dev_dependencies: dict[str, list[UvEdge]] = {}
    sdist: UvFile | None = None
    wheels: list[UvFile] = []


class UvLock(msgspec.Struct, rename="kebab"):
    """What a uv.lock has that is read. Source: uv.lock files of uv 0.4 to 0.13."""

    version: int
    package: list[UvPackage]
    requires_python: str = ""


def read_file(
    reading: Reading, name: str, pyproject: str, *, extras: Iterable[str], groups: Iterable[str]
) -> None:
    """Read the packages of the lock `name` for `extras` and `groups` of `pyproject`."""
    document = reading.toml(name)
    if document is None:
        return
    if not reading.fits(document, UvLock, Place(file=name), "uv"):
        return
    packages = document["package"]
    _cut_off(reading, document, name)
    lines = Lines(name, reading.sources.text(name))
    exported = _exported(reading, name, pyproject, packages, extras, groups)
    if exported is not None:
        pylock.add(reading, exported, lines)
        return
    root = _root(packages, reading, pyproject)
    if root is None:
        reason = (
            "has no entry for this pyproject.toml: name the member of the workspace with --from"
        )
        reading.leave_out(Place(file=name), name, reason)
        return
    if document.get("requires-python"):
        reading.python(document["requires-python"], Place(file=name))
    taken = list(_closure(packages, root, set(extras), set(groups)))
    for package, markers in taken:
        _add(reading, package, markers, lines)
    _newest(reading, [package for package, _ in taken], name)


def _cut_off(reading: Reading, document: dict[str, Any], name: str) -> None:
    options = document.get("options")
    value = options.get("exclude-newer") if isinstance(options, dict) else None
    day = absolute_day(value) if value is not None else None
    if day is not None and reading.cut_off is None:
        reading.cut_off = DeclaredDay(day=day, place=Place(file=name))


def _exported(
    reading: Reading,
    name: str,
    pyproject: str,
    packages: list[dict[str, Any]],
    extras: Iterable[str],
    groups: Iterable[str],
) -> dict[str, Any] | None:
    """What `uv export` makes of the lock, as pylock.toml; None if it cannot."""
    folder = above(pyproject)
    members = {folder}
    for package in packages:
        source = package.get("source")
        for key in ("editable", "virtual", "directory"):
            path = source.get(key) if isinstance(source, dict) else None
            if isinstance(path, str):
                members.add(relative(above(name), path))
    with tempfile.TemporaryDirectory(prefix="imgbuild-") as scratch:
        _copy(reading, name, above(name), scratch)
        for member in sorted(members):
            file = relative(member, "pyproject.toml")
            if not file.startswith("..") and reading.sources.exists(file):
                _copy(reading, file, above(name), scratch)
        try:
            command = [
                *(*clean(), binary(), "export", "--frozen", "--offline", "--no-config"),
                *("--format", "pylock.toml", "--no-default-groups", "--no-emit-project"),
                *("--no-python-downloads", "--no-cache", "--no-progress", "--color", "never"),
                *(word for extra in sorted(extras) for word in ("--extra", extra)),
                *(word for group in sorted(groups) for word in ("--group", group)),
            ]
            done = process.run(command, cwd=Path(scratch), check=False, limit=LIMIT)
        except (ToolMissing, WorkFailed):
            return None
    if done.status != 0:
        return None
    try:
        return tomllib.loads(done.stdout)
    except (tomllib.TOMLDecodeError, RecursionError):
        return None


def _copy(reading: Reading, name: str, folder: str, scratch: str) -> None:
    text = reading.text(name)
    target = relative(".", name) if folder == "." else name.removeprefix(f"{folder}/")
    if text is None or target.startswith(("/", "..")):
        return
    path = Path(scratch, target)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _root(
    packages: list[dict[str, Any]], reading: Reading, pyproject: str
) -> dict[str, Any] | None:
    for package in packages:
        source = package.get("source")
        paths = source if isinstance(source, dict) else {}
        if "." in (paths.get("editable"), paths.get("virtual")):
            return package
    project = reading.sources.toml(pyproject).get("project")
    name = normalize(str(project.get("name", ""))) if isinstance(project, dict) else ""
    return next((each for each in packages if normalize(each["name"]) == name), None)


def _closure(
    packages: list[dict[str, Any]], root: dict[str, Any], extras: set[str], groups: set[str]
) -> Iterator[tuple[dict[str, Any], set[str]]]:
    """The packages that `root` needs on Linux, each with the markers under which they are.

    The empty marker means always.
    """
    by_name: dict[str, list[dict[str, Any]]] = {}
    for package in packages:
        by_name.setdefault(normalize(package["name"]), []).append(package)
    reached: dict[int, tuple[dict[str, Any], set[str]]] = {}
    queue: list[tuple[dict[str, Any], frozenset[str], str]] = [(root, frozenset(extras), "")]
    seen: set[tuple[int, frozenset[str], str]] = set()
    while queue:
        package, chosen, marker = queue.pop()
        if (id(package), chosen, marker) in seen:
            continue
        seen.add((id(package), chosen, marker))
        if package is not root:
            reached.setdefault(id(package), (package, set()))[1].add(marker)
        for edge in _edges(package, chosen, groups if package is root else set()):
            both = platforms.both(marker, str(edge.get("marker") or ""))
            if not platforms.possible(both):
                continue
            for target in by_name.get(normalize(str(edge.get("name", ""))), []):
                version = edge.get("version")
                if version is not None and target.get("version") != version:
                    continue
                if edge.get("source") is not None and target.get("source") != edge["source"]:
                    continue
                queue.append((target, frozenset(map(str, edge.get("extra", ()))), both))
    yield from (reached[id(each)] for each in packages if id(each) in reached)


def _edges(
    package: dict[str, Any], extras: Iterable[str], groups: Iterable[str]
) -> Iterator[dict[str, Any]]:
    optional = package.get("optional-dependencies")
    grouped = package.get("dev-dependencies")
    lists = [package.get("dependencies", [])]
    lists += [optional.get(name, []) for name in extras] if isinstance(optional, dict) else []
    lists += [grouped.get(name, []) for name in groups] if isinstance(grouped, dict) else []
    for edges in lists:
        yield from (edge for edge in edges if isinstance(edge, dict))


def _add(reading: Reading, package: dict[str, Any], markers: set[str], lines: Lines) -> None:
    name, version = package["name"], package.get("version")
    place = lines.place(name, version)
    source = package.get("source")
    source = source if isinstance(source, dict) else {}
    marker = "" if "" in markers else " or ".join(f"({each})" for each in sorted(markers))
    hashes = [
        str(each["hash"])
        for each in (package.get("sdist"), *package.get("wheels", ()))
        if isinstance(each, dict) and str(each.get("hash", "")).startswith("sha256:")
    ]
    if "git" in source:
        address, _, commit = str(source["git"]).partition("#")
        base, _, query = address.partition("?")
        parts = dict(part.partition("=")[::2] for part in query.split("&") if part)
        directory = f"#subdirectory={parts['subdirectory']}" if "subdirectory" in parts else ""
        text = f"{name} @ git+{base}@{commit}{directory}"
    elif "url" in source:
        text = f"{name} @ {source['url']}"
    elif path := next((source[k] for k in ("editable", "virtual", "directory", "path")
                       if k in source), None):  # fmt: skip
        pylock.local(reading, name, str(path), place, marker=marker)
        return
    else:
        text = f"{name}=={version}"
    reading.requirement(text, place, hashes=hashes, locked=True, marker=marker)


def _newest(reading: Reading, packages: list[dict[str, Any]], name: str) -> None:
    moments = []
    for package in packages:
        for file in (package.get("sdist"), *package.get("wheels", ())):
            upload = file.get("upload-time") if isinstance(file, dict) else None
            try:
                moments.append(datetime.datetime.fromisoformat(str(upload)))
            except ValueError:
                continue
    if moments:
        pylock.cut_off(reading, max(moments), Place(file=name))
