"""Locks and digests of a git revision (`lock --diff REV`, `diff TARGET@REV`)."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from imgbuild import codec
from imgbuild.errors import InputError
from imgbuild.lock import lock_file
from imgbuild.lock.lock_file import Lock
from imgbuild.plan.image_digests import TargetDigests
from imgbuild.project_paths import Project
from imgbuild.system import git
from imgbuild.values import Digest

LOCK, DIGESTS_FILE = "lock.json", "digests.json"


class _Digest(msgspec.Struct, frozen=True):
    """The fields of digests that show whether it changed."""

    digest: Digest


def _blobs(project: Project, commit: str, name: str) -> Iterator[tuple[str, str]]:
    """The target and git's object of each images/TARGET/`name` at `commit`."""
    for line in _git(project, "ls-tree", "-r", commit, "--", "images").splitlines():
        about, _, path = line.partition("\t")
        target, _, file = path.removeprefix("images/").partition("/")
        if file == name:
            yield target, about.split()[2]


def _git(project: Project, command: git.Reading, *words: str) -> str:
    """What git prints, in the folder that has `images`."""
    done = git.run(project.folder, command, *words)
    if done.status != 0:
        errors = done.stderr.strip().splitlines()
        message = ": ".join((f"git cannot read the history of {project.root}", *errors[:1]))
        raise InputError(
            message, hint="it needs a checkout with its history: git fetch --unshallow"
        )
    return done.stdout


def _commit(project: Project, revision: str) -> str:
    """The commit that `revision` names; InputError if there is none, or no repository."""
    commit = git.run(project.root, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    if commit.status == 0:
        return commit.stdout.strip()
    inside = git.run(project.root, "rev-parse", "--git-dir")
    if inside.status != 0:
        errors = inside.stderr.strip().splitlines()
        message = f"{project.root} is not in a git repository that can be read"
        raise InputError(
            ": ".join((message, *errors[:1])), hint="this needs a checkout with its history"
        )
    message = f"{revision} is not a revision of the repository at {project.root}"
    hint = (
        "name a commit, a branch or a tag; a shallow clone lacks older ones: git fetch --unshallow"
    )
    raise InputError(message, hint=hint)


def digests_at(project: Project, revision: str) -> dict[str, Digest]:
    """The digest of each target that was locked at `revision`; InputError if it is unknown."""
    commit = _commit(project, revision)
    digests: dict[str, Digest] = {}
    for target, blob in _blobs(project, commit, DIGESTS_FILE):
        data = _git(project, "cat-file", "blob", blob).encode()
        place = f"{revision}:images/{target}/{DIGESTS_FILE}"
        digests[target] = codec.decode(data, _Digest, file=place, what="digests").digest
    return digests


def locked_at(project: Project, target: str, revision: str) -> tuple[Lock, TargetDigests] | None:
    """Lock and digests of `target` at `revision`, None without them; InputError if unknown."""
    commit = _commit(project, revision)
    files = []
    for name in (LOCK, DIGESTS_FILE):
        place = f"{commit}:./images/{target}/{name}"
        shown = git.run(project.folder, "cat-file", "blob", place)
        if shown.status != 0:
            return None
        files.append(shown.stdout.encode())
    lock, target_digests = files
    place, hint = f"{revision}:images/{target}", "name another revision"
    return (
        lock_file.decode_lock(lock, f"{place}/{LOCK}", hint=hint, remedy=hint),
        codec.decode(
            target_digests, TargetDigests, file=f"{place}/{DIGESTS_FILE}", what="digests", hint=hint
        ),
    )
