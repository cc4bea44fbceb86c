"""Reads Conda packages and pip requirements from a Conda environment.yml."""

from __future__ import annotations

import re
from typing import Any

from imgbuild.project import requirement_lines
from imgbuild.project.conda_packages import read_dependency
from imgbuild.project.model import FilePlace
from imgbuild.project.project_files import line_of
from imgbuild.project.reading import ProjectReading


def read_file(reading: ProjectReading, name: str) -> None:
    """Read the environment file `name`."""
    document = reading.read_yaml(name)
    if document is None:
        return
    place = FilePlace(file=name)
    if not isinstance(document, dict):
        reading.add_problem(
            place, "not a conda environment", expected="a mapping with the key dependencies"
        )
        return
    text = reading.sources.text(name)
    dependencies = document.get("dependencies") or []
    if not isinstance(dependencies, list):
        reading.add_problem(place, "dependencies is not a list", value=str(dependencies)[:60])
        return
    for entry in dependencies:
        if isinstance(entry, dict):
            _pip_part(reading, entry, name, text)
        elif isinstance(entry, str):
            read_dependency(reading, entry, FilePlace(file=name, line=_line(text, entry)))
        elif entry is not None:
            reading.add_problem(place, "a dependency is not a string", value=str(entry)[:60])
    variables = document.get("variables")
    if variables:
        reason = "environment variables are ignored; set them under env: in matrix.yaml"
        line = line_of(text, "variables:")
        reading.add_unread(FilePlace(file=name, line=line), "variables", reason)


def _line(text: str, entry: str) -> int:
    for number, line in enumerate(text.split("\n"), start=1):
        stripped = line.strip().removeprefix("-").partition(" #")[0].strip().strip("\"'")
        if stripped == entry.strip():
            return number
    return line_of(text, entry)


def _pip_part(reading: ProjectReading, entry: dict[str, Any], name: str, text: str) -> None:
    for key, lines in entry.items():
        place = FilePlace(file=name, line=line_of(text, f"{key}:"))
        if key != "pip" or not isinstance(lines, list):
            reading.add_unread(place, str(key), "only a list of pip requirements is supported here")
            continue
        scope = requirement_lines.LineScope(above=(name,))
        for line in lines:
            if not isinstance(line, str):
                reading.add_problem(place, "a requirement is not a string", value=str(line)[:60])
                continue
            spot = FilePlace(file=name, line=_line(text, line))
            scope = requirement_lines.read_line(reading, line, spot, scope)


def is_environment(name: str) -> bool:
    """Return whether a file has the name of a Conda environment file."""
    file = name.rpartition("/")[2]
    pattern = r"(conda[-_.])?(env|environment)([-_.][\w-]+)?\.ya?ml|conda\.ya?ml"
    return bool(re.fullmatch(pattern, file))
