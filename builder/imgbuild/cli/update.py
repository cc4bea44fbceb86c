"""`imgbuild update`: moves a project to newer versions, or tries newer versions for a matrix."""

from __future__ import annotations

from typing import Annotated

from imgbuild.cli._help import command
from imgbuild.cli._options import DRY_RUN, Jobs, processes
from imgbuild.cli._targets import WholeTargets
from imgbuild.cli._update_matrix import UpdateOptions, update_matrix
from imgbuild.cli._update_project import MoveOptions, update_project
from imgbuild.cli._verb import verb
from imgbuild.errors import InputError
from imgbuild.lock import published
from imgbuild.pipeline.opened import open_project
from imgbuild.pipeline.session import Options, open_session


@verb
def update(
    selection: WholeTargets,
    chosen: UpdateOptions,
    move: MoveOptions,
    dry_run: Annotated[bool, DRY_RUN()] = False,
    jobs: Jobs = 0,
) -> None:
    """Move a project to newer versions, or try newer versions in a matrix.

    In a project, its rows are moved to the latest lock of the published target that they use, or
    with --to, to another target. First, the changes are printed: versions, bytes to pull, and what
    the new packages break in the project's code. Then matrix.yaml (its comments are kept), the
    copied target and a new lock are written. If the update is interrupted, the next one completes
    it. If requirements of the project exclude the target, all of them are listed, and nothing is
    written.

    In a matrix with bases and pins, each newer version of a pinned package is solved, audited and
    locked in a temporary folder, for all architectures of the row. Versions that work become one
    new row of matrix.yaml, with lock, digests and Dockerfile; the original row does not change.
    Versions that do not work are recorded with the reasons in images/updates.json, and are tried
    again when the cause has changed. No image is built or tested. By default, the recommended
    targets are updated, each from the newest row that was derived from it. If a version could not
    be tried, the exit status is 1 or that of the error, such as 7 without a network.

    Examples:

        imgbuild update --dry-run

        imgbuild update --to cu130-vllm0.33.0

        imgbuild update cu130-trl --no-cool-down

        imgbuild update --axis vllm --axis torch --pull-request build/update.md
    """
    options = Options(jobs=processes(jobs))
    project = open_project(selection.matrix)
    if project.writable and published.is_extension(project.matrix):
        _refuse(chosen.given, f"the rows of {project.matrix} use published targets")
        update_project(project, selection.named, move, options, dry_run=dry_run)
        return
    _refuse(move.given, f"{project.matrix} is not the matrix of a project")
    update_matrix(open_session(selection.matrix, options), selection, chosen, dry_run=dry_run)


def _refuse(given: tuple[str, ...], reason: str) -> None:
    """InputError for options of the other form."""
    if given:
        message = f"{', '.join(given)}: {reason}"
        raise InputError(message, hint="omit it; `imgbuild help update` describes both forms")


COMMAND = command(update)
