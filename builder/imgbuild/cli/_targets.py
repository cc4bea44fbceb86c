"""Defines groups of options that select one target or several targets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from imgbuild.cli import _options, _selection
from imgbuild.cli._selection import SelectedLock
from imgbuild.cli._verb import TARGETS_PANEL, OptionGroup, option
from imgbuild.errors import InputError
from imgbuild.matrix import project_paths
from imgbuild.matrix.project_paths import Project
from imgbuild.pipeline.opened import open_project
from imgbuild.values import Arch

Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TARGET...",
        help="Targets in the matrix, by name or shell pattern, such as 'cu130-*'.",
        autocompletion=_options.complete_target,
        show_default=False,
    ),
]
OneName = Annotated[
    str | None,
    typer.Argument(
        metavar="TARGET",
        help="A target in the matrix.",
        autocompletion=_options.complete_target,
        show_default=False,
    ),
]
MatrixFile = Annotated[
    Path | None,
    option(
        "--matrix",
        "The matrix file. Default: the nearest matrix.yaml in the current folder or its parents, "
        "else the catalogue installed with imgbuild.",
        metavar="FILE",
        panel=TARGETS_PANEL,
    ),
]


class TargetOptions(OptionGroup, frozen=True, kw_only=True):
    """Options that select targets, for commands whose positional arguments are not targets."""

    target: Annotated[list[str] | None, _options.TARGET("Can be repeated.")] = None
    everything: Annotated[bool, _options.ALL()] = False
    matrix: MatrixFile = None

    @property
    def arches(self) -> list[Arch]:
        """The selected architectures. Empty if all are selected."""
        return []

    @property
    def named_targets(self) -> list[str]:
        """The names in `--target`."""
        return self.target or []

    def project(self, names: Sequence[str] = ()) -> Project:
        """Return the project of the matrix, or the catalogue if only it contains the targets."""
        return open_project(self.matrix, [*names, *self.named_targets])

    def selected_locks(self, project: Project, names: Sequence[str] = ()) -> list[SelectedLock]:
        """Return the locks of selected targets and of `names`, without reading the matrix."""
        return _selection.choose_locks(
            project, [*names, *self.named_targets], everything=self.everything, arches=self.arches
        )


class FilterOptions(TargetOptions, frozen=True, kw_only=True):
    """Options that select targets and architectures."""

    arch: _options.Arches = None

    @property
    def arches(self) -> list[Arch]:
        """The selected architectures. Empty if all are selected."""
        return self.arch or []


class WholeTargets(TargetOptions, frozen=True, kw_only=True):
    """Options that select targets, for a command that uses all architectures."""

    names: Names = None

    @property
    def named_targets(self) -> list[str]:
        """The names in positional arguments and in `--target`."""
        return [*(self.names or []), *(self.target or [])]


class SelectionOptions(FilterOptions, frozen=True, kw_only=True):
    """Options that select targets by name, architecture and matrix."""

    names: Names = None

    @property
    def named_targets(self) -> list[str]:
        """The names in positional arguments and in `--target`."""
        return [*(self.names or []), *(self.target or [])]


class BuildSelection(WholeTargets, frozen=True, kw_only=True):
    """Options that select targets to build. The default is the architecture of this machine."""

    arch: _options.BuildArches = None

    @property
    def arches(self) -> list[Arch]:
        """The selected architectures. Empty if all are selected."""
        return [arch for arch in self.arch or [] if arch != "all"]


class OneTarget(OptionGroup, frozen=True, kw_only=True):
    """Options that select one target."""

    name: OneName = None
    target: Annotated[list[str] | None, _options.TARGET("Can be repeated.")] = None
    matrix: MatrixFile = None

    def split(self, command: Sequence[str] | None) -> tuple[str, tuple[str, ...]]:
        """Split positional arguments into the name of the target and the words of the command.

        With `--target`, all arguments belong to the command. Without a target, the name is "",
        which selects the only target of a user's project.
        """
        words = tuple(command or ())
        if self.target:
            if len(self.target) > 1:
                message = f"only one target can be specified, not {' and '.join(self.target)}"
                raise InputError(message, hint="specify one target")
            name, words = self.target[0], (*((self.name,) if self.name else ()), *words)
        elif self.name:
            name = self.name
        elif project_paths.find_project(self.matrix).writable:
            name = ""
        else:
            message = "Missing argument 'TARGET'"
            raise InputError(message, hint="specify a target; to list targets, run: imgbuild list")
        return name, words[1:] if words[:1] == ("--",) else words

    def project(self, name: str = "") -> Project:
        """Return the project of the matrix, or the catalogue if only it contains target `name`."""
        return open_project(self.matrix, [name] if name else [])
