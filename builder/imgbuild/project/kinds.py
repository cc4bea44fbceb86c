"""Selects the reader of a file by the file name."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import msgspec

from imgbuild.project import (
    conda,
    dockerfile,
    local_package,
    notebook,
    poetry,
    poetry_lock,
    pylock,
    pyproject,
    requirement_lines,
    uv_lock,
)
from imgbuild.project.commands import ShellScript, keep_last
from imgbuild.project.model import FilePlace, RequirementKind
from imgbuild.project.project_files import parent_folder, relative_path
from imgbuild.project.reading import ProjectReading
from imgbuild.project.requirement_lines import LineScope
from imgbuild.project.uv_settings import DEVELOPMENT, UvSettings
from imgbuild.values import normalize_package

# Parts of names of files with packages for other hardware than NVIDIA's.
HARDWARE = frozenset([
    "npu", "ascend", "rocm", "amd", "hip", "cpu", "macos", "mac", "osx", "darwin", "mps",
    "mlx", "apple", "windows", "win", "xpu", "intel", "hpu", "gaudi", "tpu", "neuron", "musa",
    "mlu", "maca", "metax", "ppu", "dcu",
])  # fmt: skip
LOCKS = ("uv.lock", "pylock.toml", "poetry.lock")
# Files of other tools that declare requirements and are not read.
FOREIGN_FILES = {
    "Pipfile": "pipenv files are not supported; list the packages in a requirements file",
    "Pipfile.lock": "pipenv files are not supported; `pipenv requirements` writes a requirements"
    " file",
    "pdm.lock": "PDM lock files are not supported; `pdm export` writes a requirements file",
    "pixi.toml": "pixi files are not supported",
    "pixi.lock": "pixi files are not supported",
    "conda-lock.yml": "conda lock files are not supported; use environment.yml",
    "WORKSPACE": "Bazel files are not supported",
    "flake.nix": "Nix files are not supported",
}


class FileKind(msgspec.Struct, frozen=True):
    """A type of file, with a name for messages and the function that reads such files."""

    name: str
    read: Callable[[ProjectReading, str], None]


def file_kind(name: str) -> FileKind | None:
    """Return the type of the file `name`, or None if no reader supports it."""
    file = name.rpartition("/")[2]
    exact = {
        "pyproject.toml": FileKind("pyproject.toml", read_pyproject),
        "uv.lock": FileKind("a uv lock file", read_uv_lock),
        "poetry.lock": FileKind("a Poetry lock file", read_poetry_lock),
        "setup.py": FileKind("a setup script", read_setup),
        "setup.cfg": FileKind("a setup script", read_setup),
        "apt.txt": FileKind("Debian packages", read_apt),
        "packages.txt": FileKind("Debian packages", read_apt),
        ".python-version": FileKind("a Python version", read_python_version),
        "runtime.txt": FileKind("a Python version", read_python_version),
    }
    if file in exact:
        return exact[file]
    by_form = (
        (
            bool(re.fullmatch(r"pylock(\.[\w-]+)?\.toml", file)),
            "a PEP 751 lock file",
            pylock.read_file,
        ),
        (dockerfile.is_dockerfile(name), "a Dockerfile", dockerfile.read_file),
        (file.endswith(".ipynb"), "a notebook", notebook.read_file),
        (file.endswith((".txt", ".in", ".pip")), "requirements", read_requirements),
        (file.endswith((".yml", ".yaml")), "a conda environment", conda.read_file),
        (file.endswith((".sh", ".bash")), "a script", read_script),
        (is_makefile(file), "a Makefile", read_makefile),
    )
    return next((FileKind(label, reader) for fits, label, reader in by_form if fits), None)


def read_requirements(reading: ProjectReading, name: str) -> None:
    """Read a file of requirements, constraints or overrides, depending on its name."""
    file = name.rpartition("/")[2].lower()
    kind: RequirementKind = "override" if "override" in file else "requirement"
    kind = "constraint" if "constraint" in file else kind
    requirement_lines.read_file(reading, name, LineScope(kind=kind))


def read_pyproject(reading: ProjectReading, name: str) -> None:
    """Read the requirements and package metadata in a pyproject.toml."""
    pyproject.read_file(reading, name)
    local_package.add_package_metadata(reading, parent_folder(name))


def read_setup(reading: ProjectReading, name: str) -> None:
    """Read the setup.cfg and setup.py in a folder."""
    legacy = local_package.read_legacy(reading, parent_folder(name))
    if legacy is None:
        return
    if legacy.requires_python:
        reading.add_python(legacy.requires_python, FilePlace(file=legacy.file))
    extras = {normalize_package(extra) for extra in reading.extras} & set(legacy.extras)
    local_package.add_legacy(reading, legacy, sorted(extras))
    local_package.add_package_metadata(reading, parent_folder(name))


def read_uv_lock(reading: ProjectReading, name: str) -> None:
    """Read a uv.lock for the chosen extras and groups of the pyproject.toml in its folder."""
    file = relative_path(parent_folder(name), "pyproject.toml")
    document = reading.read_toml(file) if reading.sources.exists(file) else None
    if document is None:
        reading.add_problem(FilePlace(file=name), "a uv lock file is read with its pyproject.toml",
                        expected=file)  # fmt: skip
        return
    tables = pyproject.ProjectTables(reading, file, document)
    settings = UvSettings(reading, file, document)
    probe = reading.create_child()
    probe.problems = []
    probe.conflicts = settings.conflict_sets(tables.name)
    extras, groups = pyproject.chosen_extras_and_groups(probe, tables, settings)
    uv_lock.read_file(reading, name, file, extras=extras, groups=groups)


def read_poetry_lock(reading: ProjectReading, name: str) -> None:
    """Read a poetry.lock for the chosen extras and groups of the pyproject.toml in its folder."""
    file = relative_path(parent_folder(name), "pyproject.toml")
    document = reading.read_toml(file) if reading.sources.exists(file) else None
    if document is None:
        reading.add_problem(
            FilePlace(file=name),
            "a Poetry lock file is read with its pyproject.toml",
            expected=file,
        )
        return
    poetry_lock.read_file(reading, name, _poetry_roots(reading, file, document))


def _poetry_roots(reading: ProjectReading, file: str, document: dict[str, Any]) -> list[str]:
    """Return the packages ("NAME[EXTRA,…]") that the chosen groups and extras require."""
    probe = reading.create_child()
    probe.problems = []
    project = document.get("project")
    if isinstance(project, dict):
        pyproject.read_file(probe, file)
    else:
        poetry.read_poetry(probe, file, document, take=True)
    names = [
        f"{each.parsed_requirement.name}[{','.join(sorted(each.parsed_requirement.extras))}]"
        for each in probe.requirements
    ]
    return [*names, *(request.name for request in probe.local_requests if request.name)]


def read_apt(reading: ProjectReading, name: str) -> None:
    """Read a list of Debian packages, with one or more packages on each line."""
    text = reading.text(name)
    for number, line in enumerate((text or "").split("\n"), start=1):
        for word in line.partition("#")[0].split():
            reading.debian_package(word, FilePlace(file=name, line=number))


def read_python_version(reading: ProjectReading, name: str) -> None:
    """Read the first version in a `.python-version` file (pyenv and uv) or a `runtime.txt`.

    The patch number is ignored, because images have the newest patch release of each minor version.
    """
    text = reading.text(name)
    for number, line in enumerate((text or "").split("\n"), start=1):
        word = line.partition("#")[0].strip()
        if not word:
            continue
        place = FilePlace(file=name, line=number)
        match = re.fullmatch(r"(?:c?python[-@]?)?(3\.\d+)(?:\.\d+)?(?:[abrc]+\d+|-dev)?", word)
        if match:
            reading.add_python(f"=={match[1]}.*", place)
        else:
            reading.add_unread(place, word, "not a Python version")
        return


def read_script(reading: ProjectReading, name: str) -> None:
    """Read the commands in a shell script that install packages."""
    text = reading.text(name)
    if text is not None:
        _read_commands(reading, name, text.split("\n"))


def read_makefile(reading: ProjectReading, name: str) -> None:
    """Read the recipes in a Makefile that install packages. Variables are not expanded."""
    text = reading.text(name)
    if text is None:
        return
    recipes = [
        line.lstrip("\t @-+") if line.startswith("\t") or before.endswith("\\") else ""
        for before, line in itertools.pairwise(("", *text.split("\n")))
    ]
    _read_commands(reading, name, recipes)


def is_makefile(name: str) -> bool:
    """Return whether a file has the name of a Makefile."""
    return name.rpartition("/")[2] in ("Makefile", "makefile", "GNUmakefile")


def _read_commands(reading: ProjectReading, name: str, lines: list[str]) -> None:
    script = ShellScript(reading, name, variables={})
    start = 0
    while start < len(lines):
        end = start
        while lines[end].rstrip().endswith("\\") and end + 1 < len(lines):
            end += 1
        script.run("\n".join(lines[start : end + 1]), start + 1, end + 1)
        start = end + 1
    keep_last(reading, name)


def name_parts(name: str) -> set[str]:
    """Return the words in a file name: "requirements" and "npu" for `requirements-npu.txt`."""
    stem = name.rpartition("/")[2].rpartition(".")[0]
    return set(re.split(r"[-_. ]+", stem.lower()))


def reason_to_skip(name: str) -> str:
    """Return why a requirements file is not read by default, or "" if it is read."""
    words = name_parts(name)
    if words & (DEVELOPMENT | {"build", "release", "benchmark", "benchmarks"}):
        return "packages for development; to read the file, pass it with --from"
    if words & HARDWARE:
        return "packages for other hardware; to read the file, pass it with --from"
    return ""


def is_requirements(name: str) -> bool:
    """Return whether a file has the name of a requirements file."""
    file = name.rpartition("/")[2].lower()
    return bool(re.fullmatch(r"(.*[-_.])?(requirements?|reqs?)([-_.].*)?\.(txt|in|pip)", file))
