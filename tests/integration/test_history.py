"""Locks of an older revision, asked of a real git."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from imgbuild import codec
from imgbuild.errors import InputError
from imgbuild.lock import lock
from imgbuild.plan import seal
from imgbuild.project import Project
from imgbuild.publish import gc_roots
from imgbuild.show import revisions
from imgbuild.system.console import console
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


def test_what_the_last_revisions_name_and_what_was_ever_named(project: Project) -> None:
    git(project.root, "init", "--quiet")
    made = [locked_as(project, version) for version in ("1.0", "2.0", "3.0")]
    (project.root / "README").write_text("no lock")
    git(project.root, "add", "README")
    git(project.root, "commit", "--quiet", "--message", "this changes no lock")
    past = revisions.past(project, 2, ["HEAD"])
    assert not past.shallow
    found = {text.data for text in revisions.locks_of(project, past.commits)}
    assert found == {data for data, _ in made[1:]}
    assert {text.target for text in revisions.locks_of(project, past.commits)} == {TARGET}
    names = revisions.named(project, past.commits)
    for number, (_, sealed) in enumerate(made):
        (image,) = sealed.arch.values()
        whole = {sealed.digest, image.manifest, image.config}
        assert (whole <= names) is (number > 0)
        assert {layer.digest for layer in image.layers} <= names or number == 0
    named_since = revisions.image_history(project, ["HEAD"])
    assert named_since.targets == {TARGET}
    assert named_since.images.keys() == {sealed.digest for _, sealed in made}
    moments = [named_since.images[sealed.digest] for _, sealed in made]
    assert moments[2] == 0
    assert all(moment > 1_700_000_000 for moment in moments[:2])


def test_each_branch_that_is_named_counts(project: Project) -> None:
    git(project.root, "init", "--quiet", "--initial-branch", "main")
    _, old = locked_as(project, "1.0")
    git(project.root, "checkout", "--quiet", "-b", "release")
    _, other = locked_as(project, "1.5")
    git(project.root, "checkout", "--quiet", "main")
    _, new = locked_as(project, "2.0")
    commits = revisions.past(project, 1, ["main"]).commits
    names = revisions.named(project, commits)
    assert new.digest in names
    assert not {old.digest, other.digest} & names
    commits = revisions.past(project, 1, ["main", "release"]).commits
    assert {new.digest, other.digest} <= revisions.named(project, commits)


def test_a_removed_target_is_remembered(project: Project) -> None:
    git(project.root, "init", "--quiet")
    _, sealed = locked_as(project, "1.0")
    git(project.root, "rm", "--quiet", "-r", "images")
    git(project.root, "commit", "--quiet", "--message", "no target any more")
    past = revisions.past(project, 1, ["HEAD"])
    assert revisions.named(project, past.commits) == set()
    assert list(revisions.locks_of(project, past.commits)) == []
    named_since = revisions.image_history(project, ["HEAD"])
    assert named_since.targets == {TARGET}
    assert named_since.images[sealed.digest] > 1_700_000_000


def test_a_branch_behind_its_upstream_is_told(project: Project, tmp_path: Path) -> None:
    git(project.root, "init", "--quiet", "--initial-branch", "main")
    locked_as(project, "1.0")
    copy = Project(matrix=tmp_path / "copy/matrix.yaml")
    git(tmp_path, "clone", "--quiet", str(project.root), "copy")
    before = revisions.past(copy, 1, ["HEAD"])
    assert before.behind == ()
    locked_as(project, "2.0")
    git(copy.root, "fetch", "--quiet")
    past = revisions.past(copy, 1, ["HEAD", "main", "origin/main"])
    assert past.behind == tuple(
        f"{ref} lacks 1 commits of its upstream" for ref in ("HEAD", "main")
    )
    assert past.until == before.until > 1_700_000_000
    with pytest.raises(InputError, match="HEAD lacks 1 commits") as caught:
        gc_roots.named(copy, 1, ["HEAD"], strict=True)
    assert "git pull" in (caught.value.hint or "")
    assert gc_roots.named(copy, 1, ["origin/main"], strict=True).until >= past.until
    git(copy.root, "checkout", "--quiet", "--detach")
    assert revisions.past(copy, 1, ["HEAD"]).behind == ()


def test_an_unknown_revision_is_refused(project: Project) -> None:
    git(project.root, "init", "--quiet")
    locked_as(project, "1.0")
    with pytest.raises(InputError, match="absent is not a revision of the repository"):
        revisions.past(project, 1, ["absent"])


def test_a_lock_that_cannot_be_read_is_told_and_keeps_its_target(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    git(project.root, "init", "--quiet")
    locked_as(project, "1.0")
    lock.lock_path(project.images, TARGET).write_text('{"format": 99}')
    git(project.root, "commit", "--quiet", "--all", "--message", "of a later imgbuild")
    _, sealed = locked_as(project, "2.0")
    found = gc_roots.named(project, 2, ["HEAD"], strict=True, reporter=console)
    assert found.unread == {TARGET}
    assert sealed.digest in found.digests
    assert f"inputs of {TARGET} are kept" in capsys.readouterr().err
