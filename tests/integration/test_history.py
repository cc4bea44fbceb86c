"""Tests reading the locks of older revisions from a real git repository."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from imgbuild import codec
from imgbuild.errors import InputError, WorkFailed
from imgbuild.lock import lock_file
from imgbuild.matrix.project_paths import Project
from imgbuild.plan import digest_history, image_digests
from imgbuild.show import revisions
from tests.support import needs, samples
from tests.unit.plan.test_image_digests import records

TARGET = "small"


def git(folder: Path, *words: str) -> None:
    """Run git in `folder` with a fixed user name."""
    name = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    command = [needs.require_tool("git"), *name, *words]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    return Project(matrix=tmp_path / "matrix.yaml")


def test_folder_outside_repository_is_reported(project: Project) -> None:
    needs.require_tool("git")
    with pytest.raises(InputError, match="git cannot read the history") as caught:
        revisions.locked_at(project, TARGET, "main")
    assert str(project.root) in caught.value.message
    assert caught.value.hint == digest_history.UNREADABLE


def test_locks_are_read_from_git_revisions(project: Project) -> None:
    git(project.root, "init", "--quiet")
    git(project.root, "commit", "--quiet", "--allow-empty", "--message", "nothing yet")
    assert revisions.locked_at(project, TARGET, "HEAD") is None
    with pytest.raises(InputError, match="absent is not a revision of the repository"):
        revisions.locked_at(project, TARGET, "absent")
    sample_lock = samples.lock()
    target_digests = image_digests.compute_digests(sample_lock, records(sample_lock))
    codec.write_document(lock_file.lock_path(project.images, TARGET), sample_lock)
    codec.write_document(image_digests.digests_path(project.images, TARGET), target_digests)
    git(project.root, "add", "images")
    git(project.root, "commit", "--quiet", "--message", "locked")
    assert revisions.locked_at(project, TARGET, "HEAD") == (sample_lock, target_digests)
    lock_file.lock_path(project.images, TARGET).write_text("{")
    git(project.root, "commit", "--quiet", "--all", "--message", "damaged")
    with pytest.raises(InputError, match=r"HEAD:images/small/lock\.json is not a valid lock"):
        revisions.locked_at(project, TARGET, "HEAD")
    assert revisions.locked_at(project, TARGET, "HEAD~1") == (sample_lock, target_digests)


def locked_as(project: Project, version: str) -> tuple[bytes, image_digests.TargetDigests]:
    """Commit a lock with `version` of torch; return the bytes and digests of the lock."""
    sample_lock = samples.lock(samples.wheel("torch", version))
    target_digests = image_digests.compute_digests(sample_lock, records(sample_lock))
    codec.write_document(lock_file.lock_path(project.images, TARGET), sample_lock)
    codec.write_document(image_digests.digests_path(project.images, TARGET), target_digests)
    git(project.root, "add", "images")
    git(project.root, "commit", "--quiet", "--message", f"torch {version}")
    return lock_file.lock_path(project.images, TARGET).read_bytes(), target_digests


def test_pipe_in_the_git_configuration_does_not_block(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(project.root, "init", "--quiet")
    locked_as(project, "1.0")
    os.mkfifo(tmp_path / "pipe")
    git(project.root, "config", "include.path", str(tmp_path / "pipe"))
    monkeypatch.setattr("imgbuild.system.git.LIMIT", 0.5)
    with pytest.raises(WorkFailed, match="timed out after"):
        revisions.locked_at(project, TARGET, "HEAD")


def test_history_of_a_target_lists_each_digest_once(project: Project) -> None:
    git(project.root, "init", "--quiet")
    _, first = locked_as(project, "1.0")
    git(project.root, "commit", "--quiet", "--allow-empty", "--message", "nothing of it")
    _, second = locked_as(project, "2.0\x1b[31m")
    newest, oldest = revisions.target_history(project, TARGET)
    assert (newest.digest, oldest.digest) == (second.digest, first.digest)
    assert (newest.subject, oldest.subject) == ("torch 2.0\x1b[31m", "torch 1.0")
    assert oldest.size == {arch: image.size for arch, image in first.arch.items()}
    git(project.root, "rm", "--quiet", "-r", "images")
    git(project.root, "commit", "--quiet", "--message", "removed")
    removed, *earlier = revisions.target_history(project, TARGET)
    assert (removed.digest, earlier) == (None, [newest, oldest])
    with pytest.raises(InputError, match="contains digests of absent"):
        revisions.target_history(project, "absent")


def test_commit_that_does_not_change_the_digest_is_not_a_revision(project: Project) -> None:
    git(project.root, "init", "--quiet", "--initial-branch=main")
    locked_as(project, "1.0")
    git(project.root, "checkout", "--quiet", "-b", "reformat")
    path = image_digests.digests_path(project.images, TARGET)
    path.write_text(path.read_text() + "\n")
    git(project.root, "commit", "--quiet", "--all", "--message", "another form")
    git(project.root, "checkout", "--quiet", "main")
    locked_as(project, "2.0")
    git(project.root, "merge", "--quiet", "-X", "ours", "--message", "a merge", "reformat")
    subjects = [each.subject for each in revisions.target_history(project, TARGET)]
    assert subjects == ["torch 2.0", "torch 1.0"]


def test_merge_that_changes_the_digest_is_a_revision(project: Project) -> None:
    git(project.root, "init", "--quiet", "--initial-branch=main")
    locked_as(project, "1.0")
    git(project.root, "checkout", "--quiet", "-b", "other")
    locked_as(project, "2.0")
    git(project.root, "checkout", "--quiet", "main")
    locked_as(project, "3.0")
    git(project.root, "merge", "--quiet", "--no-commit", "-X", "ours", "other")
    _, made = locked_as(project, "4.0")
    newest, *_ = revisions.target_history(project, TARGET)
    assert (newest.digest, newest.subject) == (made.digest, "torch 4.0")


def test_damaged_revision_is_skipped(project: Project) -> None:
    git(project.root, "init", "--quiet")
    locked_as(project, "1.0")
    image_digests.digests_path(project.images, TARGET).write_bytes(b'{"digest": "\xff')
    git(project.root, "commit", "--quiet", "--all", "--message", "damaged")
    locked_as(project, "2.0")
    changes = [*digest_history.digest_commits(project, locks=True)]
    assert [each.subject for each in changes] == ["torch 2.0", "torch 1.0"]
    assert [each.lock is not None for each in changes] == [True, True]


def test_history_requires_a_git_repository(project: Project) -> None:
    needs.require_tool("git")
    with pytest.raises(InputError, match="git cannot read the history"):
        revisions.target_history(project, TARGET)


def test_history_of_an_installed_catalogue_refers_to_a_clone(project: Project) -> None:
    needs.require_tool("git")
    catalogue = Project(matrix=project.matrix, writable=False)
    for read in (revisions.target_history, lambda each, name: revisions.digests_at(each, "HEAD")):
        with pytest.raises(
            InputError, match="catalogue that is installed with imgbuild has no"
        ) as caught:
            read(catalogue, TARGET)
        assert "clone" in str(caught.value.hint)


def test_catalogue_of_an_editable_installation_has_history(
    project: Project, tmp_path: Path
) -> None:
    """In an editable installation, `data/catalogue` has a link to the images of the checkout."""
    git(project.root, "init", "--quiet")
    _, target_digests = locked_as(project, "1.0")
    linked = tmp_path / "elsewhere" / "catalogue"
    linked.mkdir(parents=True)
    (linked / "images").symlink_to(project.images)
    catalogue = Project(matrix=linked / "matrix.yaml")
    [only] = revisions.target_history(catalogue, TARGET)
    assert only.digest == target_digests.digest
    locked = revisions.locked_at(catalogue, TARGET, "HEAD")
    assert locked is not None
    assert locked[1] == target_digests
