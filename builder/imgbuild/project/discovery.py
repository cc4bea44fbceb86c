"""Selects the files to read if several files declare requirements."""

# A separate module: the policy.
from __future__ import annotations

from collections.abc import Iterable

import msgspec

from imgbuild.project import (
    agreement,
    conda,
    dockerfile,
    kinds,
    local_package,
    notebook,
    poetry,
    pyproject,
    submodules,
)
from imgbuild.project.kinds import FOREIGN_FILES, is_requirements, reason_to_skip
from imgbuild.project.model import DeclaredRequirement, FilePlace
from imgbuild.project.reading import ProjectReading
from imgbuild.project.uv_settings import DEVELOPMENT
from imgbuild.system.amounts import join_first

INSTALLED_REASON = "only the Dockerfile installs it; add the package if it is needed"
NAME_REMEDY = "to read it, pass it with --from"
SHOWN_FILES = 3  # contradictions in a reason
FOLDERS = 40  # of the project that are searched for other projects
OTHER_FOLDERS = ("requirements", "docs", "doc")  # which are no projects
DOCKER_FOLDERS = ("docker", "dockerfile", "dockerfiles", "Docker", ".devcontainer", "containers",
                  "container")  # fmt: skip
ENGINES = ("torch", "vllm", "sglang")  # which a project gets from the base of its Dockerfile
SCRIPT_FOLDERS = ("scripts", "script", "setup", "install", "installation", "env", "tools", "docker")
SCRIPT_WORDS = frozenset(["install", "installation", "setup", "env", "environment", "requirements",
                          "deps", "dependencies"])  # fmt: skip
MAIN_FILES = ("requirements.txt", "base.txt", "common.txt", "core.txt", "main.txt", "default.txt",
        "framework.txt", "train.txt", "training.txt", "cuda.txt", "gpu.txt")  # fmt: skip


def read_project(reading: ProjectReading) -> None:
    """Read the files in the root folder of the project."""
    names = [name for name in reading.sources.names() if reading.sources.exists(name)]
    for name in (".python-version", "runtime.txt", "apt.txt"):
        if name in names:
            _read_file(reading, name)
    _metadata(reading, names)
    _requirements(reading, names)
    for name in names:
        if conda.is_environment(name):
            _read_consistent(reading, name)
        elif name in FOREIGN_FILES:
            reading.add_unread(FilePlace(file=name), name, FOREIGN_FILES[name])
    _dockerfiles(reading, names)
    _notebooks(reading, names)
    _scripts(reading, names)
    _projects(reading)
    reading.left_out += submodules.missing_submodules(reading.sources)


def _read_file(reading: ProjectReading, name: str) -> None:
    kind = kinds.file_kind(name)
    if kind is not None:
        kind.read(reading, name)


def _declares_requirements(reading: ProjectReading) -> bool:
    return bool(reading.local_requests) or any(
        each.kind == "requirement" for each in reading.requirements
    )


def _metadata(reading: ProjectReading, names: list[str]) -> None:
    document = reading.read_toml("pyproject.toml") if "pyproject.toml" in names else None
    standard = document is not None and (
        isinstance(document.get("project"), dict)
        or bool(poetry.poetry_table(document))
        or "dependency-groups" in document
    )
    if document is not None:
        pyproject.read_file(reading, "pyproject.toml")
        local_package.add_dynamic(reading, ".", document)
    if not standard and {"setup.py", "setup.cfg"} & set(names):
        kinds.read_setup(reading, "setup.py")
    local_package.add_package_metadata(reading, ".")
    locks = [name for name in kinds.LOCKS if name in names]
    if document is not None and poetry.poetry_table(document):
        locks.sort(key=lambda name: name != "poetry.lock")
    others = [
        n for n in names if n not in locks and n.startswith("pylock.") and n.endswith(".toml")
    ]
    for name in (*locks[1:], *others):
        reading.add_unread(FilePlace(file=name), name, f"another lock; {NAME_REMEDY}")
    if locks:
        _read_consistent(reading, locks[0], lock=True)


def _read_consistent(reading: ProjectReading, name: str, *, lock: bool = False) -> None:
    """Read a file, or skip it if it contradicts the files read before.

    A file that pins all requirements counts as a lock.
    """
    child = reading.create_child()
    _read_file(child, name)
    pairs = list(agreement.find_contradictions(reading.requirements, child.requirements))
    if pairs:
        texts = [
            f"{other.text} ({other.place}) against {declared.text} ({declared.place})"
            for declared, other in pairs
        ]
        reason = f"contradicts other files of the project: {join_first(texts, SHOWN_FILES, '; ')}"
        reading.add_unread(FilePlace(file=name), name, reason)
        return
    if not lock and _declares_requirements(reading) and agreement.is_lock(child.requirements):
        child.requirements = [
            msgspec.structs.replace(each, locked=each.kind == "requirement")
            for each in child.requirements
        ]
    reading.merge_child(child)


def _requirements(reading: ProjectReading, names: list[str]) -> None:
    files = [name for name in names if is_requirements(name)]
    inner = [f"requirements/{name}" for name in reading.sources.names("requirements")]
    inner = [name for name in inner if name.endswith((".txt", ".in", ".pip"))]
    main = _main_file(reading, files, inner)
    if main and main not in reading.files:  # as the dependencies of the package
        _read_consistent(reading, main)
    for name in names:
        if name.lower().startswith("constraint") and name.endswith(".txt"):
            _read_file(reading, name)
    for name in (*files, *inner):
        if name not in reading.files and name != main:
            compiled = name.endswith(".in") and f"{name[:-3]}.txt" in reading.files
            reason = (
                ("the lock compiled from this file is read instead")
                if compiled
                else reason_to_skip(name)
            )
            reading.add_unread(
                FilePlace(file=name),
                name,
                reason or f"may be an alternative or an addition; {NAME_REMEDY}",
            )


def _main_file(reading: ProjectReading, files: list[str], inner: list[str]) -> str:
    if "requirements.txt" in files:
        return "requirements.txt"
    if "requirements.in" in files:
        return "requirements.in"
    if _declares_requirements(reading):
        return ""
    plain = [name for name in files if not reason_to_skip(name)]
    if len(plain) == 1:
        return plain[0]
    for name in MAIN_FILES:
        if f"requirements/{name}" in inner:
            return f"requirements/{name}"
    return ""


def _dockerfiles(reading: ProjectReading, names: list[str]) -> None:
    """Read the Debian packages in a Dockerfile, and pip commands if no file has requirements."""
    at_root = [name for name in names if dockerfile.is_dockerfile(name)]
    below = [
        file
        for folder in DOCKER_FOLDERS
        for file in _files(reading, folder, 2)
        if dockerfile.is_dockerfile(file)
    ]
    usual = [name for name in at_root if name in ("Dockerfile", "Containerfile")]
    usual += [name for name in below if name.endswith(("/Dockerfile", "/Containerfile"))
              and not kinds.name_parts(name.replace("/", "-") + ".x") & kinds.HARDWARE]  # fmt: skip
    plain = [
        name for name in (*at_root, *below) if name not in usual and not reason_to_skip(f"{name}.x")
    ]
    candidates = usual or (plain if len(plain) == 1 else [])
    for name in (*at_root, *below):
        if candidates and name == candidates[0]:
            read_dockerfile(reading, name)
        else:
            reading.add_unread(FilePlace(file=name), name, f"another Dockerfile; {NAME_REMEDY}")


def _files(reading: ProjectReading, folder: str, levels: int) -> Iterable[str]:
    for name in reading.sources.names(folder):
        path = f"{folder}/{name}"
        if reading.sources.exists(path):
            yield path
        elif levels > 1:
            yield from _files(reading, path, levels - 1)


def read_dockerfile(reading: ProjectReading, name: str) -> None:
    """Read Debian packages, bounds and base versions from a Dockerfile.

    All other files must have been read before. If none of them declares requirements, the packages
    that the Dockerfile installs are requirements.
    """
    child = reading.create_child()
    child.files = list(reading.files)
    dockerfile.read_file(child, name)
    if not _declares_requirements(reading):
        reading.merge_child(child)
        return
    base = _add_base_versions(reading, child)
    _note_missing(reading, child, name)
    for request in child.local_requests:
        if request.extras:
            text = f"{request.folder}[{','.join(request.extras)}]"
            options = " ".join(f"--extra {extra}" for extra in request.extras)
            reading.add_unread(request.place, text, f"extras are chosen with {options}")
    for repository in child.unnamed:
        reading.add_unread(repository.place, repository.name, INSTALLED_REASON)
    child.unnamed = []
    bounds = [each for each in child.requirements if each.kind == "constraint"]
    child.requirements = [*base, *bounds]
    child.local_requests = []
    if reading.pythons:
        child.pythons = []
    child.files = [name]
    reading.merge_child(child)


def _add_base_versions(reading: ProjectReading, child: ProjectReading) -> list[DeclaredRequirement]:
    """Add versions in the tag of the base image, for packages that no other file requires."""
    images = {each.place for each in child.images}
    named = {each.package for each in reading.requirements if each.kind == "requirement"}
    base = [
        each
        for each in child.requirements
        if each.place in images and each.package in ENGINES and each.package not in named
    ]
    child.requirements = [each for each in child.requirements if each not in base]
    return base


def _note_missing(reading: ProjectReading, child: ProjectReading, name: str) -> None:
    by_file: dict[str, list[str]] = {}
    for each in agreement.missing_requirements(child.requirements, reading.requirements):
        if each.place.file == name:
            reading.add_unread(each.place, each.text, INSTALLED_REASON)
        elif each.kind == "requirement":
            by_file.setdefault(each.place.file, []).append(each.package)
    for file, packages in by_file.items():
        reason = (
            f"installed by {name}; no other file requires {join_first(packages, SHOWN_FILES)};"
            f" {NAME_REMEDY}"
        )
        reading.add_unread(FilePlace(file=file), f"-r {file}", reason)


def _notebooks(reading: ProjectReading, names: list[str]) -> None:
    """Read the notebook that installs packages, if no other file declares packages."""
    notebooks = [name for name in names if name.endswith(".ipynb")]
    notebooks += [name for folder in ("notebooks", "nb") for name in _files(reading, folder, 1)
                  if name.endswith(".ipynb")]  # fmt: skip
    declares = _declares_requirements(reading)
    children = []
    for name in notebooks[:FOLDERS]:
        child = reading.create_child()
        if declares:
            child.problems = []  # of a file that is not used
        notebook.read_file(child, name)
        if declares:
            _note_notebook(reading, child, name)
        elif child.requirements or child.local_requests or child.debian:
            children.append((name, child))
    if len(children) == 1:
        reading.merge_child(children[0][1])
        return
    for name, _ in children:
        reading.add_unread(FilePlace(file=name), name, f"one of several notebooks; {NAME_REMEDY}")


def _note_notebook(reading: ProjectReading, child: ProjectReading, name: str) -> None:
    missing = agreement.missing_requirements(child.requirements, reading.requirements)
    debian = {each.name for each in reading.debian}
    names = [each.package for each in missing if each.kind == "requirement"]
    names += [each.name for each in child.debian if each.name not in debian]
    if names:
        reason = (
            f"installs {join_first(names, SHOWN_FILES)}, which no other file requires;"
            f" {NAME_REMEDY}"
        )
        reading.add_unread(FilePlace(file=name), name, reason)


def _scripts(reading: ProjectReading, names: list[str]) -> None:
    scripts = [name for name in names if _is_script(name)]
    scripts += [
        name for folder in SCRIPT_FOLDERS for name in _files(reading, folder, 1) if _is_script(name)
    ][:FOLDERS]
    if _declares_requirements(reading):
        for name in scripts:
            if name.endswith(".sh"):
                reading.add_unread(FilePlace(file=name), name, f"a script; {NAME_REMEDY}")
        return
    children = []
    for name in scripts:
        child = reading.create_child()
        _read_file(child, name)
        if child.requirements or child.local_requests:
            children.append((name, child))
    if len(children) == 1:
        reading.merge_child(children[0][1])
        return
    for name, _ in children:
        reading.add_unread(FilePlace(file=name), name, f"one of several scripts; {NAME_REMEDY}")


def _is_script(name: str) -> bool:
    words = kinds.name_parts(name)
    by_name = name.endswith((".sh", ".bash")) and bool(words & SCRIPT_WORDS)
    return (by_name or kinds.is_makefile(name)) and not words & (kinds.HARDWARE | DEVELOPMENT)


def _projects(reading: ProjectReading) -> None:
    """Record folders with separate projects that this project does not require.

    If there is only one such folder, and no file declares requirements, the folder is read.
    """
    required = {request.folder for request in reading.local_requests}
    folders = [name for name in reading.sources.names() if not name.startswith(".")]
    projects: dict[str, list[str]] = {}
    for folder in folders[: FOLDERS * 5]:
        if folder in required or folder in OTHER_FOLDERS or not reading.sources.is_folder(folder):
            continue
        environments = filter(conda.is_environment, reading.sources.names(folder))
        files = ("pyproject.toml", "setup.py", "requirements.txt", *environments)
        paths = [f"{folder}/{file}" for file in files]
        unread = [name for name in paths if reading.sources.exists(name)]
        unread = [name for name in unread if name not in reading.files]
        if unread:
            projects[folder] = unread
    inside = [name for name in projects if reading.sources.is_inside(name)]
    if len(projects) == len(inside) == 1 and not _declares_requirements(reading):
        for path in projects[inside[0]]:
            if path not in reading.files:
                _read_consistent(reading, path)
        return
    for paths in projects.values():
        reading.add_unread(FilePlace(file=paths[0]), paths[0], f"a separate project; {NAME_REMEDY}")
