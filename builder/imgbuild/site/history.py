"""The history of targets: every digest that was committed, from git or from a data file.

A change is a commit that changed `images/TARGET/digests.json`. Objects of git are read, no file of
the checkout. What an older format does not have is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from imgbuild import codec
from imgbuild.errors import InputError, ToolMissing
from imgbuild.matrix.fields import Line, LockedVersion, Name, Package
from imgbuild.project_paths import Project
from imgbuild.system import git
from imgbuild.values import Arch, Bytes, Digest

HISTORY_FORMAT = 1
FILE = "history.json"
REMEDY = "leave --history-file out in a git checkout: imgbuild site collects it there"
_END = "\x00"
TOGETHER = 40  # commits whose locks are in memory at once

Commit = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?\Z")]
Version = Annotated[str, msgspec.Meta(pattern=r"^[0-9A-Za-z.!+]*\Z", max_length=80)]
Moment = Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(Z|[+-]\d\d:\d\d)\Z")]


class VersionChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A package whose version changed; `old` is "" for a new one, `new` for one that is gone."""

    package: Package
    old: Version = ""
    new: Version = ""


class DigestChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A digest of a target: since when, its sizes, and what differs from the one before.

    `manifests` and `sizes` are by architecture. `known` is False if the lock of this or of the
    earlier digest could not be read; `first` is the first one that the history has.
    """

    date: Moment
    commit: Commit
    subject: Line = ""
    digest: Digest
    manifests: dict[Arch, Digest] = {}
    sizes: dict[Arch, Bytes] = {}
    changes: tuple[VersionChange, ...] = ()
    first: bool = False
    known: bool = True


class SiteHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of each target, the newest first."""

    format: int = HISTORY_FORMAT
    targets: dict[Name, tuple[DigestChange, ...]] = {}


class _Image(msgspec.Struct, frozen=True):
    manifest: Digest
    size: Bytes


class _Digests(msgspec.Struct, frozen=True):
    digest: Digest
    arch: dict[Arch, _Image]


class _Wheel(msgspec.Struct, frozen=True):
    package: Package
    version: LockedVersion


class _Resolution(msgspec.Struct, frozen=True):
    wheels: tuple[_Wheel, ...]
    built: tuple[_Wheel, ...] = ()


class _Lock(msgspec.Struct, frozen=True):
    arch: dict[Arch, _Resolution]


class _Commit(msgspec.Struct, frozen=True):
    id: str
    date: str
    subject: str
    paths: tuple[str, ...]


def read(path: Path) -> SiteHistory:
    """The history in the data file at `path`; InputError, with all its problems, if it is wrong."""
    history = codec.read(path, SiteHistory, what="history", hint=REMEDY)
    if history.format != HISTORY_FORMAT:
        message = f"{path}: unsupported format {history.format} (expected {HISTORY_FORMAT})"
        raise InputError(message, hint=REMEDY)
    return history


def collect(project: Project) -> SiteHistory:
    """The history of a project in a git checkout; empty without a checkout, commits or git."""
    prefix = _prefix(project)
    if prefix is None:
        return SiteHistory()
    images = prefix + project.images.relative_to(project.root).as_posix()
    commits = tuple(_commits(project.root, images))[::-1]
    changes: dict[str, list[DigestChange]] = {}
    before: dict[str, Mapping[str, str] | None] = {}
    for start in range(0, len(commits), TOGETHER):
        some = commits[start : start + TOGETHER]
        names = [f"{commit.id}:{path}" for commit in some for path in _pair(commit.paths)]
        contents = _contents(project.root, names)
        for commit, path in ((each, path) for each in some for path in each.paths):
            target = path.split("/")[-2]
            change, versions = _change(
                commit, contents, path, before.get(target), first=target not in changes
            )
            if change is not None:
                changes.setdefault(target, []).append(change)
                before[target] = versions
    return SiteHistory(
        targets={name: tuple(reversed(entries)) for name, entries in sorted(changes.items())}
    )


def revision(project: Project) -> str:
    """The commit of the checkout; "" outside of one."""
    if _prefix(project) is None:
        return ""
    answer = git.run(project.root, "rev-parse", "--verify", "--quiet", "HEAD")
    return answer.stdout.strip() if answer.status == 0 else ""


def _prefix(project: Project) -> str | None:
    """The path of the project in its checkout, with a slash at the end, or ""; None outside."""
    if not project.writable:
        return None
    try:
        place = git.run(project.root, "rev-parse", "--show-prefix", "HEAD")
    except ToolMissing:
        return None
    return place.stdout.splitlines()[0] if place.status == 0 else None


def merge(history: SiteHistory, other: SiteHistory) -> SiteHistory:
    """Both; for a target the longer one, as a shallow clone has the newest changes alone."""
    targets = dict(history.targets)
    for name, changes in other.targets.items():
        targets[name] = max(targets.get(name, ()), changes, key=len)
    return SiteHistory(targets=dict(sorted(targets.items())))


def _commits(root: Path, images: str) -> Iterator[_Commit]:
    """The commits that changed digests, the newest first."""
    answer = git.run(
        root, "log", "-z", "--name-only", "--no-renames", "--diff-filter=AM",
        "--format=%x01%H%x00%cI%x00%s", "HEAD", "--", f":(top,glob){images}/*/digests.json",
    )  # fmt: skip
    for entry in answer.stdout.split("\x01")[1:] if answer.status == 0 else ():
        commit, date, subject, *paths = entry.split(_END)
        named = tuple(path.strip("\n") for path in paths if path.strip("\n"))
        yield _Commit(commit, date, "".join(filter(str.isprintable, subject)), named)


def _pair(paths: Sequence[str]) -> Iterator[str]:
    for path in paths:
        yield path
        yield _lock_of(path)


def _lock_of(path: str) -> str:
    return f"{path.removesuffix('digests.json')}lock.json"


def _contents(root: Path, names: Sequence[str]) -> dict[str, bytes]:
    """Name → the content of that object of git; without those that are missing."""
    usable = [name for name in names if "\n" not in name]
    if not usable:
        return {}
    answer = git.run(root, "cat-file", "--batch", stdin="".join(f"{name}\n" for name in usable))
    data, place, contents = answer.stdout.encode(), 0, {}
    for name in usable:
        end = data.find(b"\n", place)
        head = data[place:end].rsplit(b" ", 2) if end >= 0 else []
        place = end + 1
        if len(head) != 3 or head[1] != b"blob" or not head[2].isdigit():
            continue
        size = int(head[2])
        contents[name] = data[place : place + size]
        place += size + 1
    return contents


def _change(
    commit: _Commit,
    contents: Mapping[str, bytes],
    path: str,
    before: Mapping[str, str] | None,
    *,
    first: bool,
) -> tuple[DigestChange | None, Mapping[str, str] | None]:
    try:
        target_digests = msgspec.json.decode(
            contents.get(f"{commit.id}:{path}", b""), type=_Digests
        )
    except msgspec.MsgspecError:
        return None, None
    versions = _versions(contents.get(f"{commit.id}:{_lock_of(path)}", b""))
    known = versions is not None and (first or before is not None)
    change = DigestChange(
        date=commit.date,
        commit=commit.id,
        subject=commit.subject,
        digest=target_digests.digest,
        manifests={arch: image.manifest for arch, image in target_digests.arch.items()},
        sizes={arch: image.size for arch, image in target_digests.arch.items()},
        changes=tuple(_differences(before, versions))
        if versions is not None and before is not None
        else (),
        first=first,
        known=known,
    )
    return change, versions


def _versions(data: bytes) -> dict[str, str] | None:
    """Package → version in a lock, of the first architecture that has it; None if unreadable."""
    try:
        lock = msgspec.json.decode(data, type=_Lock)
    except msgspec.MsgspecError:
        return None
    versions: dict[str, str] = {}
    for arch in sorted(lock.arch, reverse=True):
        for wheel in (*lock.arch[arch].wheels, *lock.arch[arch].built):
            versions.setdefault(wheel.package, wheel.version)
    return versions


def _differences(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[VersionChange]:
    for package in sorted(before.keys() | after.keys()):
        old, new = before.get(package, ""), after.get(package, "")
        if old != new:
            yield VersionChange(package=package, old=old, new=new)
