"""Reads pyproject.toml: dependencies, extras, groups, `[tool.uv]` and `[tool.poetry]`.

Sources: PEP 621 (project), PEP 735 (dependency groups), uv's and Poetry's documentation.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from imgbuild.project import poetry, requirement_lines
from imgbuild.project.layouts import find_table
from imgbuild.project.model import FilePlace
from imgbuild.project.project_files import key_line, line_of, parent_folder, relative_path
from imgbuild.project.reading import ProjectReading
from imgbuild.project.requirement_lines import LineScope
from imgbuild.project.uv_settings import UvSettings
from imgbuild.system.syntax import valid_requirement
from imgbuild.values import normalize_package


class ProjectTables:
    """The tables of a pyproject.toml that contain requirements."""

    def __init__(self, reading: ProjectReading, file: str, document: dict[str, Any]) -> None:
        self.reading = reading
        self.file = file
        self.text = reading.sources.text(file)
        self.document = document
        project = document.get("project")
        self.project: dict[str, Any] = project if isinstance(project, dict) else {}
        self.has_project = isinstance(project, dict)
        self.name = normalize_package(str(self.project.get("name", "")))
        self.dependencies = self._texts(self.project, "dependencies", "[project]")
        self.extras = {
            normalize_package(name): self._texts(self._extra_table(), name, "[project.optional-dep")
            for name in self._extra_table()
        }
        groups = document.get("dependency-groups")
        self.groups: dict[str, Any] = {
            normalize_package(str(name)): value
            for name, value in (groups.items() if isinstance(groups, dict) else ())
        }

    def _extra_table(self) -> dict[str, Any]:
        table = self.project.get("optional-dependencies")
        return table if isinstance(table, dict) else {}

    def _texts(self, table: dict[str, Any], key: str, after: str) -> list[str]:
        value = table.get(key, [])
        place = FilePlace(file=self.file, line=line_of(self.text, key, after=after))
        if not isinstance(value, list):
            self.reading.add_problem(place, f"{key} is not a list", value=str(value))
            return []
        texts = [item for item in value if isinstance(item, str)]
        if len(texts) < len(value):
            self.reading.add_problem(place, f"{key} contains a value that is not a string")
        return texts

    def place(self, text: str, after: str = "[project]") -> FilePlace:
        """Return the place of `text` in quotes, below the line that starts with `after`."""
        return FilePlace(file=self.file, line=line_of(self.text, text, after=after))

    def _place_below(self, text: str, key: str, header: str) -> FilePlace:
        start = key_line(self.text, key, after=header)
        rest = self.text.split("\n", max(start - 1, 0))[-1]
        return FilePlace(file=self.file, line=max(start - 1 + line_of(rest, text), start))

    def extra_items(self, name: str, seen: tuple[str, ...] = ()) -> list[tuple[str, FilePlace]]:
        """Return the requirements of an extra. `PACKAGE[a,b]` is expanded if it is this package."""
        if name in seen:
            return []
        taken: list[tuple[str, FilePlace]] = []
        for text in self.extras.get(name, []):
            place = self._place_below(text, name, "[project.optional-dep")
            taken += self.expand_requirement(text, place, (*seen, name))
        return taken

    def group_items(self, name: str, seen: tuple[str, ...] = ()) -> list[tuple[str, FilePlace]]:
        """Return the requirements of a dependency group and of the groups that it includes."""
        place = FilePlace(
            file=self.file, line=key_line(self.text, name, after="[dependency-groups]")
        )
        if name in seen:
            chain = " -> ".join((*seen, name))
            self.reading.add_problem(place, f"dependency groups form a cycle: {chain}")
            return []
        if name not in self.groups:
            place = self.place(name, "[dependency-groups]")
            self.reading.add_problem(place, "includes a dependency group that does not exist",
                                 value=name, expected=", ".join(self.groups) or None)  # fmt: skip
            return []
        taken: list[tuple[str, FilePlace]] = []
        items = self.groups[name]
        for item in items if isinstance(items, list) else [items]:
            if isinstance(item, str):
                taken += self.expand_requirement(
                    item, self._place_below(item, name, "[dependency-groups]"), ()
                )
            elif isinstance(item, dict) and isinstance(item.get("include-group"), str):
                taken += self.group_items(normalize_package(item["include-group"]), (*seen, name))
            else:
                self.reading.add_problem(
                    place, "not an item of a dependency group", value=str(item)
                )
        return taken

    def expand_requirement(
        self, text: str, place: FilePlace, seen: tuple[str, ...]
    ) -> list[tuple[str, FilePlace]]:
        """Return a requirement.

        For extras of this package, return the requirements of the extras.
        """
        requirement = valid_requirement(text)
        if requirement is None:
            return [(text, place)]
        if normalize_package(requirement.name) != self.name or not self.name:
            return [(text, place)]
        taken: list[tuple[str, FilePlace]] = []
        for extra in sorted(requirement.extras):
            if normalize_package(extra) not in self.extras:
                message = "refers to an extra of this package that does not exist"
                expected = ", ".join(sorted(self.extras))
                self.reading.add_problem(place, message, value=text, expected=expected)
            taken += self.extra_items(normalize_package(extra), seen)
        return taken


def read_file(reading: ProjectReading, name: str) -> None:
    """Read the pyproject.toml `name` for the chosen extras and groups."""
    document = reading.read_toml(name)
    if document is None:
        return
    tables = ProjectTables(reading, name, document)
    settings = UvSettings(reading, name, document)
    reading.available_extras |= tables.extras.keys()
    reading.available_groups |= tables.groups.keys()
    reading.conflicts += settings.conflict_sets(tables.name)
    extras, groups = chosen_extras_and_groups(reading, tables, settings)
    settings.extras, settings.groups = frozenset(extras), frozenset(groups)
    python = tables.project.get("requires-python")
    if isinstance(python, str):
        reading.add_python(python, tables.place(python))
    add_requirements(tables, settings, extras, groups)
    settings.add_settings()
    poetry.read_poetry(reading, name, document, take=not tables.has_project)


def add_requirements(
    tables: ProjectTables, settings: UvSettings, extras: Iterable[str], groups: Iterable[str]
) -> None:
    """Add the dependencies of the package and of `extras` and `groups`."""
    reading = tables.reading
    for text in tables.dependencies:
        place = tables.place(text, "dependencies")
        for each, spot in tables.expand_requirement(text, place, ()):
            settings.add_requirement(each, spot)
    for extra in extras:
        for text, place in tables.extra_items(extra):
            settings.add_requirement(text, place)
    for group in groups:
        for text, place in tables.group_items(group):
            settings.add_requirement(text, place)
    add_dynamic_requirements(reading, tables, extras)


def chosen_extras_and_groups(
    reading: ProjectReading, tables: ProjectTables, settings: UvSettings
) -> tuple[list[str], list[str]]:
    """Return the chosen extras, and the chosen and default groups.

    Default groups that conflict with chosen extras or groups are omitted.
    """
    extras = [
        name for name in map(normalize_package, sorted(reading.extras)) if name in tables.extras
    ]
    groups = [
        name for name in map(normalize_package, sorted(reading.groups)) if name in tables.groups
    ]
    picked = {f"extra:{name}" for name in extras} | {f"group:{name}" for name in groups}
    for name in map(normalize_package, settings.default_groups(tables.groups)):
        conflicts = [each for each in reading.conflicts if f"group:{name}" in each]
        excluded = any(picked & (set(each) - {f"group:{name}"}) for each in conflicts)
        if name not in groups and name in tables.groups and not excluded:
            groups.append(name)
    for each in reading.conflicts:
        both = sorted(picked & set(each))
        if len(both) > 1:
            place = settings.place("conflicts")
            reading.add_problem(place, "conflict with each other", value=" and ".join(both),
                            expected="one of them")  # fmt: skip
    return extras, groups


def check_choice(reading: ProjectReading) -> None:
    """Record a problem for each chosen extra or group that no file defines.

    Any extra is allowed if the build backend computes extras.
    """
    unknown = any("optional-dependencies" in item.dynamic for item in reading.packages)
    for kind, names, available in (
        ("extra", reading.extras, sorted(reading.available_extras)),
        ("group", reading.groups, sorted(reading.available_groups)),
    ):
        for name in sorted(names):
            if normalize_package(name) in map(normalize_package, available) or (
                kind == "extra" and unknown
            ):
                continue
            near = difflib.get_close_matches(normalize_package(name), available, n=1)
            file = next((each for each in reading.files if each.endswith("pyproject.toml")), ".")
            expected = (
                f"one of {', '.join(available)}"
                if available
                else f"an existing {kind}; there is none"
            )
            reading.add_problem(FilePlace(file=file), f"has no {kind} {name}",
                            expected=f"{near[0]}?" if near else expected)  # fmt: skip


def add_dynamic_requirements(
    reading: ProjectReading, tables: ProjectTables, extras: Iterable[str]
) -> None:
    """Add the requirements that setuptools or a Hatch plugin reads from files."""
    dynamic = tables.project.get("dynamic")
    names = [str(name) for name in dynamic] if isinstance(dynamic, list) else []
    tool = tables.document.get("tool")
    tool = tool if isinstance(tool, dict) else {}
    setuptools = find_table(tool, "setuptools", "dynamic")
    hook = find_table(tool, "hatch", "metadata", "hooks", "requirements_txt")
    if "dependencies" in names:
        files = _files(setuptools.get("dependencies")) + [
            str(each) for each in hook.get("files", [])
        ]
        for file in files:
            _read_nested(reading, tables, file)
    if "optional-dependencies" in names:
        optional = setuptools.get("optional-dependencies")
        by_extra = {**(optional if isinstance(optional, dict) else {}),
                    **hook.get("optional-dependencies", {})}  # fmt: skip
        reading.available_extras |= {normalize_package(name) for name in by_extra}
        chosen_extras = {normalize_package(name) for name in reading.extras} | set(extras)
        for extra, value in by_extra.items():
            if normalize_package(extra) in chosen_extras:
                for file in _files(value) or [str(each) for each in value if isinstance(each, str)]:
                    _read_nested(reading, tables, file)


def _read_nested(reading: ProjectReading, tables: ProjectTables, file: str) -> None:
    place = tables.place(file, "dynamic")
    target = relative_path(parent_folder(tables.file), file)
    if not reading.sources.exists(target):
        reading.add_problem(
            place, f"refers to a file that {reading.sources.absence_reason(target)}", value=target
        )
        return
    requirement_lines.read_nested_file(reading, target, ".", place, LineScope())


def _files(value: object) -> list[str]:
    files = value.get("file") if isinstance(value, dict) else None
    if isinstance(files, str):
        return [files]
    return [str(each) for each in files] if isinstance(files, list) else []
