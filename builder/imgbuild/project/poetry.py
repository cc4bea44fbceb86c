"""Reads `[tool.poetry]` of a pyproject.toml with poetry-core."""

from __future__ import annotations

import re
from typing import Any

from imgbuild.project.model import Place
from imgbuild.project.project_files import above, key_line, line_of, relative
from imgbuild.project.reading import LocalRequest, Reading
from imgbuild.project.submodules import SUBMODULES
from imgbuild.project.uv_settings import DEVELOPMENT
from imgbuild.values import normalize


def read(reading: Reading, file: str, document: dict[str, Any], *, take: bool) -> None:
    """Read the tables of Poetry; without `take`, only sources and groups.

    Poetry 2 has the requirements in `[project]`, and its own tables have properties that pip cannot
    express.
    """
    table = table_of(document)
    if not table:
        return
    text = reading.sources.text(file)
    sources = _sources(reading, file, text, table)
    extras = table.get("extras")
    extras = extras if isinstance(extras, dict) else {}
    reading.available_extras |= set(map(normalize, extras))
    chosen = {
        normalize(str(package))
        for extra, packages in extras.items()
        if normalize(extra) in map(normalize, reading.extras) and isinstance(packages, list)
        for package in packages
    }
    if take:
        main = table.get("dependencies")
        _group(reading, file, text, main, "[tool.poetry.dependencies]", sources, chosen)
    groups = table.get("group")
    for name, group in groups.items() if isinstance(groups, dict) else ():
        if not isinstance(group, dict):
            continue
        label = normalize(name)
        reading.available_groups.add(label)
        chosen_group = label in map(normalize, reading.groups)
        by_default = not group.get("optional") and label not in DEVELOPMENT
        if chosen_group or (take and by_default):
            header = f"[tool.poetry.group.{name}"
            _group(reading, file, text, group.get("dependencies"), header, sources, chosen)


def table_of(document: dict[str, Any]) -> dict[str, Any]:
    """The table `[tool.poetry]`, empty if there is none."""
    tool = document.get("tool")
    table = tool.get("poetry") if isinstance(tool, dict) else None
    return table if isinstance(table, dict) else {}


def _sources(
    reading: Reading, file: str, text: str, table: dict[str, Any]
) -> dict[str, tuple[str, Place]]:
    """The package sources by name. Sources for all packages are added as indexes."""
    named: dict[str, tuple[str, Place]] = {}
    entries = table.get("source")
    for entry in entries if isinstance(entries, list) else ():
        if not isinstance(entry, dict) or not entry.get("url"):
            continue
        url = str(entry["url"])
        place = Place(file=file, line=line_of(text, url, after="[[tool.poetry.source]]"))
        named[str(entry.get("name", url))] = (url, place)
        if entry.get("priority") != "explicit":
            reading.index(url, place, name=str(entry.get("name", "")))
    return named


def _group(
    reading: Reading,
    file: str,
    text: str,
    table: object,
    header: str,
    sources: dict[str, tuple[str, Place]],
    chosen: set[str],
) -> None:
    for name, value in table.items() if isinstance(table, dict) else ():
        place = Place(file=file, line=key_line(text, name, after=header))
        if normalize(name) == "python":
            _python(reading, value, place)
            continue
        for constraint in value if isinstance(value, list) else [value]:
            _dependency(reading, name, constraint, place, sources, chosen)


def _python(reading: Reading, value: object, place: Place) -> None:
    text = value.get("version", "") if isinstance(value, dict) else value
    spec = _specifier(str(text))
    if spec is None:
        reading.leave_out(place, f"python = {text}", "versions that one specifier cannot express")
    else:
        reading.python(spec, place)


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
    reading: Reading,
    name: str,
    value: object,
    place: Place,
    sources: dict[str, tuple[str, Place]],
    chosen: set[str],
) -> None:
    """Add one requirement, converted by poetry-core to pip's syntax."""
    if isinstance(value, dict):
        if value.get("optional") is True and normalize(name) not in chosen:
            return
        if "path" in value:
            _folder(reading, name, value, place)
            return
        if str(value.get("source")) in sources:
            source = str(value["source"])
            reading.index(*sources[source], name=source, packages=[name])
    elif not isinstance(value, str):
        reading.problem(place, "not a Poetry requirement", value=str(value))
        return
    from poetry.core.factory import Factory

    settings: Any = dict(value, optional=False) if isinstance(value, dict) else value
    try:
        text = Factory.create_dependency(name, settings).to_pep_508(with_extras=False)
    except Exception as error:  # noqa: BLE001 - poetry-core raises many kinds
        cause = (str(error).splitlines() or [type(error).__name__])[0]
        message = f"not a Poetry requirement: {cause}"
        reading.problem(place, message, value=f"{name} = {value}")
        return
    if re.search(r"\|\|", text):
        reading.leave_out(place, f"{name} = {value}", "versions that pip cannot express")
        return
    reading.requirement(text, place)


def _folder(reading: Reading, name: str, value: dict[str, Any], place: Place) -> None:
    target = relative(above(place.file), str(value["path"]))
    extras = value.get("extras")
    if target.startswith(("/", "..")) or not reading.sources.inside(target):
        reading.leave_out(place, f"{name} = {value}", "a path outside the project")
    elif reading.sources.is_folder(target):
        reading.local(
            LocalRequest(
                folder=target,
                place=place,
                name=name,
                extras=tuple(map(str, extras)) if isinstance(extras, list) else (),
            )
        )
    else:
        reason = f"no such folder: {SUBMODULES}"
        reading.leave_out(place, f"{name} = {value}", reason)
