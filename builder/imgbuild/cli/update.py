"""Implements `imgbuild update`, which updates a project or a matrix to newer versions."""

from __future__ import annotations

from typing import Annotated

from imgbuild.cli._help import create_command
from imgbuild.cli._options import DRY_RUN, Jobs, process_count
from imgbuild.cli._targets import WholeTargets
from imgbuild.cli._update_matrix import UpdateOptions, update_matrix
from imgbuild.cli._update_project import MoveOptions, update_project
from imgbuild.cli._verb import create_verb
from imgbuild.errors import InputError
from imgbuild.lock import published
from imgbuild.pipeline.opened import open_project
from imgbuild.pipeline.session import SessionOptions, open_session

DRY_RUN_HELP = (
    "In a project, the new lock is made in a temporary folder, so files that are not in the cache "
    "are downloaded; their size is printed first."
)


@create_verb
def update(
    selection: WholeTargets,
    chosen: UpdateOptions,
    move: MoveOptions,
    dry_run: Annotated[bool, DRY_RUN(DRY_RUN_HELP)] = False,
    jobs: Jobs = 0,
) -> None:
    """Update a project, or try newer versions in a matrix.

    In a project, moves the rows to the latest lock of their published target, or with --to, to
    another target. Prints the difference between the published targets at once: versions, layers
    and bytes to pull. Then solves and audits the project, and prints other changes, and errors in
    the project's code with the new packages. Then writes matrix.yaml (comments are kept), the
    copied target and a new lock. The next update completes an interrupted update. If requirements
    of the project exclude the target, lists these requirements and writes nothing.

    In a matrix with bases and pins, solves, audits and locks each newer version of a pinned package
    in a temporary folder, for all architectures of the row. Adds the versions that work to
    matrix.yaml as one new row, with lock, digests and Dockerfile; the original row does not change.
    Records rejected versions and the reasons in images/updates.json, and tries a version again when
    the reason has changed. Does not build or test images. By default, updates the recommended
    targets, each from the newest row that was derived from it. If a version could not be tried,
    exits with status 1, or with the status of the error, such as 7 without a network connection.

    Examples:

        imgbuild update --dry-run

        imgbuild update --to cu130-vllm0.33.0

        imgbuild update cu130-trl --no-cool-down

        imgbuild update --axis vllm --axis torch --pull-request build/update.md
    """
    options = SessionOptions(jobs=process_count(jobs))
    project = open_project(selection.matrix)
    if project.writable and published.is_extension(project.matrix):
        _refuse_options(chosen.given_options, f"the rows of {project.matrix} use published targets")
        update_project(project, selection.named_targets, move, options, dry_run=dry_run)
        return
    _refuse_options(move.given_options, f"{project.matrix} is not the matrix of a project")
    update_matrix(open_session(selection.matrix, options), selection, chosen, dry_run=dry_run)


def _refuse_options(given: tuple[str, ...], reason: str) -> None:
    if given:
        message = f"{', '.join(given)}: {reason}"
        raise InputError(message, hint="omit these options; for details, run: imgbuild help update")


COMMAND = create_command(update)
