"""Locks of a git revision, and what the seals of many revisions name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

from imgbuild import codec
from imgbuild.errors import InputError
from imgbuild.lock import lock as locks
from imgbuild.lock.lock import Lock
from imgbuild.plan.seal import Seal
from imgbuild.project import Project
from imgbuild.system import process
from imgbuild.values import Digest

REMEDY = "install git"
LOCK, SEAL = "lock.json", "digests.json"
LOCKS, SEALS = f"images/*/{LOCK}", f"images/*/{SEAL}"
DIGEST = "sha256:[0-9a-f]{64}"
# A seal's own lines for the whole and for each architecture; those of layers have more on them.
TOP = re.compile(rf'([+-])\s*"(?:digest|manifest)": "({DIGEST})",?')
FILE = re.compile(r"(?:---|\+\+\+) .*images/([^/]+)/digests\.json")


class ImageHistory(msgspec.Struct, frozen=True, kw_only=True):
    """Every image that a seal ever named, and its targets.

    With each image the second since which no revision names it; 0 if it is named still.
    """

    images: dict[Digest, int]
    targets: frozenset[str]


class RevisionRange(msgspec.Struct, frozen=True, kw_only=True):
    """The revisions that `gc` looks back on. `shallow`: git was not given all of the history.

    `until` is the second of the last commit, of several branches that of the one that ends first;
    `behind` says which of them lack commits that their upstream was seen to have.
    """

    commits: tuple[str, ...]
    shallow: bool
    until: int = 0
    behind: tuple[str, ...] = ()


class _Digest(msgspec.Struct, frozen=True):
    """The fields of a seal that show whether it changed."""

    digest: Digest


class LockText(msgspec.Struct, frozen=True, kw_only=True):
    """A lock.json of some revision, as bytes, and its place: COMMIT:PATH."""

    target: str
    place: str
    data: bytes


def past(project: Project, count: int, refs: Sequence[str]) -> RevisionRange:
    """The last `count` revisions of each of `refs` that changed a lock or a seal, and `refs`.

    InputError for an unknown revision, or outside of a git repository.
    """
    commits: dict[str, None] = {}
    ends: list[int] = []
    behind: list[str] = []
    for ref in refs:
        commits[_commit(project, ref)] = None
        listed = _git(
            project, "log", f"--max-count={count}", "--format=%H", ref, "--", LOCKS, SEALS
        )
        commits.update(dict.fromkeys(listed.split()))
        ends.append(int(_git(project, "log", "--max-count=1", "--format=%ct", ref)))
        # Of what has no upstream, a tag or no branch at all, git says nothing and fails.
        missing = f"{ref}..{ref}@{{upstream}}"
        ahead = _git(project, "rev-list", "--count", missing, empty=128).strip()
        if ahead not in ("", "0"):
            behind.append(f"{ref} lacks {ahead} commits of its upstream")
    shallow = _git(project, "rev-parse", "--is-shallow-repository").strip() == "true"
    return RevisionRange(
        commits=tuple(commits),
        shallow=shallow,
        until=min(ends, default=0),
        behind=tuple(behind),
    )


def named(project: Project, commits: Sequence[str]) -> set[Digest]:
    """Every digest in a seal of one of `commits`: of images, configurations and layers."""
    words = ["grep", "-h", "-o", "-E", DIGEST, *commits, "--", SEALS]
    return set(_git(project, *words, empty=1).split())


def locks_of(project: Project, commits: Sequence[str]) -> Iterator[LockText]:
    """Every lock of `commits`, each content once."""
    seen: set[str] = set()
    for commit in commits:
        for target, blob in _blobs(project, commit, LOCK):
            if blob not in seen:
                seen.add(blob)
                data = _git(project, "cat-file", "blob", blob).encode()
                place = f"{commit[:12]}:images/{target}/{LOCK}"
                yield LockText(target=target, place=place, data=data)


def _blobs(project: Project, commit: str, name: str) -> Iterator[tuple[str, str]]:
    """The target and git's object of each images/TARGET/`name` at `commit`."""
    for line in _git(project, "ls-tree", "-r", commit, "--", "images").splitlines():
        about, _, path = line.partition("\t")
        target, _, file = path.removeprefix("images/").partition("/")
        if file == name:
            yield target, about.split()[2]


def image_history(project: Project, refs: Sequence[str]) -> ImageHistory:
    """What the seals of all the history of `refs` named at some time."""
    words = ["log", "-m", "--first-parent", "--format=%ct", "--patch", "--unified=0"]
    text = _git(project, *words, "--no-color", "--no-renames", *refs, "--", SEALS)
    moment, images, targets = 0, dict[Digest, int](), set[str]()
    for line in text.splitlines():  # the newest revision first
        if line.isdigit():
            moment = int(line)
        elif (file := FILE.fullmatch(line)) is not None:
            targets.add(file[1])
        elif (top := TOP.fullmatch(line)) is not None:
            images.setdefault(top[2], moment if top[1] == "-" else 0)
    return ImageHistory(images=images, targets=frozenset(targets))


def _git(project: Project, *words: str, empty: int = 0) -> str:
    """What git prints, in the folder of the project; a status up to `empty` is not a failure."""
    git = process.find("git", remedy=REMEDY)
    done = process.run([git, *words], cwd=project.root, check=False)
    if done.status > empty:
        errors = done.stderr.strip().splitlines()
        message = ": ".join((f"git cannot read the history of {project.root}", *errors[:1]))
        raise InputError(
            message, hint="it needs a checkout with its history: git fetch --unshallow"
        )
    return done.stdout


def _commit(project: Project, revision: str) -> str:
    """The commit that `revision` names; InputError if there is none, or no repository."""
    git = process.find("git", remedy=REMEDY)
    words = [git, "rev-parse", "--verify", "--quiet"]
    known = process.run([*words, f"{revision}^{{commit}}"], cwd=project.root, check=False)
    if known.status == 0:
        return known.stdout.strip()
    inside = process.run([git, "rev-parse", "--git-dir"], cwd=project.root, check=False)
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
    git = process.find("git", remedy=REMEDY)
    commit = _commit(project, revision)
    files = []
    for name in (LOCK, SEAL):
        place = f"{commit}:./images/{target}/{name}"
        shown = process.run([git, "show", place], cwd=project.root, check=False)
        if shown.status != 0:
            return None
        files.append(shown.stdout.encode())
    lock, seal = files
    place, hint = f"{revision}:images/{target}", "name another revision"
    return (
        locks.decode_lock(lock, f"{place}/{LOCK}", hint=hint, remedy=hint),
        codec.decode(seal, Seal, file=f"{place}/{SEAL}", what="seal", hint=hint),
    )
