"""Locks of an older revision, asked of a real git."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from imgbuild import codec
from imgbuild.errors import InputError, WorkFailed
from imgbuild.lock import lock
from imgbuild.plan import seal
from imgbuild.project import Project
from imgbuild.show import revisions
from tests.support import needs, samples
from tests.unit.plan.test_seal import records

TARGET = "small"


def git(folder: Path, *words: str) -> None:
    """Run git in `folder`, under a name of its own."""
    name = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    command = [needs.tool("git"), *name, *words]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    return Project(matrix=tmp_path / "matrix.yaml")


def test_outside_a_repository_this_is_said(project: Project) -> None:
    needs.tool("git")
    with pytest.raises(InputError, match="is not in a git repository") as caught:
        revisions.sealed_at(project, TARGET, "main")
    assert str(project.root) in caught.value.message
    assert caught.value.hint == "this needs a checkout with its history"


def test_a_revision_has_a_lock_none_or_a_damaged_one(project: Project) -> None:
    git(project.root, "init", "--quiet")
    git(project.root, "commit", "--quiet", "--allow-empty", "--message", "nothing yet")
    assert revisions.sealed_at(project, TARGET, "HEAD") is None
    with pytest.raises(InputError, match="absent is not a revision of the repository"):
        revisions.sealed_at(project, TARGET, "absent")
    made = samples.lock()
    sealed = seal.seal(made, records(made))
    codec.write(lock.lock_path(project.images, TARGET), made)
    codec.write(seal.seal_path(project.images, TARGET), sealed)
    git(project.root, "add", "images")
    git(project.root, "commit", "--quiet", "--message", "locked")
    assert revisions.sealed_at(project, TARGET, "HEAD") == (made, sealed)
    lock.lock_path(project.images, TARGET).write_text("{")
    git(project.root, "commit", "--quiet", "--all", "--message", "damaged")
    with pytest.raises(InputError, match=r"HEAD:images/small/lock\.json is not a valid lock"):
        revisions.sealed_at(project, TARGET, "HEAD")
    assert revisions.sealed_at(project, TARGET, "HEAD~1") == (made, sealed)


def locked_as(project: Project, version: str) -> tuple[bytes, seal.Seal]:
    """Write and commit a lock with torch at `version`; the lock's bytes, and its seal."""
    made = samples.lock(samples.wheel("torch", version))
    sealed = seal.seal(made, records(made))
    codec.write(lock.lock_path(project.images, TARGET), made)
    codec.write(seal.seal_path(project.images, TARGET), sealed)
    git(project.root, "add", "images")
    git(project.root, "commit", "--quiet", "--message", f"torch {version}")
    return lock.lock_path(project.images, TARGET).read_bytes(), sealed


def test_an_unknown_revision_is_refused(project: Project) -> None:
    git(project.root, "init", "--quiet")
    locked_as(project, "1.0")
    with pytest.raises(InputError, match="absent is not a revision of the repository"):
        revisions.digests_at(project, "absent")


def test_a_repository_that_waits_for_a_pipe_is_an_error(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(project.root, "init", "--quiet")
    locked_as(project, "1.0")
    os.mkfifo(tmp_path / "pipe")
    git(project.root, "config", "include.path", str(tmp_path / "pipe"))
    monkeypatch.setattr("imgbuild.system.git.LIMIT", 0.5)
    with pytest.raises(WorkFailed, match="is not done after"):
        revisions.sealed_at(project, TARGET, "HEAD")
