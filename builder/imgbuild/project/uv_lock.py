"""Reads a uv.lock with `uv export`, or directly.

uv runs offline in a folder with only the pyproject.toml files and the lock. It uses no
configuration files, environment variables or builds.
"""

# A separate module: a file format.
from __future__ import annotations

import contextlib
import datetime
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from imgbuild.errors import ToolMissing, WorkFailed
from imgbuild.project import platforms, pylock
from imgbuild.project.layouts import find_table
from imgbuild.project.model import DeclaredDay, FilePlace
from imgbuild.project.project_files import parent_folder, relative_path
from imgbuild.project.pylock import LockLines
from imgbuild.project.reading import ProjectReading
from imgbuild.project.uv_settings import absolute_day
from imgbuild.system import process
from imgbuild.system.uv_program import uv_command, uv_path
from imgbuild.values import normalize_package

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


class UvPackage(msgspec.Struct, rename="kebab", eq=False):
    """A package in a uv.lock."""

    name: str
    version: str | None = None
    source: dict[str, str] = {}
    dependencies: list[UvEdge] = []
    optional_dependencies: dict[str, list[UvEdge]] = {}
    dev_dependencies: dict[str, list[UvEdge]] = {}
    sdist: UvFile | None = None
    wheels: list[UvFile] = []

    @property
    def files(self) -> list[UvFile]:
        """The sdist, if any, and the wheels."""
        return [*([self.sdist] if self.sdist else []), *self.wheels]


class UvOptions(msgspec.Struct, rename="kebab"):
    """The table `[options]` of a uv.lock."""

    exclude_newer: Any = None


class UvLock(msgspec.Struct, rename="kebab"):
    """The relevant fields of a uv.lock. Source: uv.lock files of uv 0.4 to 0.13."""

    version: int
    package: list[UvPackage]
    requires_python: str = ""
    options: UvOptions = msgspec.field(default_factory=UvOptions)


def read_file(
    reading: ProjectReading,
    name: str,
    pyproject: str,
    *,
    extras: Iterable[str],
    groups: Iterable[str],
) -> None:
    """Read the packages in the lock `name` for `extras` and `groups` of `pyproject`."""
    lock = reading.lock_file(name, UvLock, "uv")
    if lock is None:
        return
    packages = lock.package
    day = absolute_day(lock.options.exclude_newer)
    if day is not None and reading.cut_off is None:
        reading.cut_off = DeclaredDay(day=day, place=FilePlace(file=name))
    lines = LockLines(name, reading.sources.text(name))
    exported = _export_pylock(reading, name, pyproject, packages, extras, groups)
    if exported is not None:
        pylock.add_locked_packages(reading, exported, lines)
        return
    root = _root(packages, reading, pyproject)
    if root is None:
        reason = (
            "has no entry for this pyproject.toml; pass the member of the workspace with --from"
        )
        reading.add_unread(FilePlace(file=name), name, reason)
        return
    reading.add_python(lock.requires_python, FilePlace(file=name))
    taken = list(_closure(packages, root, set(extras), set(groups)))
    for package, markers in taken:
        _add_package(reading, package, markers, lines)
    _add_newest(reading, [package for package, _ in taken], name)


def _export_pylock(
    reading: ProjectReading,
    name: str,
    pyproject: str,
    packages: Iterable[UvPackage],
    extras: Iterable[str],
    groups: Iterable[str],
) -> dict[str, Any] | None:
    """Convert the lock to a pylock.toml with `uv export`, or return None if this fails."""
    folder = parent_folder(pyproject)
    members = {folder}
    for package in packages:
        for key in ("editable", "virtual", "directory"):
            if key in package.source:
                members.add(relative_path(parent_folder(name), package.source[key]))
    with tempfile.TemporaryDirectory(prefix="imgbuild-") as scratch:
        _copy_file(reading, name, parent_folder(name), scratch)
        for member in sorted(members):
            file = relative_path(member, "pyproject.toml")
            if not file.startswith("..") and reading.sources.exists(file):
                _copy_file(reading, file, parent_folder(name), scratch)
        try:
            command = [
                *(*uv_command(), uv_path(), "export", "--frozen", "--offline", "--no-config"),
                *("--format", "pylock.toml", "--no-default-groups", "--no-emit-project"),
                *("--no-python-downloads", "--no-cache", "--no-progress", "--color", "never"),
                *(word for extra in sorted(extras) for word in ("--extra", extra)),
                *(word for group in sorted(groups) for word in ("--group", group)),
            ]
            done = process.run_command(command, cwd=Path(scratch), check=False, limit=LIMIT)
        except (ToolMissing, WorkFailed):
            return None
    if done.status != 0:
        return None
    try:
        return tomllib.loads(done.stdout)
    except (tomllib.TOMLDecodeError, RecursionError):
        return None


def _copy_file(reading: ProjectReading, name: str, folder: str, scratch: str) -> None:
    text = reading.text(name)
    target = relative_path(".", name) if folder == "." else name.removeprefix(f"{folder}/")
    if text is None or target.startswith(("/", "..")):
        return
    path = Path(scratch, target)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _root(
    packages: Iterable[UvPackage], reading: ProjectReading, pyproject: str
) -> UvPackage | None:
    for package in packages:
        if "." in (package.source.get("editable"), package.source.get("virtual")):
            return package
    name = normalize_package(
        str(find_table(reading.sources.read_toml(pyproject), "project").get("name", ""))
    )
    return next((each for each in packages if normalize_package(each.name) == name), None)


def _closure(
    packages: Iterable[UvPackage], root: UvPackage, extras: Iterable[str], groups: Iterable[str]
) -> Iterator[tuple[UvPackage, set[str]]]:
    """Yield the dependencies of `root` on Linux, and the markers of each package.

    An empty marker is true on all machines.
    """
    by_name: dict[str, list[UvPackage]] = {}
    for package in packages:
        by_name.setdefault(normalize_package(package.name), []).append(package)
    reached: dict[UvPackage, set[str]] = {}
    queue: list[tuple[UvPackage, frozenset[str], str]] = [(root, frozenset(extras), "")]
    seen: set[tuple[UvPackage, frozenset[str], str]] = set()
    while queue:
        entry = queue.pop()
        if entry in seen:
            continue
        seen.add(entry)
        package, chosen, marker = entry
        if package is not root:
            reached.setdefault(package, set()).add(marker)
        for edge in _edges(package, chosen, groups if package is root else ()):
            both = platforms.join_markers(marker, edge.marker)
            if not platforms.is_possible(both):
                continue
            for target in by_name.get(normalize_package(edge.name), []):
                if edge.version is not None and target.version != edge.version:
                    continue
                if edge.source is not None and target.source != edge.source:
                    continue
                queue.append((target, frozenset(edge.extra), both))
    yield from ((each, reached[each]) for each in packages if each in reached)


def _edges(package: UvPackage, extras: Iterable[str], groups: Iterable[str]) -> Iterator[UvEdge]:
    yield from package.dependencies
    for name in extras:
        yield from package.optional_dependencies.get(name, [])
    for name in groups:
        yield from package.dev_dependencies.get(name, [])


def _add_package(
    reading: ProjectReading, package: UvPackage, markers: set[str], lines: LockLines
) -> None:
    name, source = package.name, package.source
    place = lines.place(name, package.version)
    marker = "" if "" in markers else " or ".join(f"({each})" for each in sorted(markers))
    hashes = [each.hash for each in package.files if each.hash.startswith("sha256:")]
    if "git" in source:
        address, _, commit = source["git"].partition("#")
        base, _, query = address.partition("?")
        parts = dict(part.partition("=")[::2] for part in query.split("&") if part)
        directory = f"#subdirectory={parts['subdirectory']}" if "subdirectory" in parts else ""
        text = f"{name} @ git+{base}@{commit}{directory}"
    elif "url" in source:
        text = f"{name} @ {source['url']}"
    elif path := next((source[k] for k in ("editable", "virtual", "directory", "path")
                       if k in source), None):  # fmt: skip
        pylock.request_local(reading, name, path, place, marker=marker)
        return
    else:
        text = f"{name}=={package.version}"
    reading.add_requirement(text, place, hashes=hashes, locked=True, marker=marker)


def _add_newest(reading: ProjectReading, packages: Iterable[UvPackage], name: str) -> None:
    moments = []
    for file in (each for package in packages for each in package.files):
        with contextlib.suppress(ValueError):
            moments.append(datetime.datetime.fromisoformat(str(file.upload_time)))
    pylock.add_cut_off(reading, moments, FilePlace(file=name))
