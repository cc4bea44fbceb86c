"""Opens the project of a verb, or the catalogue; names the templates that it replaces."""

from __future__ import annotations

import functools
from pathlib import Path

from imgbuild import __version__, project_paths
from imgbuild.project_paths import Project
from imgbuild.render import templates
from imgbuild.system.console import console


def open_project(matrix: Path | None) -> Project:
    """The project of `matrix`, see `project_paths.find`; with -v it says which catalogue."""
    opened_project = project_paths.find(matrix)
    if not opened_project.writable:
        _report(opened_project.root)
    return opened_project


def report_templates(project: Project) -> None:
    """Name the templates of the project that replace imgbuild's, for verbs that render them."""
    names = templates.project_templates(project.images)
    if names:
        folder = project.images / templates.FOLDER
        console.info(f"templates of this project are used: {', '.join(names)} in {folder}")


@functools.cache
def _report(folder: Path) -> None:
    """Print the place of the catalogue, once in a process."""
    console.detail(f"targets from the catalogue of imgbuild {__version__}: {folder}")
