"""Tests that an interrupted change of several files is undone or completed."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from imgbuild import codec
from imgbuild.errors import InputError
from imgbuild.matrix.project_paths import JOURNAL, UPDATE, Project
from imgbuild.system import files
from imgbuild.system.folder import OpenFolder
from imgbuild.update import transaction
from imgbuild.update.transaction import ChangeJournal, FileChange

OLD = {
    "matrix.yaml": b"old\n",
    ".imgbuild/images/row/lock.json": b"old lock\n",
    ".imgbuild/published/a/lock.json": b"a\n",
    ".imgbuild/published/a/digests.json": b"a\n",
    ".imgbuild/.gitignore": b"build/\n",
}
CHANGE: list[tuple[str, bytes | None]] = [
    (".imgbuild/published/b/lock.json", b"b\n"),
    (".imgbuild/published/b/digests.json", b"b\n"),
    (".imgbuild/images/row/lock.json", b"new lock\n"),
    ("matrix.yaml", b"new\n"),
    (".imgbuild/published/a/lock.json", None),
    (".imgbuild/published/a/digests.json", None),
]
NEW = {
    "matrix.yaml": b"new\n",
    ".imgbuild/images/row/lock.json": b"new lock\n",
    ".imgbuild/published/b/lock.json": b"b\n",
    ".imgbuild/published/b/digests.json": b"b\n",
    ".imgbuild/.gitignore": b"build/\n",
}


UNDONE = "discarded an interrupted update; no file had been changed"
FINISHED = "completed an interrupted update: row on b"


class Killed(BaseException):
    """Raised to simulate a killed process."""


@pytest.fixture(name="project")
def _project(tmp_path: Path) -> Project:
    for name, data in OLD.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return Project(matrix=tmp_path / "matrix.yaml")


def content(project: Project) -> dict[str, bytes]:
    """The files of the project."""
    return {
        path.relative_to(project.root).as_posix(): path.read_bytes()
        for path in project.root.rglob("*")
        if path.is_file()
    }


def interrupted(project: Project, patch: pytest.MonkeyPatch, after: int) -> bool:
    """Commit the change, interrupted before step `after`. Returns whether it was interrupted."""
    steps = itertools.count()

    def _counting(step: object) -> object:
        def _step(*words: object, **more: object) -> object:
            if next(steps) == after:
                raise Killed
            return step(*words, **more)  # type: ignore[operator]

        return _step

    with patch.context() as patched:
        for name in ("rename", "remove"):
            patched.setattr(OpenFolder, name, _counting(getattr(OpenFolder, name)))
        patched.setattr(transaction, "remove_tree", _counting(files.remove_tree))
        try:
            transaction.commit_files(project, CHANGE, "row on b")
        except Killed:
            return True
    return False


def test_change_of_several_files_is_written_completely(project: Project) -> None:
    wrote = transaction.commit_files(project, CHANGE, "row on b")
    assert content(project) == NEW
    assert [path.relative_to(project.root).as_posix() for path in wrote] == [
        path for path, data in CHANGE if data is not None
    ]
    assert transaction.recover_change(project) == ""


def test_interrupted_change_is_undone_or_completed_by_the_next_run(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = []
    for step in itertools.count():
        for name, data in OLD.items():
            (project.root / name).parent.mkdir(parents=True, exist_ok=True)
            (project.root / name).write_bytes(data)
        (project.root / ".imgbuild/published/b/lock.json").unlink(missing_ok=True)
        (project.root / ".imgbuild/published/b/digests.json").unlink(missing_ok=True)
        if not interrupted(project, monkeypatch, step):
            break
        outcome = transaction.recover_change(project)
        assert content(project) == (OLD if outcome == UNDONE else NEW), step
        assert not transaction.transaction_folder(project).exists()
        outcomes.append(outcome)
    assert outcomes.count(UNDONE) == len([data for _, data in CHANGE if data]) + 1
    assert outcomes.count(FINISHED) == len(CHANGE)
    assert outcomes[-1] == ""  # all was written, the new content was not removed yet


def test_files_changed_by_another_process_are_kept(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert interrupted(project, monkeypatch, 7)
    (project.root / "matrix.yaml").write_bytes(b"edited\n")
    with pytest.raises(
        InputError, match=r"these files were changed after an interrupted update: matrix\.yaml"
    ) as caught:
        transaction.recover_change(project)
    assert str(transaction.transaction_folder(project)) in str(caught.value.hint)
    assert (project.root / "matrix.yaml").read_bytes() == b"edited\n"


@pytest.mark.parametrize(
    "path",
    [".git/hooks/post-checkout", "../outside/lock.json", "/etc/lock.json", "train.py",
     ".git/lock.json", "docs/images/row.json"],
)  # fmt: skip
def test_journal_from_a_checkout_cannot_name_files_outside_the_checkout(
    project: Project, path: str
) -> None:
    change = FileChange(path=path, before="", after="0" * 64)
    journal = ChangeJournal(summary="x", files=(change,))
    codec.write_document(transaction.transaction_folder(project) / JOURNAL, journal)
    with pytest.raises(InputError, match="lists files that updates do not write"):
        transaction.recover_change(project)


def test_new_content_that_contradicts_the_journal_is_refused(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert interrupted(project, monkeypatch, 6)
    (path,) = (transaction.transaction_folder(project) / "new").rglob("matrix.yaml")
    path.write_bytes(b"other\n")
    with pytest.raises(InputError, match="does not match the journal"):
        transaction.recover_change(project)


def test_link_in_place_of_the_transaction_folder_is_refused(
    project: Project, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (project.folder / UPDATE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=r"\.imgbuild-update"):
        transaction.recover_change(project)
