"""Reads `[tool.uv]` of a pyproject.toml, such as sources, indexes and constraints.

Source: uv's documentation of projects and its reference of settings.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Iterator
from typing import Any

from packaging.markers import Marker
from packaging.requirements import Requirement

from imgbuild.project import platforms, releases
from imgbuild.project.layouts import find_table
from imgbuild.project.model import DeclaredDay, DeclaredName, FilePlace, RequirementKind
from imgbuild.project.project_files import SourceProblem, line_of, parent_folder, relative_path
from imgbuild.project.reading import LocalRequest, ProjectReading
from imgbuild.project.requirement_lines import (
    LineScope,
    expand_short_form,
    requirement_word,
)
from imgbuild.project.submodules import SUBMODULES
from imgbuild.system.syntax import valid_requirement
from imgbuild.values import normalize_package

# Groups of development tools, which are not read even if they are defaults of a project.
DEVELOPMENT = frozenset([
    "dev", "develop", "development", "test", "tests", "testing", "lint", "linting", "docs",
    "doc", "typing", "style", "ci", "format", "quality",
])  # fmt: skip
# Settings that change what uv resolves or builds, and have no counterpart here. Those that
# only change how uv works are not listed.
IGNORED_SETTINGS = frozenset([
    "prerelease", "resolution", "index-strategy", "no-index", "no-binary", "no-binary-package",
    "no-build", "no-build-package", "no-sources", "build-constraint-dependencies",
    "extra-build-dependencies", "extra-build-variables", "config-settings",
    "config-settings-package", "dependency-metadata",
])  # fmt: skip
IGNORED_REASON = "this uv setting has no effect on targets"


class UvSettings:
    """The `[tool.uv]` settings in `file`, for the requirements in the same file.

    `extras` and `groups` are the extras and groups to read.
    """

    def __init__(self, reading: ProjectReading, file: str, document: dict[str, Any]) -> None:
        self.reading = reading
        self.file = file
        self.folder = parent_folder(file)
        self.text = reading.sources.text(file)
        self.table = find_table(document, "tool", "uv")
        self.workspace = find_table(self.table, "workspace")
        self.extras: frozenset[str] = frozenset()
        self.groups: frozenset[str] = frozenset()
        self.sources = {
            normalize_package(name): [each for each in _list(value) if isinstance(each, dict)]
            for name, value in find_table(self.table, "sources").items()
        }
        self.indexes = {
            str(entry["name"]): entry
            for entry in _list(self.table.get("index"))
            if isinstance(entry, dict) and "name" in entry
        }
        if self.folder == ".":
            reading.root = self
        self._named: dict[tuple[str, str], list[str]] = {}  # index and marker → packages

    def place(self, value: str, after: str = "[tool.uv") -> FilePlace:
        """Return the line that contains `value`."""
        return FilePlace(file=self.file, line=line_of(self.text, value, after=after))

    def default_groups(self, available: Iterable[str]) -> list[str]:
        """Return the groups that uv installs by default, except groups for development."""
        default = self.table.get("default-groups", [])
        names = list(available) if default == "all" else [str(each) for each in _list(default)]
        return [name for name in names if normalize_package(name) not in DEVELOPMENT]

    def conflict_sets(self, package: str) -> list[tuple[str, ...]]:
        """Return the sets of extras and groups of `package` that exclude each other."""
        sets = []
        for conflict in _list(self.table.get("conflicts")):
            items = [item for item in _list(conflict) if isinstance(item, dict)]
            if any(
                normalize_package(str(item.get("package", package))) != package for item in items
            ):
                continue
            names = [f"{kind}:{normalize_package(str(item[kind]))}" for item in items
                     for kind in ("extra", "group") if kind in item]  # fmt: skip
            if len(names) > 1:
                sets.append(tuple(names))
        return sets

    def add_requirement(
        self, text: str, place: FilePlace, *, kind: RequirementKind = "requirement"
    ) -> None:
        """Add a requirement of the project, with its source in `[tool.uv.sources]`."""
        requirement = valid_requirement(text)
        if requirement is None:
            self.reading.add_requirement(text, place, kind=kind)
            return
        name = normalize_package(requirement.name)
        root = self.reading.root
        if isinstance(root, UvSettings) and name in root.sources.keys() - self.sources.keys():
            root.add_requirement(text, place, kind=kind)
            root.finish_indexes()  # a package has one source in all of a project
            return
        sources = list(self._active_sources(name))
        if requirement.url is not None or not sources:
            self._add_plain(text, place, kind, requirement)
            return
        rest = self._apply_sources(sources, requirement, place, kind)
        if rest is not None:
            self.reading.add_requirement(text, place, kind=kind, marker=rest)

    def _add_plain(
        self, text: str, place: FilePlace, kind: RequirementKind, requirement: Requirement
    ) -> None:
        url = requirement.url or "https:"
        if url.startswith("file:") or ":" not in url:
            requirement_word(self.reading, text, self.folder, place, scope=LineScope(kind=kind))
            return
        self.reading.add_requirement(text, place, kind=kind)

    def _active_sources(self, name: str) -> Iterator[dict[str, Any]]:
        for source in self.sources.get(name, []):
            extra, group = source.get("extra"), source.get("group")
            if extra is not None and normalize_package(str(extra)) not in self.extras:
                continue
            if group is not None and normalize_package(str(group)) not in self.groups:
                continue
            if platforms.is_possible(source.get("marker")):
                yield source

    def _apply_sources(
        self,
        sources: list[dict[str, Any]],
        requirement: Requirement,
        place: FilePlace,
        kind: RequirementKind,
    ) -> str | None:
        """Add the requirement for each source. Sources that are indexes are only recorded.

        Return the marker of environments without a matching source, or None if every environment
        has one.
        """
        general = str(requirement.marker or "")
        left = set(platforms.matching_environments(general))
        inverse: list[str] = []
        for source in sources:
            marker = str(source.get("marker") or "")
            if not platforms.is_possible(platforms.join_markers(general, marker)):
                continue
            if "index" in source:
                self._add_index(str(source["index"]), marker, requirement.name)
                continue
            self._add_direct(source, requirement, place, kind, marker)
            left -= platforms.matching_environments(marker)
            inverse.append(_invert_marker(marker))
        if not left:
            return None
        if "" in inverse:
            reason = "without a matching source, the package would be installed from the index"
            self.reading.add_unread(place, str(requirement), reason)
            return None
        return platforms.join_markers(*inverse)

    def _add_direct(
        self,
        source: dict[str, Any],
        requirement: Requirement,
        place: FilePlace,
        kind: RequirementKind,
        marker: str,
    ) -> None:
        extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
        both = platforms.join_markers(str(requirement.marker or ""), marker)
        suffix = f" ; {both}" if both else ""
        name = f"{requirement.name}{extras}"
        if "git" in source:
            address = _git_address(source)
            self.reading.add_requirement(f"{name} @ {address}{suffix}", place, kind=kind)
        elif "url" in source:
            address = str(source["url"])
            if source.get("subdirectory"):
                address += f"#subdirectory={source['subdirectory']}"
            self.reading.add_requirement(f"{name} @ {address}{suffix}", place, kind=kind)
        elif "path" in source:
            self._add_path(str(source["path"]), requirement, place, both)
        elif source.get("workspace") is True:
            folder = self._member_folder(requirement.name)
            if folder is None:
                members = ", ".join(str(each) for each in _list(self.workspace.get("members")))
                reason = (
                    f"the members of the workspace ({members or 'none'}) are missing: {SUBMODULES}"
                )
                self.reading.add_unread(place, str(requirement), reason)
            else:
                self._add_local(folder, requirement, place, both)
        else:
            self.reading.add_unread(place, str(requirement), f"source is not supported: {source}")

    def _add_path(self, path: str, requirement: Requirement, place: FilePlace, marker: str) -> None:
        target = relative_path(self.folder, path)
        sources = self.reading.sources
        if path.startswith(("/", "~")) or target.startswith("..") or not sources.is_inside(target):
            self.reading.add_unread(place, f"{requirement} ({path})", "a path outside the project")
        elif sources.exists(target):
            suffix = f" ; {marker}" if marker else ""
            requirement_word(self.reading, f"./{target}{suffix}", ".", place, scope=LineScope())
        elif sources.is_folder(target):
            self._add_local(target, requirement, place, marker)
        else:
            reason = f"folder {target} does not exist: {SUBMODULES}"
            self.reading.add_unread(place, str(requirement), reason)

    def _add_local(
        self, folder: str, requirement: Requirement, place: FilePlace, marker: str
    ) -> None:
        self.reading.request_local(
            LocalRequest(
                folder=folder,
                place=place,
                name=requirement.name,
                extras=tuple(sorted(requirement.extras)),
                marker=marker,
            )
        )

    def _member_folder(self, name: str) -> str | None:
        sources = self.reading.sources
        for pattern in _list(self.workspace.get("members")):
            base = sources.root / self.folder
            text = str(pattern)
            if not text or text.startswith("/") or ".." in text.split("/") or "**" in text:
                continue
            for path in sorted(base.glob(text)):
                folder = relative_path(self.folder, str(path.relative_to(base)))
                file = f"{folder}/pyproject.toml"
                if folder.startswith("..") or not sources.exists(file):
                    continue
                try:
                    project = find_table(sources.read_toml(file), "project")
                except SourceProblem:
                    continue
                if normalize_package(str(project.get("name", ""))) == normalize_package(name):
                    return folder
        return None

    def _add_index(self, name: str, marker: str, package: str) -> None:
        if name not in self.indexes:
            place = self.place(name)
            self.reading.add_problem(place, "refers to an index that is not in [[tool.uv.index]]",
                                 value=name, expected=", ".join(self.indexes) or None)  # fmt: skip
            return
        self._named.setdefault((name, _index_marker(marker)), []).append(package)

    def finish_indexes(self) -> None:
        """Add the indexes that requirements use."""
        for (name, marker), packages in self._named.items():
            entry = self.indexes[name]
            url, flat = str(entry.get("url", "")), entry.get("format") == "flat"
            place = self.place(url, "[[tool.uv.index]]")
            self.reading.index(url, place, marker, name=name, packages=packages, flat=flat)

    def add_settings(self) -> None:
        """Add the settings for all requirements, such as indexes, overrides and constraints."""
        self._add_rules()
        self.finish_indexes()
        named = {name for name, _ in self._named}
        for entry in _list(self.table.get("index")):
            if isinstance(entry, dict):
                self._general_index(entry, named=str(entry.get("name")) in named)
        for key in ("index-url", "extra-index-url", "find-links"):
            for url in _list(self.table.get(key)):
                self.reading.index(str(url), self.place(str(url)), flat=key == "find-links")
        self._add_cut_off()
        if self.table.get("dev-dependencies"):
            self.reading.add_unread(
                self.place("dev-dependencies"), "dev-dependencies", "packages for development"
            )
        for key in sorted(IGNORED_SETTINGS & self.table.keys()):
            self.reading.add_unread(self.place(key), f"tool.uv.{key}", IGNORED_REASON)

    def _general_index(self, entry: dict[str, Any], *, named: bool) -> None:
        url = str(entry.get("url", ""))
        place = self.place(url, "[[tool.uv.index]]")
        if entry.get("explicit") is True:
            if named:
                return
            label = f"{entry.get('name', 'index')}: {url}"
            self.reading.add_unread(place, label, "no selected requirement uses this index")
        elif not (named and releases.cuda_of_index(url)):  # its marker counts
            name, flat = str(entry.get("name", "")), entry.get("format") == "flat"
            self.reading.index(url, place, name=name, flat=flat)

    def _add_rules(self) -> None:
        elsewhere: dict[str, list[tuple[FilePlace, str]]] = {}
        for key, kind in (("override-dependencies", "override"),
                          ("constraint-dependencies", "constraint")):  # fmt: skip
            for text in _strings(self.reading, self.table.get(key), self.place(key)):
                place = FilePlace(file=self.file, line=line_of(self.text, text, after=key))
                marker = _marker(text)
                if kind == "constraint":
                    self.reading.add_requirement(text, place, kind="constraint")
                    continue
                elsewhere.setdefault(normalize_package(_name(text)), []).append((place, marker))
                if not marker or platforms.is_possible(marker):
                    self.add_requirement(text, place, kind="override")
        for name, entries in elsewhere.items():
            # Where no override of a package holds, nothing requires it.
            inverse = [
                _invert_marker(marker) for _, marker in entries if platforms.is_possible(marker)
            ]
            if "" not in inverse:
                self._exclude_package(name, entries[0][0], platforms.join_markers(*inverse))
        for text in _strings(self.reading, self.table.get("exclude-dependencies"),
                             self.place("exclude-dependencies")):  # fmt: skip
            place = FilePlace(
                file=self.file, line=line_of(self.text, text, after="exclude-dependencies")
            )
            self._exclude_package(text, place)

    def _exclude_package(self, text: str, place: FilePlace, marker: str = "") -> None:
        name = normalize_package(_name(text))
        entry = DeclaredName(name=name, place=place, marker=marker)
        if name and entry not in self.reading.excluded:
            self.reading.excluded.append(entry)

    def _add_cut_off(self) -> None:
        value = self.table.get("exclude-newer")
        if value is not None:
            place = self.place("exclude-newer")
            day = absolute_day(value)
            if day is None:
                reason = "a relative cut-off changes every day"
                self.reading.add_unread(place, f"exclude-newer = {value}", reason)
            else:
                self.reading.cut_off = DeclaredDay(day=day, place=place)
        packages = find_table(self.table, "exclude-newer-package")
        if packages:
            self.reading.add_unread(
                self.place("exclude-newer-package"),
                "exclude-newer-package",
                f"targets have one cut-off for all packages; this table has {len(packages)}",
            )


def absolute_day(value: object) -> datetime.date | None:
    """Convert `exclude-newer` to a cut-off day, or return None for a relative time.

    Times are rounded up to the next day. uv excludes files uploaded later on the same day, but
    imgbuild includes them.
    """
    if isinstance(value, datetime.datetime):
        moment = value
    elif isinstance(value, datetime.date):
        return value + datetime.timedelta(days=1)
    else:
        text = str(value).strip()
        try:
            if re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
                return datetime.date.fromisoformat(text) + datetime.timedelta(days=1)
            moment = datetime.datetime.fromisoformat(text)
        except (ValueError, OverflowError):
            return None
    if moment.tzinfo is not None:
        moment = moment.astimezone(datetime.UTC)
    day = moment.date()
    midnight = moment.time().replace(tzinfo=None) == datetime.time()
    return day if midnight else day + datetime.timedelta(days=1)


def _git_address(source: dict[str, Any]) -> str:
    address = str(source["git"])
    address = address if address.startswith("git+") else f"git+{address}"
    address = expand_short_form(address)
    revision = next((str(source[key]) for key in ("rev", "tag", "branch") if source.get(key)), "")
    address += f"@{revision}" if revision else ""
    directory = source.get("subdirectory")
    return f"{address}#subdirectory={directory}" if directory else address


def _index_marker(marker: str) -> str:
    """Return the marker of an index, or "" if the marker is true in every image."""
    return (
        ""
        if len(platforms.matching_environments(marker)) == len(platforms.possible_environments())
        else marker
    )


def _name(text: str) -> str:
    return re.split(r"[\[<>=!~ @;]", text.strip())[0]


def _marker(text: str) -> str:
    requirement = valid_requirement(text)
    return str(requirement.marker or "") if requirement is not None else ""


INVERSE = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">",
           "in": "not in", "not in": "in"}  # fmt: skip


def _invert_marker(marker: str) -> str:
    """Invert a marker. Return "" if it has several comparisons."""
    match = re.fullmatch(
        r"\s*([\w.]+)\s*(==|!=|<=|>=|<|>|not in|in)\s*(['\"][^'\"]*['\"])\s*", marker
    )
    return str(Marker(f"{match[1]} {INVERSE[match[2]]} {match[3]}")) if match else ""


def _list(value: object) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _strings(reading: ProjectReading, value: object, place: FilePlace) -> list[str]:
    texts = []
    for item in _list(value):
        if isinstance(item, str):
            texts.append(item)
        else:
            reading.add_problem(
                place, "not a string", value=str(item), expected="a requirement in quotes"
            )
    return texts
