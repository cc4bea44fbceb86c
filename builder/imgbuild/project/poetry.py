"""Reads `[tool.poetry]` of a pyproject.toml with poetry-core."""

from __future__ import annotations

import re
from typing import Any

from imgbuild.project.model import FilePlace
from imgbuild.project.project_files import key_line, line_of, parent_folder, relative_path
from imgbuild.project.reading import LocalRequest, ProjectReading
from imgbuild.project.submodules import SUBMODULES
from imgbuild.project.uv_settings import DEVELOPMENT
from imgbuild.values import normalize_package


def read_poetry(
    reading: ProjectReading, file: str, document: dict[str, Any], *, take: bool
) -> None:
    """Read the tables of Poetry, or without `take`, only sources and groups.

    With Poetry 2, requirements are in `[project]`, and Poetry's tables add properties that pip does
    not support.
    """
    table = poetry_table(document)
    if not table:
        return
    text = reading.sources.text(file)
    sources = _sources(reading, file, text, table)
    extras = table.get("extras")
    extras = extras if isinstance(extras, dict) else {}
    reading.available_extras |= set(map(normalize_package, extras))
    chosen = {
        normalize_package(str(package))
        for extra, packages in extras.items()
        if normalize_package(extra) in map(normalize_package, reading.extras)
        and isinstance(packages, list)
        for package in packages
    }
    if take:
        main = table.get("dependencies")
        _group(reading, file, text, main, "[tool.poetry.dependencies]", sources, chosen)
    groups = table.get("group")
    for name, group in groups.items() if isinstance(groups, dict) else ():
        if not isinstance(group, dict):
            continue
        label = normalize_package(name)
        reading.available_groups.add(label)
        chosen_group = label in map(normalize_package, reading.groups)
        by_default = not group.get("optional") and label not in DEVELOPMENT
        if chosen_group or (take and by_default):
            header = f"[tool.poetry.group.{name}"
            _group(reading, file, text, group.get("dependencies"), header, sources, chosen)


def poetry_table(document: dict[str, Any]) -> dict[str, Any]:
    """Return the table `[tool.poetry]`, or an empty table if there is none."""
    tool = document.get("tool")
    table = tool.get("poetry") if isinstance(tool, dict) else None
    return table if isinstance(table, dict) else {}


def _sources(
    reading: ProjectReading, file: str, text: str, table: dict[str, Any]
) -> dict[str, tuple[str, FilePlace]]:
    """Return the package sources by name. Sources that apply to all packages become indexes."""
    named: dict[str, tuple[str, FilePlace]] = {}
    entries = table.get("source")
    for entry in entries if isinstance(entries, list) else ():
        if not isinstance(entry, dict) or not entry.get("url"):
            continue
        url = str(entry["url"])
        place = FilePlace(file=file, line=line_of(text, url, after="[[tool.poetry.source]]"))
        named[str(entry.get("name", url))] = (url, place)
        if entry.get("priority") != "explicit":
            reading.index(url, place, name=str(entry.get("name", "")))
    return named


def _group(
    reading: ProjectReading,
    file: str,
    text: str,
    table: object,
    header: str,
    sources: dict[str, tuple[str, FilePlace]],
    chosen: set[str],
) -> None:
    for name, value in table.items() if isinstance(table, dict) else ():
        place = FilePlace(file=file, line=key_line(text, name, after=header))
        if normalize_package(name) == "python":
            _python(reading, value, place)
            continue
        for constraint in value if isinstance(value, list) else [value]:
            _dependency(reading, name, constraint, place, sources, chosen)


def _python(reading: ProjectReading, value: object, place: FilePlace) -> None:
    text = value.get("version", "") if isinstance(value, dict) else value
    spec = _specifier(str(text))
    if spec is None:
        reading.add_unread(place, f"python = {text}", "these versions require several specifiers")
    else:
        reading.add_python(spec, place)


def _specifier(text: str) -> str | None:
    from poetry.core.constraints.version import parse_constraint
    from poetry.core.constraints.version.exceptions import ParseConstraintError

    try:
        spec = str(parse_constraint(text))
    except (ParseConstraintError, ValueError):
        return None
    if "||" in spec:
        return None
    if spec == "*":
        return ""
    return spec if re.match(r"[<>=!~]", spec) else f"=={spec}"


def _dependency(
    reading: ProjectReading,
    name: str,
    value: object,
    place: FilePlace,
    sources: dict[str, tuple[str, FilePlace]],
    chosen: set[str],
) -> None:
    if isinstance(value, dict):
        if value.get("optional") is True and normalize_package(name) not in chosen:
            return
        if "path" in value:
            _folder(reading, name, value, place)
            return
        if str(value.get("source")) in sources:
            source = str(value["source"])
            reading.index(*sources[source], name=source, packages=[name])
    elif not isinstance(value, str):
        reading.add_problem(place, "not a Poetry requirement", value=str(value))
        return
    from poetry.core.factory import Factory

    settings: Any = dict(value, optional=False) if isinstance(value, dict) else value
    try:
        text = Factory.create_dependency(name, settings).to_pep_508(with_extras=False)
    except Exception as error:  # noqa: BLE001 - poetry-core raises many kinds
        cause = (str(error).splitlines() or [type(error).__name__])[0]
        message = f"not a Poetry requirement: {cause}"
        reading.add_problem(place, message, value=f"{name} = {value}")
        return
    if re.search(r"\|\|", text):
        reading.add_unread(place, f"{name} = {value}", "pip cannot express these versions")
        return
    reading.add_requirement(text, place)


def _folder(reading: ProjectReading, name: str, value: dict[str, Any], place: FilePlace) -> None:
    target = relative_path(parent_folder(place.file), str(value["path"]))
    extras = value.get("extras")
    if target.startswith(("/", "..")) or not reading.sources.is_inside(target):
        reading.add_unread(place, f"{name} = {value}", "a path outside the project")
    elif reading.sources.is_folder(target):
        reading.request_local(
            LocalRequest(
                folder=target,
                place=place,
                name=name,
                extras=tuple(map(str, extras)) if isinstance(extras, list) else (),
            )
        )
    else:
        reason = f"no such folder: {SUBMODULES}"
        reading.add_unread(place, f"{name} = {value}", reason)
