"""Locks and digests of a git revision."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from imgbuild import codec
from imgbuild.errors import InputError
from imgbuild.lock import lock as locks
from imgbuild.lock.lock import Lock
from imgbuild.plan.seal import Seal
from imgbuild.project import Project
from imgbuild.system import git
from imgbuild.values import Digest

LOCK, SEAL = "lock.json", "digests.json"


class _Digest(msgspec.Struct, frozen=True):
    """The fields of a seal that show whether it changed."""

    digest: Digest


def _blobs(project: Project, commit: str, name: str) -> Iterator[tuple[str, str]]:
    """The target and git's object of each images/TARGET/`name` at `commit`."""
    for line in _git(project, "ls-tree", "-r", commit, "--", "images").splitlines():
        about, _, path = line.partition("\t")
        target, _, file = path.removeprefix("images/").partition("/")
        if file == name:
            yield target, about.split()[2]


def _git(project: Project, command: git.Reading, *words: str) -> str:
    """What git prints, in the folder of the project."""
    done = git.run(project.root, command, *words)
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
    """The digest of each target that was sealed at `revision`; InputError if it is unknown."""
    commit = _commit(project, revision)
    found: dict[str, Digest] = {}
    for target, blob in _blobs(project, commit, SEAL):
        data = _git(project, "cat-file", "blob", blob).encode()
        place = f"{revision}:images/{target}/{SEAL}"
        found[target] = codec.decode(data, _Digest, file=place, what="seal").digest
    return found


def sealed_at(project: Project, target: str, revision: str) -> tuple[Lock, Seal] | None:
    """Lock and seal of `target` at `revision`, None if it had none; InputError if it is unknown."""
    commit = _commit(project, revision)
    files = []
    for name in (LOCK, SEAL):
        place = f"{commit}:./images/{target}/{name}"
        shown = git.run(project.root, "cat-file", "blob", place)
        if shown.status != 0:
            return None
        files.append(shown.stdout.encode())
    lock, seal = files
    place, hint = f"{revision}:images/{target}", "name another revision"
    return (
        locks.decode_lock(lock, f"{place}/{LOCK}", hint=hint, remedy=hint),
        codec.decode(seal, Seal, file=f"{place}/{SEAL}", what="seal", hint=hint),
    )
