"""Finds the project of a command, and prints a message if the catalogue is used instead."""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Sequence
from pathlib import Path

from imgbuild import __version__
from imgbuild.matrix import project_paths
from imgbuild.matrix.project_paths import Project
from imgbuild.render import templates
from imgbuild.system.console import console


def open_project(matrix: Path | None, names: Sequence[str] = ()) -> Project:
    """Find the project of `matrix` as `find_project` does, or return the catalogue.

    The catalogue is used if `matrix` is not a file, the project has none of the targets `names` (or
    patterns), and the catalogue has all of these targets. With -v, the folder of the catalogue is
    printed.
    """
    opened_project = project_paths.find_project(matrix)
    if matrix is None and names and opened_project.writable:
        opened_project = _project_with_targets(opened_project, names)
    if not opened_project.writable:
        _report_catalogue_once(opened_project.root)
    return opened_project


def _project_with_targets(project: Project, names: Sequence[str]) -> Project:
    catalogue = project_paths.catalogue_project()
    offered = catalogue.locked_targets()
    if not all(fnmatch.filter(offered, name) for name in names):
        return project
    local = project.locked_targets()
    if any(fnmatch.filter(local, name) for name in names):
        return project
    if any(fnmatch.filter(matrix_targets(project), name) for name in names):
        return project
    return catalogue


def matrix_targets(project: Project) -> list[str]:
    """Return the targets of a project's matrix, including targets without a lock."""
    from imgbuild.lock import published  # reads YAML, which most commands do not need

    return list(published.load_matrix(project.matrix).targets)


def report_templates(project: Project) -> None:
    """Print the project's templates that replace templates of imgbuild."""
    names = templates.project_templates(project.images)
    if names:
        folder = project.images / templates.FOLDER
        console.info(f"using the project's templates in {folder}: {', '.join(names)}")


@functools.cache
def _report_catalogue_once(folder: Path) -> None:
    console.detail(f"using targets of the catalogue of imgbuild {__version__} in {folder}")
