"""Changes several files of a project as one transaction.

New content is first written to a separate folder, followed by a journal that lists the old and the
new hash of each file. If a journal exists, the next update completes the change. Journals are not
trusted. A journal is rejected if it lists files that `imgbuild update` does not write.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

import msgspec

from imgbuild import codec
from imgbuild.errors import InputError
from imgbuild.matrix import project_paths
from imgbuild.matrix.project_paths import JOURNAL, Project
from imgbuild.system.files import remove_tree
from imgbuild.system.folder import OpenFolder, require_below
from imgbuild.values import sha256

DONE_FILE = "done.json"  # the name of a complete journal
NEW_FOLDER = "new"  # the folder of new content, by the path of the file in the project
COPIES = ("lock.json", "digests.json")  # of a published target
BAKE = "docker-bake.json"


HashText = Annotated[
    str, msgspec.Meta(pattern=r"^([0-9a-f]{64})?\Z", description="SHA-256, or empty")
]


class FileChange(msgspec.Struct, frozen=True, kw_only=True):
    """A changed file. `before` and `after` are hashes, or "" if the file does not exist."""

    path: str
    before: HashText
    after: HashText


class ChangeJournal(msgspec.Struct, frozen=True, kw_only=True):
    """A change whose new content is complete."""

    format: Literal[1] = 1
    summary: str
    files: tuple[FileChange, ...]


def transaction_folder(project: Project) -> Path:
    """Return the folder for new content of `project`.

    Raises InputError if the path contains a link.
    """
    return require_below(project.root, project.folder / project_paths.UPDATE)


def commit_files(
    project: Project, files: Iterable[tuple[str, bytes | None]], summary: str
) -> list[Path]:
    """Write `files` (path → content, or None to remove a file), and return the written paths.

    Files are written in order. Unchanged files are not written.
    """
    folder = transaction_folder(project)
    changes = []
    with OpenFolder.open(project.root) as root:
        for path, data in files:
            former = root.read(path) if root.require_file(path) is not None else None
            if data == former:
                continue
            if data is not None:
                codec.write_bytes(folder / NEW_FOLDER / path, data, below=project.root)
            changes.append(
                FileChange(
                    path=path,
                    before="" if former is None else sha256(former),
                    after="" if data is None else sha256(data),
                )
            )
    journal = ChangeJournal(summary=summary, files=tuple(changes))
    codec.write_document(folder / JOURNAL, journal, below=project.root)
    _apply_journal(project, folder, journal)
    return [project.root / change.path for change in changes if change.after]


def discard_new_content(project: Project) -> None:
    """Remove new content that has no journal."""
    remove_tree(transaction_folder(project))


def recover_change(project: Project) -> str:
    """Complete an interrupted change, or discard a change without a journal.

    Return a description, or "" if no change was interrupted. Raises InputError if a file of the
    change was modified in the meantime.
    """
    folder = transaction_folder(project)
    if not folder.is_dir():
        return ""
    hint = f"to keep the current files, remove {folder}, and run `imgbuild update` again"
    if not (folder / JOURNAL).is_file():
        complete = (folder / DONE_FILE).is_file()
        discard_new_content(project)
        undone = "discarded an interrupted update; no file had been changed"
        return "" if complete else undone
    journal = codec.read_document(folder / JOURNAL, ChangeJournal, what="journal", hint=hint)
    refused = [change.path for change in journal.files if not _is_permitted(project, change.path)]
    if refused:
        message = f"{folder / JOURNAL} lists files that updates do not write: {', '.join(refused)}"
        raise InputError(message, hint=f"remove {folder}")
    other = _changed_files(project, journal.files)
    if other:
        message = f"these files were changed after an interrupted update: {', '.join(other)}"
        raise InputError(message, hint=hint)
    _apply_journal(project, folder, journal)
    return f"completed an interrupted update: {journal.summary}"


def _apply_journal(project: Project, folder: Path, journal: ChangeJournal) -> None:
    """Write the remaining files, and then remove the journal and the new content."""
    with OpenFolder.open(project.root) as root:
        for change in journal.files:
            if _hash(root, change.path) == change.after:
                continue
            if not change.after:
                root.remove(change.path)
                continue
            with OpenFolder.open(folder / NEW_FOLDER) as new:
                content = new.read(change.path)
            if sha256(content) != change.after:
                message = f"{folder / NEW_FOLDER / change.path} does not match the journal"
                raise InputError(message, hint=f"remove {folder}, and run `imgbuild update` again")
            root.write(change.path, content)
    (folder / JOURNAL).replace(folder / DONE_FILE)
    remove_tree(folder)


def _changed_files(project: Project, files: Sequence[FileChange]) -> list[str]:
    with OpenFolder.open(project.root) as root:
        return [
            change.path
            for change in files
            if _hash(root, change.path) not in (change.before, change.after)
        ]


def _hash(root: OpenFolder, path: str) -> str:
    return "" if root.require_file(path) is None else sha256(root.read(path))


def _is_permitted(project: Project, path: str) -> bool:
    place = PurePosixPath(path)
    inner = project.folder.relative_to(project.root)
    if path in (project.matrix.name, (inner / BAKE).as_posix()):
        return True
    hidden = [part for part in place.parts if part.startswith(".") and part != project_paths.FOLDER]
    if place.is_absolute() or hidden:
        return False
    return place.name in COPIES or place.is_relative_to(inner / "images")
