"""Locks of an older revision, asked of a real git."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from imgbuild import codec, history, lock, seal
from imgbuild.errors import InputError
from imgbuild.project import Project
from tests import needs, samples
from tests.unit.test_seal import records

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
    with pytest.raises(InputError, match="is in no git repository") as caught:
        history.sealed_at(project, TARGET, "main")
    assert str(project.root) in caught.value.message
    assert caught.value.hint == "--diff needs a checkout with its history"


def test_a_revision_has_a_lock_none_or_a_damaged_one(project: Project) -> None:
    git(project.root, "init", "--quiet")
    git(project.root, "commit", "--quiet", "--allow-empty", "--message", "nothing yet")
    assert history.sealed_at(project, TARGET, "HEAD") is None
    with pytest.raises(InputError, match="absent is no revision of the repository"):
        history.sealed_at(project, TARGET, "absent")
    made = samples.lock()
    sealed = seal.seal(made, records(made))
    codec.write(lock.lock_path(project.images, TARGET), made)
    codec.write(seal.seal_path(project.images, TARGET), sealed)
    git(project.root, "add", "images")
    git(project.root, "commit", "--quiet", "--message", "locked")
    assert history.sealed_at(project, TARGET, "HEAD") == (made, sealed)
    lock.lock_path(project.images, TARGET).write_text("{")
    git(project.root, "commit", "--quiet", "--all", "--message", "damaged")
    with pytest.raises(InputError, match=r"HEAD:images/small/lock\.json is not a valid lock"):
        history.sealed_at(project, TARGET, "HEAD")
    assert history.sealed_at(project, TARGET, "HEAD~1") == (made, sealed)
