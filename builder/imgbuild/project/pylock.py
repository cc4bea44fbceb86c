"""Reads the locked requirements in a pylock.toml (PEP 751)."""

from __future__ import annotations

import collections
import datetime
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName

from imgbuild.project import platforms, requirement_lines
from imgbuild.project.model import DeclaredDay, FilePlace
from imgbuild.project.project_files import parent_folder, relative_path
from imgbuild.project.reading import LocalRequest, ProjectReading
from imgbuild.project.requirement_lines import LineScope
from imgbuild.project.submodules import SUBMODULES
from imgbuild.values import normalize_package

if TYPE_CHECKING:
    from packaging.markers import Marker
    from packaging.pylock import Package


class LockLines:
    """The line of each package's table in a TOML lock file."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self._lines: dict[tuple[str, str], int] = {}
        name, at = "", 0
        for number, line in enumerate(text.split("\n"), start=1):
            key, _, written = line.partition("=")
            value = written.strip().strip("\"'")
            if key.strip() == "name":
                name, at = normalize_package(value), number
                self._lines.setdefault((name, ""), at)
            elif key.strip() == "version" and name:
                self._lines.setdefault((name, value), at)

    def place(self, name: str, version: object = "") -> FilePlace:
        """Return the line of a package. If several lines have the name, prefer `version`."""
        first = self._lines.get((normalize_package(name), ""), 0)
        line = self._lines.get((normalize_package(name), str(version)), first)
        return FilePlace(file=self.file, line=line)


def read_file(reading: ProjectReading, name: str, *, groups: Iterable[str] = ()) -> None:
    """Read a pylock.toml for the chosen and default groups and the chosen extras."""
    document = reading.read_toml(name)
    if document is None:
        return
    for key, available in (
        ("extras", reading.available_extras),
        ("dependency-groups", reading.available_groups),
    ):
        listed = document.get(key)
        names = listed if isinstance(listed, list) else []
        available |= {str(each) for each in names}
    add_locked_packages(
        reading, document, LockLines(name, reading.sources.text(name)), groups=groups
    )


def add_locked_packages(
    reading: ProjectReading,
    document: dict[str, Any],
    lines: LockLines,
    *,
    groups: Iterable[str] = (),
) -> None:
    """Add the packages of a PEP 751 document."""
    from packaging.pylock import Pylock, PylockValidationError

    whole = FilePlace(file=lines.file)
    try:
        lock = Pylock.from_dict(document)
    except (PylockValidationError, ValueError, TypeError) as error:
        reading.add_problem(whole, f"not a PEP 751 lock file: {str(error).splitlines()[0]}")
        return
    if lock.requires_python is not None:
        reading.add_python(str(lock.requires_python), whole)
    context = {
        "extras": frozenset(map(normalize_package, reading.extras)),
        "dependency_groups": frozenset(map(normalize_package, [*reading.groups, *groups]))
        | frozenset(lock.default_groups or ()),
    }
    usual = _usual_index(lock.packages)
    uploads: list[datetime.datetime] = []
    for package in lock.packages:
        marker = _marker(package.marker, context)
        if marker is None:
            continue
        _add_package(reading, package, marker, lines.place(package.name, package.version), usual)
        uploads += [
            each.upload_time
            for each in (package.sdist, *(package.wheels or ()))
            if each is not None and each.upload_time is not None
        ]
    add_cut_off(reading, uploads, whole)


def add_cut_off(
    reading: ProjectReading, uploads: Iterable[datetime.datetime], place: FilePlace
) -> None:
    """Add the cut-off date of a lock file: the day after the newest of `uploads`."""
    newest = max(map(_moment, uploads), default=None)
    if reading.cut_off is None and newest is not None:
        day = newest.date() + datetime.timedelta(days=1)
        reading.cut_off = DeclaredDay(day=day, place=place)


def _moment(moment: datetime.datetime) -> datetime.datetime:
    return moment.replace(tzinfo=moment.tzinfo or datetime.UTC).astimezone(datetime.UTC)


def _usual_index(packages: Iterable[Package]) -> str | None:
    counts = collections.Counter(package.index for package in packages if package.index)
    return counts.most_common(1)[0][0] if counts else None


def _marker(marker: Marker | None, context: dict[str, frozenset[str]]) -> str | None:
    """Remove extras and groups from a marker. Return None if the package is not for Linux."""
    if marker is None:
        return ""
    text = str(marker)
    if "extras" not in text and "dependency_groups" not in text:
        return text if platforms.is_possible(text) else None
    try:
        results = [
            marker.evaluate({**environment, **context}, context="lock_file")
            for environment in platforms.possible_environments()
        ]
    except (UndefinedComparison, UndefinedEnvironmentName):
        return ""
    return "" if any(results) else None


def _add_package(
    reading: ProjectReading, package: Package, marker: str, place: FilePlace, usual: str | None
) -> None:
    hashes = [
        f"sha256:{each.hashes['sha256']}"
        for each in (package.sdist, package.archive, *(package.wheels or ()))
        if each is not None and "sha256" in each.hashes
    ]
    if package.index and package.index != usual:
        reading.index(package.index, place)
    if package.vcs is not None:
        source = package.vcs
        if source.type != "git" or not source.url:
            reading.add_unread(
                place, package.name, "only git repositories with a URL are supported"
            )
            return
        directory = f"#subdirectory={source.subdirectory}" if source.subdirectory else ""
        address = f"git+{source.url.removeprefix('git+')}@{source.commit_id}{directory}"
        text = f"{package.name} @ {address}"
    elif package.archive is not None:
        text = _archive(package)
    elif package.directory is not None:
        request_local(reading, package.name, package.directory.path, place, marker=marker)
        return
    elif package.version is not None:
        text = f"{package.name}=={package.version}"
    else:
        reading.add_unread(place, package.name, "has no version")
        return
    reading.add_requirement(text, place, hashes=hashes, locked=True, marker=marker)


def _archive(package: Package) -> str:
    archive = package.archive
    address = (archive.url if archive else None) or f"./{archive.path if archive else ''}"
    return f"{package.name} @ {address}" if "://" in address else address


def request_local(
    reading: ProjectReading, name: str, path: str, place: FilePlace, *, marker: str = ""
) -> None:
    """Request a folder or file of the project that a lock file contains."""
    target = relative_path(parent_folder(place.file), path)
    if target == parent_folder(place.file):
        return  # the project itself
    if target.startswith(("/", "..")) or not reading.sources.is_inside(target):
        reading.add_unread(place, f"{name} ({path})", "a path outside the project")
    elif reading.sources.is_folder(target):
        reading.request_local(LocalRequest(folder=target, place=place, name=name, marker=marker))
    elif reading.sources.exists(target):
        requirement_lines.requirement_word(reading, f"./{target}", ".", place, scope=LineScope())
    else:
        reading.add_unread(place, f"{name} ({path})", f"does not exist: {SUBMODULES}")
