"""Updates a project to another target or to the newest lock."""

# A separate module: one of two forms.
from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from imgbuild.audit.packages.published import published_facts
from imgbuild.cache.store import Store
from imgbuild.cli import _moved_row
from imgbuild.cli._moved_row import MovedRow
from imgbuild.cli._options import LOCK, PACKAGES
from imgbuild.cli._output import fold_lines, format_count, print_result, size_text
from imgbuild.cli._verb import TARGETS_PANEL, OptionGroup, option
from imgbuild.errors import InputError, NoSolution
from imgbuild.http.client import HttpClient
from imgbuild.lock import published
from imgbuild.matrix import project_paths
from imgbuild.matrix.extension import Extensions
from imgbuild.matrix.model import Matrix
from imgbuild.matrix.project_paths import Project
from imgbuild.pipeline import targets
from imgbuild.pipeline.inputs import open_inputs
from imgbuild.pipeline.session import Session, SessionOptions
from imgbuild.resolve import init
from imgbuild.show import image_diff
from imgbuild.show.image_diff import ImageDiff
from imgbuild.system import boundary
from imgbuild.system.console import console
from imgbuild.system.folder import OpenFolder
from imgbuild.update import project_move, transaction
from imgbuild.update.project_move import ProjectMove
from imgbuild.values import sha256

PUBLISHED = "published"  # in the folder of new content: the copied target


class MoveOptions(OptionGroup, frozen=True, kw_only=True):
    """Options that select the new target for rows of a project."""

    to: Annotated[
        str | None,
        option(
            "--to",
            "In a project, the published target to move to. Default: the latest lock of the"
            " current target.",
            metavar="TARGET",
            panel=TARGETS_PANEL,
            often=True,
        ),
    ] = None
    lock: Annotated[
        str | None,
        LOCK("With --to, a folder or URL with lock.json and digests.json. Default: the source of"
             " the current target."),
    ] = None  # fmt: skip
    packages: Annotated[
        bool,
        PACKAGES("Without this option, only direct requirements and packages such as torch and vllm"
                 " are listed."),
    ] = False  # fmt: skip

    @property
    def given_options(self) -> tuple[str, ...]:
        """The options that were specified."""
        values = {"--to": self.to, "--lock": self.lock, "--packages": self.packages}
        return tuple(name for name, value in values.items() if value)


class ProjectUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """The moved rows and the written files or, with `--dry-run`, the plan.

    `published` is the difference between the published targets, or None if it could not be read.
    """

    rows: tuple[MovedRow, ...]
    dry_run: bool
    published: ImageDiff | None = None
    wrote: tuple[Path, ...] = ()


def update_project(
    project: Project,
    names: Sequence[str],
    move: MoveOptions,
    options: SessionOptions,
    *,
    dry_run: bool,
) -> None:
    """Print the changes, and move rows of `project` to a newer lock or another target.

    Raises NoSolution, with all conflicts, if the project's requirements exclude the target. In this
    case, and with `dry_run`, nothing is written.
    """
    project.require_writable("imgbuild update")
    if move.lock is not None and move.to is None:
        message = f"--lock {move.lock} requires --to"
        raise InputError(message, hint="run imgbuild update --to TARGET --lock LOCK")
    with Store.open().hold_lock(f"update-{sha256(str(project.root).encode())}"):
        if recovered := transaction.recover_change(project):
            console.warn(recovered)
        try:
            _update_project(project, names, move, options, dry_run=dry_run)
        except BaseException:
            if not project.is_half_updated:
                transaction.discard_new_content(project)
            raise


def _update_project(
    project: Project,
    names: Sequence[str],
    move: MoveOptions,
    options: SessionOptions,
    *,
    dry_run: bool,
) -> None:
    data = boundary.read_regular_file(project.matrix)
    value = published.decode_extensions(project.matrix, data)
    planned = _plan_move(project, value, names, move)
    if planned.changes_nothing:
        _report_current(project, planned)
        transaction.discard_new_content(project)
        print_result(
            ProjectUpdate(rows=(), dry_run=dry_run),
            [f"{', '.join(planned.rows)}: {planned.new.name} has no newer lock"],
        )
        return
    difference = _print_published(value, planned, whole=move.packages)
    before = Session(project=project, matrix=_matrix_before(project, data), options=options)
    _refuse_move(project, value, planned, before)
    text = project_move.new_matrix(project.matrix, data, value, planned)
    image = value.published[planned.old.name].image
    if image and not project_move.keeps_image(image, planned):
        console.warn(
            f"image: {image} does not have the layers of {planned.new.name}, so they are built "
            "from the lock; set their location under `published:`")  # fmt: skip
    after = _stage_project(project, text, planned, options)
    _announce_downloads(after, planned)
    rows = _lock_and_compare(before, after, planned)
    if not console.json:  # before anything is written
        lines = (
            line
            for row in rows
            for line in _moved_row.moved_row_lines(row, difference, whole=move.packages)
        )
        print_result(None, fold_lines(lines))
    wrote: tuple[Path, ...] = ()
    if dry_run:
        transaction.discard_new_content(project)
        console.info("nothing was written because of --dry-run")
    else:
        wrote = tuple(_write_project(project, text, value, planned))
        console.info(
            f"wrote {project.matrix.name} and {format_count(len(wrote) - 1, 'file')} of the lock"
        )
        console.info(f"next: imgbuild build {' '.join(planned.rows)}")
    if console.json:
        done = ProjectUpdate(rows=rows, dry_run=dry_run, published=difference, wrote=wrote)
        print_result(done, [])


def _print_published(value: Extensions, planned: ProjectMove, *, whole: bool) -> ImageDiff | None:
    """Print the difference between the published targets, which their locks contain, at once."""
    rows = [value.targets[name] for name in planned.rows]
    arches = {arch for row in rows for arch in row.arch or planned.new.lock.arch}
    difference = _moved_row.compare_published(planned, arches)
    if difference is not None and not console.json:
        lines = image_diff.diff_lines if whole else image_diff.diff_summary
        print_result(None, fold_lines(lines(difference)))
    return difference


def _lock_and_compare(
    before: Session, after: Session, planned: ProjectMove
) -> tuple[MovedRow, ...]:
    """Lock the rows in the folder for new content, and compare them with the project."""
    names = " and ".join(planned.rows)
    steps = 1 + len(planned.rows)
    console.info(
        f"solving and auditing {names} on {planned.new.name}, which takes minutes; the project is "
        "not changed before it has ended"
    )
    with console.progress(f"locking {names} on {planned.new.name}", steps, unit="steps") as bar:
        targets.lock_all(after, after.select_targets(planned.rows), drop=False)
        bar.advance(1)
        rows = []
        for name in planned.rows:
            rows.append(_moved_row.compare_moved_row(name, before, after, planned))
            bar.advance(1)
    return tuple(rows)


# -- rows and their new targets


def _plan_move(
    project: Project, value: Extensions, names: Sequence[str], move: MoveOptions
) -> ProjectMove:
    """Plan the move, and copy the new target into the folder for new content.

    A newer lock of the same target applies to all rows that use the target.
    """
    rows = project_move.rows_to_move(value, names)
    old = value.targets[rows[0]].published_name
    new = move.to or old
    if new == old:
        rows = tuple(name for name, row in value.targets.items() if row.published_name == old)
    origin = move.lock or value.published[old].origin
    if not origin:
        message = f"{project.matrix}: published.{old} has no source (`from`)"
        raise InputError(message, hint="add `from:`, or pass --to TARGET --lock LOCK")
    place = origin
    if origin == init.CATALOGUE_PLACE:
        init.require_target(project_paths.catalogue_project(), new)
    elif not init.REMOTE_PREFIX.match(origin):
        place = str(project.root / Path(origin).expanduser())
    folder = transaction.transaction_folder(project) / PUBLISHED / new
    current = value.published[old]
    return ProjectMove(
        rows=rows,
        old=published.read_published_target(project.root / current.lock, old, current.image),
        new=init.copy_published_target(place, new, folder, HttpClient(), below=project.root),
        origin=origin,
        lock=project_move.copy_place(value, old, new),
    )


def _report_current(project: Project, planned: ProjectMove) -> None:
    retired = ""
    if planned.origin == init.CATALOGUE_PLACE:
        target = published.load_matrix(project_paths.catalogue_project().matrix).targets.get(
            planned.new.name
        )
        retired = target.retired if target is not None else ""
    if retired:
        console.info(f"{planned.new.name} is retired: {retired}")
    locked = set(planned.rows) <= set(project.locked_targets())
    lock = "" if locked else "imgbuild lock && "
    console.info(
        f"to find targets with newer versions, run: {lock}imgbuild outdated; to show the changes "
        "of a move to a target, run: imgbuild update --to TARGET --dry-run"
    )


def _matrix_before(project: Project, data: bytes) -> Matrix:
    """Read the current matrix of the project, but not the files that declare requirements.

    The matrix can be read even if the requirements contradict the current target.
    """

    def _restore_extensions(value: Extensions) -> Extensions:
        rows = {
            name: msgspec.structs.replace(row, requirements=(), add=(), pins={}, requires={})
            for name, row in value.targets.items()
        }
        return msgspec.structs.replace(value, targets=rows)

    return published.plan_matrix(project.matrix, data, _restore_extensions)


def _refuse_move(
    project: Project, value: Extensions, planned: ProjectMove, before: Session
) -> None:
    context = open_inputs(before).context
    reasons: list[str] = []
    with console.step(f"comparing the project with {planned.new.name}"):
        for name in planned.rows:
            row = value.targets[name]
            reasons += project_move.move_conflicts(
                name, row, planned, project.root, before.matrix, context
            )
    reasons = list(dict.fromkeys(reasons))
    if not reasons:
        return
    message = f"{format_count(len(reasons), 'requirement')} of the project cannot be satisfied by"
    message += f" {planned.new.name}; nothing was written"
    hint = (
        "change the requirements in the project's files, or move to another target with --to TARGET"
    )
    if any(value.targets[name].extends for name in planned.rows):
        hint += (
            "; to solve all versions again, replace `extends:` with `like:` in "
            f"{project.matrix.name}"
        )
    raise NoSolution(message, reasons=tuple(reasons), hint=hint)


# -- the new lock, in a separate folder


def _announce_downloads(after: Session, planned: ProjectMove) -> None:
    """Print the size of the new target's files of which neither cache nor imgbuild has facts."""
    store, lock, facts = Store.open(), planned.new.lock, published_facts()
    arches = {arch for name in planned.rows for arch in after.matrix.targets[name].arch}
    files = {
        file.sha256: file.size
        for arch in arches & lock.arch.keys()
        for file in (*lock.arch[arch].wheels, *lock.arch[arch].debs)
        if not (facts.has_wheel(file.sha256) or facts.deb_libraries(file.sha256) is not None)
    }
    if missing := sum(size for key, size in files.items() if store.file(key) is None):
        console.info(
            f"to compare the new lock with the project's code, {size_text(missing)} of "
            f"{planned.new.name} are downloaded, and the packages that the project adds"
        )


def _stage_project(
    project: Project, text: bytes, planned: ProjectMove, options: SessionOptions
) -> Session:
    folder = transaction.transaction_folder(project)
    images = folder / "images"
    if project.images.is_dir():
        shutil.copytree(project.images, images, symlinks=True)
    if (bake := project.folder / transaction.BAKE).is_file():
        shutil.copyfile(bake, folder / transaction.BAKE)
    lock = planned.new.folder.relative_to(project.root).as_posix()

    def _move_extensions(value: Extensions) -> Extensions:
        entry = msgspec.structs.replace(value.published[planned.new.name], lock=lock)
        table = {**value.published, planned.new.name: entry}
        return msgspec.structs.replace(value, published=table)

    matrix = published.plan_matrix(project.matrix, text, _move_extensions)
    staged = msgspec.structs.replace(project, staged=folder)
    return Session(project=staged, matrix=matrix, options=options)


def _write_project(
    project: Project, text: bytes, value: Extensions, planned: ProjectMove
) -> list[Path]:
    folder = transaction.transaction_folder(project)
    inner = project.folder.relative_to(project.root)
    files: list[tuple[str, bytes | None]] = [
        (f"{planned.lock}/{name}", boundary.read_regular_file(planned.new.folder / name))
        for name in (published.LOCK, published.DIGESTS_FILE)
    ]
    staged_images = folder / "images"
    files.extend(
        ((inner / "images" / name).as_posix(), boundary.read_regular_file(staged_images / name))
        for name in _tree(staged_images)
    )
    staged = {path for path, _ in files}
    files += [
        (path, None)
        for name in _tree(project.images)
        if (path := (inner / "images" / name).as_posix()) not in staged
    ]
    if (bake := folder / transaction.BAKE).is_file():
        files.append(((inner / transaction.BAKE).as_posix(), boundary.read_regular_file(bake)))
    files.append((project.matrix.name, text))
    old = value.published[planned.old.name].lock
    used = published.decode_extensions(project.matrix, text).published.values()
    if all(Path(entry.lock) != Path(old) for entry in used):
        files += [(f"{old}/{name}", None) for name in (published.LOCK, published.DIGESTS_FILE)]
    summary = f"{', '.join(planned.rows)} on {planned.new.name}"
    wrote = transaction.commit_files(project, files, summary)
    with contextlib.suppress(OSError):
        (project.root / old).rmdir()
    return wrote


def _tree(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    with OpenFolder.open(folder) as opened:
        return sorted(opened.file_paths())
