"""Finds the project of a command, and reports if it is the catalogue of imgbuild."""

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
    """The project of `matrix`, see `project_paths.find`; with -v it reports the catalogue.

    If a user's project has none of the targets `names` (or patterns), it is the catalogue, if that
    has all of them and `matrix` is not a file.
    """
    opened_project = project_paths.find(matrix)
    if matrix is None and names and opened_project.writable:
        opened_project = _project_with_targets(opened_project, names)
    if not opened_project.writable:
        _report(opened_project.root)
    return opened_project


def _project_with_targets(project: Project, names: Sequence[str]) -> Project:
    """The catalogue if `project` has none of `names` and the catalogue has all of them."""
    catalogue = project_paths.catalogue()
    offered = catalogue.locked_targets()
    if not all(fnmatch.filter(offered, name) for name in names):
        return project
    local = project.locked_targets()
    if any(fnmatch.filter(local, name) for name in names):
        return project
    if any(fnmatch.filter(targets(project), name) for name in names):
        return project
    return catalogue


def targets(project: Project) -> list[str]:
    """The targets of a project's matrix, locked or not."""
    from imgbuild.lock import published  # reads YAML, which most commands do not need

    return list(published.load(project.matrix).targets)


def report_templates(project: Project) -> None:
    """Report templates of the project that replace imgbuild's, for commands that render them."""
    names = templates.project_templates(project.images)
    if names:
        folder = project.images / templates.FOLDER
        console.info(f"using templates of this project: {', '.join(names)} in {folder}")


@functools.cache
def _report(folder: Path) -> None:
    """Print the place of the catalogue, once in a process."""
    console.detail(f"targets from the catalogue of imgbuild {__version__}: {folder}")
