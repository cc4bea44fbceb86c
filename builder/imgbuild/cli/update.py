"""`imgbuild update`: newer versions of a matrix's packages, tried and written as new rows."""

from __future__ import annotations

from typing import Annotated

from imgbuild.cli._help import command
from imgbuild.cli._options import DRY_RUN, Jobs, processes
from imgbuild.cli._targets import WholeTargets
from imgbuild.cli._update_matrix import UpdateOptions, update_matrix
from imgbuild.cli._verb import verb
from imgbuild.errors import InputError
from imgbuild.lock.published import Extended
from imgbuild.pipeline.session import Options, Session, open_session


@verb
def update(
    selection: WholeTargets,
    chosen: UpdateOptions,
    dry_run: Annotated[bool, DRY_RUN()] = False,
    jobs: Jobs = 0,
) -> None:
    """Try newer versions of pinned packages, and write what works as rows.

    Each newer version of a package that a row pins is solved, audited and locked in a temporary
    folder, on all architectures of the row. What works becomes one new row of matrix.yaml, with
    lock, digests and Dockerfile; the row that it is made of stays as it is. What does not is listed
    with reasons in images/updates.json, and tried again when what caused it has changed. No image
    is built or tested.

    Default: the recommended targets. A target that was updated before is updated from the newest
    row that was made of it.

    Exit status 1 or that of the error if a version could not be tried, such as 7 without a network.

    Examples:

        imgbuild update --dry-run

        imgbuild update cu130-trl --no-cool-down

        imgbuild update --axis vllm --axis torch --pull-request build/update.md
    """
    session = open_session(selection.matrix, Options(jobs=processes(jobs)))
    if isinstance(session.matrix, Extended):
        _update_project(session)
    else:
        update_matrix(session, selection, chosen, dry_run=dry_run)


def _update_project(session: Session) -> None:
    """The form for the matrix of a project, whose rows extend published targets."""
    message = f"{session.project.matrix}: its rows extend published targets, or are like them"
    hint = "imgbuild init --refresh copies the newest lock of a published target"
    raise InputError(message, hint=hint)


COMMAND = command(update)
