"""Reads locks and digests from git revisions (`diff TARGET@REV`, `show --history`)."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from imgbuild import codec
from imgbuild.errors import InputError
from imgbuild.lock import lock_file
from imgbuild.lock.lock_file import Lock
from imgbuild.matrix.project_paths import Project
from imgbuild.plan import digest_history
from imgbuild.plan.digest_history import DIGESTS_FILE, LOCK
from imgbuild.plan.image_digests import TargetDigests
from imgbuild.system import git
from imgbuild.values import Bytes, Digest


class _DigestFields(msgspec.Struct, frozen=True):
    """The fields of digests.json that determine whether an image has changed."""

    digest: Digest


class TargetRevision(msgspec.Struct, frozen=True, kw_only=True):
    """A commit that changed the digest of a target. If the target was removed, the digest is None.

    `date` is the date of the commit in the committer's time zone. `subject` is the first line of
    the commit message. `size` is the download size for each architecture.
    """

    commit: str
    date: str
    digest: Digest | None
    size: dict[str, Bytes]
    subject: str


def target_history(project: Project, target: str) -> tuple[TargetRevision, ...]:
    """List the revisions of a target's digest in the checkout of `project`, newest first.

    Only commits that changed the digest are included. Raises InputError outside of a repository, or
    if no commit contains the target.
    """
    revisions = tuple(
        TargetRevision(
            commit=change.commit,
            date=change.date[:10],
            digest=change.digests.digest if change.digests else None,
            size={arch: image.size for arch, image in change.digests.arch.items()}
            if change.digests
            else {},
            subject=change.subject,
        )
        for change in digest_history.digest_commits(project, target)
    )
    if not revisions:
        message = f"no commit in {project.root} contains digests of {target}"
        raise InputError(
            message, hint="commit the lock first, or in a shallow clone, run: git fetch --unshallow"
        )
    return revisions


def _blobs(project: Project, commit: str, name: str) -> Iterator[tuple[str, str]]:
    """Yield the targets and git objects of files images/TARGET/`name` at `commit`."""
    for line in _git_output(project, "ls-tree", "-r", commit, "--", "images").splitlines():
        about, _, path = line.partition("\t")
        target, _, file = path.removeprefix("images/").partition("/")
        if file == name:
            yield target, about.split()[2]


def _git_output(project: Project, command: git.ReadingCommand, *words: str) -> str:
    """Run git in the folder with `images`, and return the output."""
    done = git.run_git(digest_history.images_parent(project), command, *words)
    if done.status != 0:
        raise digest_history.unreadable_history(project, done.stderr)
    return done.stdout


def _commit(project: Project, revision: str) -> str:
    """Resolve `revision` to a commit.

    Raises InputError if the revision or the repository does not exist.
    """
    commit = git.run_git(project.root, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    if commit.status == 0:
        return commit.stdout.strip()
    inside = git.run_git(project.root, "rev-parse", "--git-dir")
    if inside.status != 0:
        raise digest_history.unreadable_history(project, inside.stderr)
    message = f"{revision} is not a revision of the repository at {project.root}"
    hint = "specify a commit, a branch or a tag, or in a shallow clone, run: git fetch --unshallow"
    raise InputError(message, hint=hint)


def digests_at(project: Project, revision: str) -> dict[str, Digest]:
    """Return the digests of all locked targets at `revision`.

    Raises InputError if the revision is unknown.
    """
    commit = _commit(project, revision)
    digests: dict[str, Digest] = {}
    for target, blob in _blobs(project, commit, DIGESTS_FILE):
        data = _git_output(project, "cat-file", "blob", blob).encode()
        place = f"{revision}:images/{target}/{DIGESTS_FILE}"
        digests[target] = codec.decode(data, _DigestFields, file=place, what="digests").digest
    return digests


def locked_at(project: Project, target: str, revision: str) -> tuple[Lock, TargetDigests] | None:
    """Return the lock and digests of `target` at `revision`, or None.

    Raises InputError if the revision is unknown.
    """
    commit = _commit(project, revision)
    files = []
    for name in (LOCK, DIGESTS_FILE):
        place = f"{commit}:./images/{target}/{name}"
        shown = git.run_git(digest_history.images_parent(project), "cat-file", "blob", place)
        if shown.status != 0:
            return None
        files.append(shown.stdout.encode())
    lock, target_digests = files
    place, hint = f"{revision}:images/{target}", "specify another revision"
    return (
        lock_file.decode_lock(lock, f"{place}/{LOCK}", hint=hint, remedy=hint),
        codec.decode(
            target_digests, TargetDigests, file=f"{place}/{DIGESTS_FILE}", what="digests", hint=hint
        ),
    )
