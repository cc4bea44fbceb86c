"""Finds the git commits that changed the digests of targets.

Git objects are read instead of files in the checkout. Each commit is compared with its parent.
Commits that changed only the format of digests.json are ignored, as are merges that adopted the
file of a parent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from imgbuild.errors import InputError
from imgbuild.matrix.project_paths import Project
from imgbuild.system import decoding, git
from imgbuild.values import Arch, Bytes, Digest

DIGESTS_FILE, LOCK = "digests.json", "lock.json"
COMMITS_TOGETHER = 80  # digests that are in memory at once, and the locks of those that changed
UNREADABLE = "to fetch the history of the checkout, run: git fetch --unshallow"


class CommittedImage(msgspec.Struct, frozen=True):
    """An image for one architecture. `size` is the download size in bytes."""

    manifest: Digest = ""
    size: Bytes = 0


class CommittedDigests(msgspec.Struct, frozen=True):
    """The fields that all formats of digests.json have in common."""

    digest: Digest
    arch: dict[Arch, CommittedImage] = {}


class DigestCommit(msgspec.Struct, frozen=True, kw_only=True):
    """A commit that added, changed or removed the digest of a target. A removed digest is None.

    `date` is the date of the commit in the committer's time zone. `subject` is the first line of
    the commit message. `before` is None if the parent has no digest. `lock` and `lock_before` are
    the contents of lock.json, or None if they were not requested or do not exist.
    """

    commit: str
    date: str
    subject: str
    target: str
    digests: CommittedDigests | None
    before: CommittedDigests | None
    lock: bytes | None = None
    lock_before: bytes | None = None


class _LoggedCommit(msgspec.Struct, frozen=True):
    id: str
    parent: str
    date: str
    subject: str
    paths: tuple[str, ...]

    def both(self, path: str) -> tuple[str, str]:
        """Return the names of `path` at the commit and at its parent ("" without a parent)."""
        return f"{self.id}:./{path}", f"{self.parent}:./{path}" if self.parent else ""


def unreadable_history(project: Project, stderr: str) -> InputError:
    """Return an error for the output of git in a folder that is no repository, or the catalogue."""
    if not project.writable:
        return InputError(
            "the catalogue that is installed with imgbuild has no history",
            hint="run the command in a clone of imgbuild's repository",
        )
    message = f"git cannot read the history of {project.root}"
    return InputError(": ".join((message, *stderr.strip().splitlines()[:1])), hint=UNREADABLE)


def images_parent(project: Project) -> Path:
    """Return the folder that contains `images`, with links resolved."""
    return project.images.resolve().parent


def digest_commits(
    project: Project, target: str | None = None, *, locks: bool = False
) -> Iterator[DigestCommit]:
    """Yield changes to the digests of `target`, or of all targets, newest first for each target.

    A digests.json that cannot be read is skipped. Raises InputError outside of a repository.
    """
    folder = images_parent(project)
    listed = [(commit, path) for commit in _log(project, folder, target) for path in commit.paths]
    for start in range(0, len(listed), COMMITS_TOGETHER):
        some = listed[start : start + COMMITS_TOGETHER]
        digests = _contents(folder, [name for commit, path in some for name in commit.both(path)])
        changed = [
            (commit, path) for commit, path in some if _is_change(digests, *commit.both(path))
        ]
        places = [name for commit, path in changed for name in commit.both(_lock_path(path))]
        contents = digests | (_contents(folder, places) if locks else {})
        yield from (_change(commit, path, contents) for commit, path in changed)


def _is_change(contents: Mapping[str, bytes], now: str, then: str) -> bool:
    """Return whether a commit changed the digest, as far as digests.json can be read."""
    digests = _decode_digests(contents.get(now))
    if digests is None and now in contents:
        return False
    return _digest(digests) != _digest(_decode_digests(contents.get(then)))


def _log(project: Project, folder: Path, target: str | None) -> Sequence[_LoggedCommit]:
    """Return the commits that changed digests.json, with merges that differ from all parents."""
    place = f"images/{target if target is not None else '*'}/{DIGESTS_FILE}"
    pattern = f":(glob){place}" if target is None else f":(literal){place}"
    done = git.run_git(
        folder, "log", "-c", "-z", "--topo-order", "--name-only", "--no-renames", "--relative",
        "--format=%x01%H%x00%P%x00%cI%x00%s", "HEAD", "--", pattern,
    )  # fmt: skip
    if done.status != 0:
        raise unreadable_history(project, done.stderr)
    listed = []
    for entry in done.stdout.split("\x01")[1:]:
        commit, parents, date, subject, *paths = entry.split("\x00")
        names = dict.fromkeys(name.strip("\n") for name in paths)
        usable = tuple(name for name in names if name and "\n" not in name)
        listed.append(_LoggedCommit(commit, parents.partition(" ")[0], date, subject, usable))
    return listed


def _lock_path(path: str) -> str:
    return f"{path.removesuffix(DIGESTS_FILE)}{LOCK}"


def _contents(folder: Path, names: Sequence[str]) -> dict[str, bytes]:
    names = [name for name in names if name]
    if not names:
        return {}
    answer = git.run_git(
        folder, "cat-file", "--batch", stdin="".join(f"{name}\n" for name in names)
    )
    data, place, contents = answer.stdout.encode(), 0, {}
    for name in names:
        end = data.find(b"\n", place)
        head = data[place:end].rsplit(b" ", 2) if end >= 0 else []
        place = end + 1
        if len(head) != 3 or head[1] != b"blob" or not head[2].isdigit():
            continue
        size = int(head[2])
        contents[name] = data[place : place + size]
        place += size + 1
    if place == len(data):
        return contents
    # A file is not UTF-8: its bytes were replaced, and the sizes are not those of the text.
    single = {name: git.run_git(folder, "cat-file", "blob", name) for name in names}
    return {name: done.stdout.encode() for name, done in single.items() if done.status == 0}


def _change(commit: _LoggedCommit, path: str, contents: Mapping[str, bytes]) -> DigestCommit:
    now, then = commit.both(path)
    lock, lock_before = commit.both(_lock_path(path))
    return DigestCommit(
        commit=commit.id,
        date=commit.date,
        subject=commit.subject,
        target=path.split("/")[-2],
        digests=_decode_digests(contents.get(now)),
        before=_decode_digests(contents.get(then)),
        lock=contents.get(lock),
        lock_before=contents.get(lock_before),
    )


def _decode_digests(data: bytes | None) -> CommittedDigests | None:
    try:
        return decoding.decode_json(data, CommittedDigests) if data is not None else None
    except msgspec.MsgspecError:
        return None


def _digest(digests: CommittedDigests | None) -> Digest | None:
    return digests.digest if digests else None
