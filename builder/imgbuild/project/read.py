"""Reads the declarations in files of a project, by default in its root folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from imgbuild.errors import InputError
from imgbuild.project import discovery, dockerfile, kinds, local_package, pyproject
from imgbuild.project.model import Declarations, FilePlace
from imgbuild.project.project_files import ProjectFiles, relative_path
from imgbuild.project.reading import NO_NAMES, LocalRequest, ProjectReading

PACKAGES = 100  # local packages that require each other


def read_declared(
    folder: Path,
    files: Sequence[str] = (),
    *,
    extras: Sequence[str] = (),
    groups: Sequence[str] = (),
    names: Mapping[str, str] = NO_NAMES,
) -> Declarations:
    """Read the declarations of the project in `folder` for `extras` and dependency `groups`.

    `files` are paths relative to `folder`, by default the files directly in it. Files included with
    `-r` are also read. A folder in `files` is a package of the project. `names` maps URLs of git
    repositories without a revision to packages. Raises InputError with all problems if a file is
    invalid.
    """
    if not folder.is_dir():
        message = f"{folder} is not a folder"
        raise InputError(message, hint="pass the folder of a project")
    reading = ProjectReading(ProjectFiles(folder), extras=extras, groups=groups, names=names)
    if files:
        _read_named_files(reading, files)
    else:
        discovery.read_project(reading)
    _local_packages(reading)
    pyproject.check_choice(reading)
    if reading.problems:
        raise _error(folder, reading)
    return reading.create_declared()


def _read_named_files(reading: ProjectReading, files: Sequence[str]) -> None:
    names = [relative_path(".", name) for name in files]
    for name in sorted(names, key=dockerfile.is_dockerfile):
        place = FilePlace(file=name)
        if name.startswith(("/", "..")) or not reading.sources.is_inside(name):
            reading.add_problem(place, "is outside the project", expected="a file of the project")
        elif reading.sources.is_folder(name):
            reading.request_local(
                LocalRequest(folder=name, place=place, extras=tuple(reading.extras))
            )
        elif not reading.sources.exists(name):
            reading.add_problem(place, reading.sources.absence_reason(name))
        elif (kind := kinds.file_kind(name)) is None:
            expected = "a requirements file, pyproject.toml, a lock, setup.py, environment.yml, …"
            reading.add_problem(place, "this kind of file is not supported", expected=expected)
        elif dockerfile.is_dockerfile(name):
            discovery.read_dockerfile(reading, name)
        else:
            kind.read(reading, name)


def _local_packages(reading: ProjectReading) -> None:
    done = 0
    while done < min(len(reading.local_requests), PACKAGES):
        local_package.add_local_package(reading, reading.local_requests[done])
        done += 1


def _error(folder: Path, reading: ProjectReading) -> InputError:
    problems = tuple(dict.fromkeys(reading.problems))
    lines = "".join(f"\n  {problem}" for problem in problems)
    count = f"{len(problems)} problems" if len(problems) > 1 else "1 problem"
    return InputError(
        f"{count} in the files of {folder}:{lines}",
        problems=problems,
        hint="correct them, or select the files to read with --from",
    )
