"""Reads the matrix of a project, and selects targets."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from imgbuild.errors import InputError, NothingSelected
from imgbuild.lock import published
from imgbuild.matrix.model import Matrix
from imgbuild.matrix.project_paths import CATALOGUE, MATRIX, Project
from imgbuild.matrix.select import Selected, excluded_arches, select_targets
from imgbuild.oci import layout
from imgbuild.oci.layout import Layout
from imgbuild.pipeline.opened import open_project
from imgbuild.show import status
from imgbuild.system.console import console
from imgbuild.values import Arch


class SessionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a session.

    `mirror` is the URL of a mirror, and `mirror_only` disables other servers. The defaults are in
    the settings. `plain_http` lists registries without TLS.
    """

    jobs: int = 1
    offline: bool = False
    verify: bool = False
    mirror: str | None = None
    mirror_only: bool = False
    plain_http: tuple[str, ...] = ()


def select_in_matrix(
    own: Project,
    matrix: Matrix,
    patterns: Sequence[str],
    *,
    everything: bool = False,
    arches: Sequence[Arch] = (),
) -> list[Selected]:
    """Select targets in the matrix of `own`, as `select_targets` does.

    The message of NothingSelected contains the matrix, and the hint contains matching targets of
    the catalogue.
    """
    try:
        return select_targets(matrix, patterns, everything=everything, arches=arches)
    except NothingSelected as error:
        if not own.writable or not patterns:
            raise
        offered = published.load_matrix(CATALOGUE / MATRIX).targets
        for pattern in patterns:
            found = [name for name in offered if fnmatchcase(name, pattern)]
            if found and not any(fnmatchcase(name, pattern) for name in matrix.targets):
                message = f"no target matches {pattern} in {own.matrix}"
                hint = (
                    f"to use {found[0]} of the catalogue, add `--matrix "
                    f"{CATALOGUE / MATRIX}`, or run `imgbuild init --extends {found[0]}` in "
                    "another folder"
                )
                raise NothingSelected(message, hint=hint) from error
        message = f"{error.message} in {own.matrix}"
        raise NothingSelected(message, hint=error.hint) from error


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A project, its matrix, and the options of the command."""

    project: Project
    matrix: Matrix
    options: SessionOptions

    def select_targets(
        self, patterns: Sequence[str], *, everything: bool = False, arches: Sequence[Arch] = ()
    ) -> list[Selected]:
        """Select targets that match the patterns, with their architectures.

        A target that has no lock and needs an index other than the default index is skipped with a
        message, unless it is selected by name. Raises NothingSelected if no target matches.
        """
        chosen = select_in_matrix(
            self.project, self.matrix, patterns, everything=everything, arches=arches
        )
        for line in excluded_arches(self.matrix, patterns, everything=everything, arches=arches):
            console.info(line)
        return status.reachable_targets(self.project, self.matrix, chosen, patterns, console)


def open_session(
    named: Path | None, options: SessionOptions | None = None, names: Sequence[str] = ()
) -> Session:
    """Find and read the matrix.

    If only the catalogue has the targets `names`, the matrix of the catalogue is used, as in
    `open_project`. Raises InputError with all problems in the matrix.
    """
    project = open_project(named, names)
    if project.writable and project.is_half_updated:
        console.warn(
            f"an update of {project.root} was interrupted; to complete it, run: imgbuild update"
        )
    return Session(
        project=project,
        matrix=published.load_matrix(project.matrix),
        options=options or SessionOptions(),
    )


def find_built_layout(session: Session, name: str, folder: Path | None) -> Layout:
    """Return the layout with the image of `name`.

    Raises InputError if the image is not built.
    """
    place = folder or session.project.output(name)
    if not place.exists():
        message = f"{place}: {name} is not built"
        raise InputError(message, hint=f"run imgbuild build {name}")
    return layout.read_layout(place)
