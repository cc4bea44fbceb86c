"""Reads the history of digests of targets, from git or from a data file.

A change is a commit that changed the digest of a target (see `plan.digest_history`).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import msgspec

from imgbuild import codec
from imgbuild.errors import InputError, ToolMissing
from imgbuild.matrix.fields import NAME, Line, Name
from imgbuild.matrix.project_paths import Project
from imgbuild.plan import digest_history
from imgbuild.plan.digest_history import CommittedDigests, DigestCommit
from imgbuild.show import lock_changes
from imgbuild.show.lock_changes import LockChanges, VersionChange
from imgbuild.system import git
from imgbuild.values import Arch, Bytes, Digest

HISTORY_FORMAT = 1
FILE = "history.json"
REMEDY = "omit --history-file in a git checkout, where imgbuild site reads the history from git"
LOCKED_AGAIN_NOTE = "locked again after removal"
_NAME = re.compile(NAME)

CommitId = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?\Z")]
CommitTime = Annotated[
    str, msgspec.Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(Z|[+-]\d\d:\d\d)\Z")
]


class DigestChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A digest of a target, with its first date, sizes, and changes from the previous digest.

    `manifests` and `sizes` are by architecture. `changes` lists changed Python packages, and
    `debian` changed Debian packages. `settings` contains a line for each change of the base or the
    settings. `known` is false if the lock of this digest or of the previous digest could not be
    read. `first` marks the first digest in the history.
    """

    date: CommitTime
    commit: CommitId
    subject: Line = ""
    digest: Digest
    manifests: dict[Arch, Digest] = {}
    sizes: dict[Arch, Bytes] = {}
    changes: tuple[VersionChange, ...] = ()
    debian: tuple[VersionChange, ...] = ()
    settings: tuple[Line, ...] = ()
    first: bool = False
    known: bool = True


class SiteHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of each target, newest first."""

    format: int = HISTORY_FORMAT
    targets: dict[Name, tuple[DigestChange, ...]] = {}


def read_history(path: Path) -> SiteHistory:
    """Read the history in the data file at `path`.

    Raises InputError with all problems if the file is invalid.
    """
    history = codec.read_document(path, SiteHistory, what="history", hint=REMEDY)
    if history.format != HISTORY_FORMAT:
        message = f"{path}: unsupported format {history.format} (expected {HISTORY_FORMAT})"
        raise InputError(message, hint=REMEDY)
    return history


def collect_history(project: Project) -> SiteHistory:
    """Read the history of a project in a git checkout. Empty without a checkout, commits or git."""
    if not _is_in_checkout(project):
        return SiteHistory()
    targets: dict[str, list[DigestChange]] = {}
    for commit in digest_history.digest_commits(project, locks=True):
        if commit.digests is not None and _NAME.fullmatch(commit.target):
            targets.setdefault(commit.target, []).append(_change(commit, commit.digests))
    for changes in targets.values():
        changes[-1] = msgspec.structs.replace(changes[-1], first=True, settings=())
    return SiteHistory(targets={name: tuple(each) for name, each in sorted(targets.items())})


def checkout_project(project: Project) -> Project:
    """Return the checkout of the catalogue of an editable installation, which has a history.

    An installed catalogue has no .git, and is not part of a checkout in a parent folder.
    """
    matrix = project.matrix.resolve()
    if project.writable or not (matrix.parent / ".git").exists():
        return project
    return Project(matrix=matrix)


def checkout_commit(project: Project) -> str:
    """Return the commit of the checkout, or "" outside of a checkout."""
    if not _is_in_checkout(project):
        return ""
    answer = git.run_git(project.root, "rev-parse", "--verify", "--quiet", "HEAD")
    return answer.stdout.strip() if answer.status == 0 else ""


def _is_in_checkout(project: Project) -> bool:
    """Whether the project is in a git checkout that has a commit."""
    if not project.writable:
        return False
    try:
        return git.run_git(project.root, "rev-parse", "--show-prefix", "HEAD").status == 0
    except ToolMissing:
        return False


def merge_histories(history: SiteHistory, other: SiteHistory) -> SiteHistory:
    """Merge two histories, using the longer one for each target."""
    targets = dict(history.targets)
    for name, changes in other.targets.items():
        targets[name] = max(targets.get(name, ()), changes, key=len)
    return SiteHistory(targets=dict(sorted(targets.items())))


def _change(commit: DigestCommit, digests: CommittedDigests) -> DigestChange:
    lock, before = (lock_changes.decode_lock(each) for each in (commit.lock, commit.lock_before))
    changes = lock_changes.lock_changes(before, lock) if before and lock else LockChanges()
    added = commit.before is None
    return DigestChange(
        date=commit.date,
        commit=commit.commit,
        subject="".join(filter(str.isprintable, commit.subject)),
        digest=digests.digest,
        manifests={arch: image.manifest for arch, image in digests.arch.items() if image.manifest},
        sizes={arch: image.size for arch, image in digests.arch.items()},
        changes=changes.python,
        debian=changes.debian,
        settings=(LOCKED_AGAIN_NOTE,) if added else changes.settings,
        known=lock is not None and (added or before is not None),
    )
