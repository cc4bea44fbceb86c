"""`imgbuild update`: a project moved to newer versions."""

from __future__ import annotations

from typing import Annotated

from imgbuild.cli._help import command
from imgbuild.cli._options import DRY_RUN, Jobs, Offline, processes
from imgbuild.cli._targets import WholeTargets
from imgbuild.cli._update_project import MoveOptions, update_project
from imgbuild.cli._verb import verb
from imgbuild.errors import InputError
from imgbuild.lock import published
from imgbuild.pipeline.opened import open_project
from imgbuild.pipeline.session import Options


@verb
def update(
    selection: WholeTargets,
    move: MoveOptions,
    dry_run: Annotated[bool, DRY_RUN()] = False,
    jobs: Jobs = 0,
    offline: Offline = False,
) -> None:
    """Move a project to newer versions.

    A project's rows move to the newest lock of the published target that they are on, or to another
    target. First the difference is printed: versions, bytes to pull, and what the new packages
    break in the project's code. Then matrix.yaml, whose comments stay, the copied target and a new
    lock are written, all or none; the next update finishes one that was interrupted. If
    requirements of the project exclude the target, all of them are listed, and nothing is written.

    Examples:

        imgbuild update

        imgbuild update --to cu130-vllm --dry-run

        imgbuild update my-image --to cu130-vllm --packages
    """
    project = open_project(selection.matrix)
    if not project.writable or not published.is_extension(project.matrix):
        message = f"{project.matrix} is not the matrix of a project"
        raise InputError(message, hint="imgbuild init starts a project; imgbuild lock locks a row")
    names = selection.named
    options = Options(jobs=processes(jobs), offline=offline)
    update_project(project, names, move, options, dry_run=dry_run)


COMMAND = command(update)
