"""Finds and deletes manifests that no lock or seal of the recent revisions names.

Kept are manifests that a seal or a lock names, those that the policy keeps, and all that imgbuild
did not make for this project, together with what they list and what is attached to them. A registry
deletes only manifests: its own garbage collection deletes the blobs.
"""

from __future__ import annotations

import collections
import datetime
import enum
import fnmatch
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from imgbuild.publish.scan import ManifestKind, StoredManifest
from imgbuild.publish.tag import DATED, by_digest
from imgbuild.registry.reference import Repository
from imgbuild.values import Bytes, Digest

if TYPE_CHECKING:
    from imgbuild.registry.client import Client

AFTER = (
    "the bytes are freed by the registry's own garbage collection; of docker-registry, while nobody"
    " pushes: docker-registry garbage-collect CONFIG.yml"
)


class Named(msgspec.Struct, frozen=True, kw_only=True):
    """What locks and seals name: `digests` of images, their parts, and artifacts of inputs.

    `ever` is every image that a seal of all the history named, and the second since which none
    does. `targets` are all that the project ever had, `tags` the newest of those that it has. For
    what was pushed after `until`, in seconds, it is not known whether a seal names it. A lock of
    the `unread` targets could not be read, so their inputs are not known.
    """

    digests: frozenset[Digest]
    named_since: dict[Digest, int]
    targets: frozenset[str]
    tags: frozenset[str]
    until: int
    unread: frozenset[str] = frozenset()


class KeepPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What else is kept: tags by shell patterns, and what was named or tagged `since` that second.

    Where `since` is set, what has no date is kept too.
    """

    keep_tags: tuple[str, ...] = ()
    since: int | None = None


class Reason(enum.StrEnum):
    """Why something is kept."""

    NAMED = "named by a lock or seal"
    TAG = "its tag is kept"
    PART = "a part of what is named"
    YOUNG = "too young, or of unknown age"
    NEWER = "newer than what this checkout knows"
    FOREIGN = "not this project's"
    BESIDE = "listed by, or attached to, what is kept"


class Garbage(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that can be deleted. `size` is what nothing kept uses, in bytes.

    `manifests` are itself, what it lists and what belongs to these, in the order of deletion;
    `unnamed_since` is a day, or empty if no seal of the history named it.
    """

    digest: Digest
    kind: ManifestKind
    target: str
    tags: tuple[str, ...]
    unnamed_since: str
    size: Bytes
    manifests: tuple[Digest, ...]


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """The garbage of a repository. `size` counts each of its blobs once.

    `deleted`: `garbage` has been deleted.
    """

    repository: str
    manifests: int
    kept: dict[Reason, int]
    size: Bytes
    garbage: tuple[Garbage, ...]
    deleted: bool = False


def judge(
    repository: Repository, held: Mapping[Digest, StoredManifest], known: Named, policy: KeepPolicy
) -> Sweep:
    """What of `held` is garbage. Sends no request and deletes nothing."""
    kept = {
        digest: reason
        for digest in held
        if (reason := _reason(held[digest], held, known, policy)) is not None
    }
    for digest in _closed(kept, held):
        kept.setdefault(digest, Reason.BESIDE)
    rest = held.keys() - kept.keys()
    kept_blobs = {blob for digest in kept for blob in held[digest].blobs}
    entries = [_entry(group, held, kept_blobs, known) for group in _groups(rest, held)]
    return Sweep(
        repository=str(repository),
        manifests=len(held),
        kept=dict(collections.Counter(kept.values())),
        size=_size(rest, held, kept_blobs),
        garbage=tuple(sorted(entries, key=lambda entry: (-entry.size, entry.digest))),
    )


def delete(
    sweep: Sweep, held: Mapping[Digest, StoredManifest], repository: Repository, client: Client
) -> Sweep:
    """Delete the garbage of `sweep`, indexes before their manifests; returns what was deleted.

    Kept is what has been tagged since `held` was read, for example by a push of an older lock.
    """
    tags = by_digest(client, repository, client.tags(repository))
    gone: list[Garbage] = []
    total = sum(len(entry.manifests) for entry in sweep.garbage)
    with client.reporter.progress(f"deleting from {repository}", total, unit="manifests") as bar:
        for entry in sweep.garbage:
            new = {
                tag
                for digest in entry.manifests
                for tag in tags.get(digest, ())
                if tag not in held[digest].tags
            }
            if new:
                client.reporter.warn(
                    f"{entry.digest} is kept: it is tagged {', '.join(sorted(new))} now"
                )
                continue
            for digest in entry.manifests:
                client.delete(repository, digest)
                bar.advance(1)
            gone.append(entry)
    removed = {digest for entry in gone for digest in entry.manifests}
    left = {blob for digest in held.keys() - removed for blob in held[digest].blobs}
    size = _size(removed, held, left)
    return msgspec.structs.replace(sweep, garbage=tuple(gone), size=size, deleted=True)


# -- what is kept


def _reason(
    item: StoredManifest, held: Mapping[Digest, StoredManifest], known: Named, policy: KeepPolicy
) -> Reason | None:
    """Why `item` itself is kept; None if only another manifest could keep it."""
    if item.digest in known.digests or any(each in known.digests for each in item.subjects):
        return Reason.NAMED
    if any(tag in known.tags for tag in item.tags) or _matches(item.tags, policy.keep_tags):
        return Reason.TAG
    if item.kind is ManifestKind.ATTACHED:
        lost = any(each in held or each in known.named_since for each in item.subjects)
        return None if lost else Reason.FOREIGN
    if not _is_ours(item, held, known):
        return Reason.FOREIGN
    if item.kind is ManifestKind.INPUTS and item.target in known.unread:
        return Reason.NAMED
    if item.digest not in known.named_since:
        if _is_part(item, held, known):
            return Reason.PART
        if _dated(item) >= known.until:  # by somebody whose commits are not here
            return Reason.NEWER
    return (
        Reason.YOUNG if policy.since is not None and _is_young(item, known, policy.since) else None
    )


def _matches(tags: Iterable[str], patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(tag, pattern) for tag in tags for pattern in patterns)


def _is_ours(item: StoredManifest, held: Mapping[Digest, StoredManifest], known: Named) -> bool:
    """Whether it was made for this project: a seal named it once, or its target is known."""
    if item.digest in known.named_since or item.target in known.targets:
        return True
    children = [held[child] for child in item.children if child in held]
    return bool(children) and all(_is_ours(child, held, known) for child in children)


def _is_part(item: StoredManifest, held: Mapping[Digest, StoredManifest], known: Named) -> bool:
    """Whether it is a part of a named image, for example its base."""
    if item.kind is ManifestKind.INDEX:
        children = [held[child] for child in item.children if child in held]
        return bool(children) and all(_is_part(child, held, known) for child in children)
    layers = [blob for blob in item.blobs if blob != item.config]
    return item.digest in known.digests or (
        bool(layers) and all(blob in known.digests for blob in layers)
    )


def _is_young(item: StoredManifest, known: Named, since: int) -> bool:
    """Whether it was tagged or named since then; what has a tag and no date may have been."""
    newest = max(_dated(item), known.named_since.get(item.digest, 0))
    return newest >= since if newest else bool(item.tags)


def _dated(item: StoredManifest) -> int:
    """The end of the newest day that a tag names, in seconds; 0 if none does."""
    days = (match[1] for tag in item.tags if (match := DATED.fullmatch(tag)) is not None)
    return max(map(_day, days), default=0)


def _day(text: str) -> int:
    """The last second of a day, YYYYMMDD; 0 for an invalid one."""
    try:
        day = datetime.datetime.strptime(text, "%Y%m%d").replace(tzinfo=datetime.UTC)
    except ValueError:
        return 0
    return int((day + datetime.timedelta(days=1)).timestamp()) - 1


def _closed(digests: Iterable[Digest], held: Mapping[Digest, StoredManifest]) -> set[Digest]:
    """`digests` with all that they list and all that belongs to any of these."""
    attached = _attached(held)
    found: set[Digest] = set()
    due = [digest for digest in digests if digest in held]
    while due:
        digest = due.pop()
        if digest not in found:
            found.add(digest)
            due += [each for each in held[digest].children if each in held]
            due += attached.get(digest, ())
    return found


def _attached(held: Mapping[Digest, StoredManifest]) -> dict[Digest, list[Digest]]:
    """Image → what belongs to it, indexes before their manifests."""
    found: dict[Digest, list[Digest]] = {}
    for item in sorted(held.values(), key=lambda one: (not one.children, one.digest)):
        for subject in item.subjects:
            found.setdefault(subject, []).append(item.digest)
    return found


# -- what can go


def _groups(rest: Collection[Digest], held: Mapping[Digest, StoredManifest]) -> list[list[Digest]]:
    """`rest` in groups: one thing, then what it lists, then what belongs to any of these."""
    attached = _attached(held)
    listed = {child for digest in rest for child in held[digest].children}
    # Named after what nothing lists and what belongs to nothing.
    order = sorted(
        rest, key=lambda one: (held[one].kind is ManifestKind.ATTACHED, one in listed, one)
    )
    groups: list[list[Digest]] = []
    left = set(rest)
    for first in order:
        if first not in left:
            continue
        group = _taken([first], lambda one: held[one].children, left)
        more = _taken(group, lambda one: (*attached.get(one, ()), *held[one].children), left)
        groups.append([*group, *more])
    return groups


def _taken(
    roots: Iterable[Digest], near: Callable[[Digest], Iterable[Digest]], left: set[Digest]
) -> list[Digest]:
    """What `roots` and `near` reach of `left`, from which it is removed."""
    found = [one for one in roots if one in left]
    left.difference_update(found)
    due = collections.deque(roots)
    while due:
        for one in near(due.popleft()):
            if one in left:
                left.discard(one)
                found.append(one)
                due.append(one)
    return found


def _entry(
    group: list[Digest],
    held: Mapping[Digest, StoredManifest],
    kept: Collection[Digest],
    known: Named,
) -> Garbage:
    item = held[group[0]]
    targets = [held[digest].target for digest in group if held[digest].target]
    moment = max((known.named_since.get(digest, 0) for digest in group), default=0)
    day = datetime.datetime.fromtimestamp(moment, tz=datetime.UTC).date().isoformat()
    return Garbage(
        digest=item.digest,
        kind=item.kind,
        target=targets[0] if targets else "",
        tags=item.tags,
        unnamed_since=day if moment else "",
        size=_size(group, held, kept),
        manifests=tuple(group),
    )


def _size(
    digests: Iterable[Digest], held: Mapping[Digest, StoredManifest], kept: Collection[Digest]
) -> int:
    """The bytes of these manifests and of their blobs that no kept one has, each once."""
    blobs: dict[Digest, int] = {}
    for digest in digests:
        blobs[digest] = held[digest].size
        blobs |= {blob: size for blob, size in held[digest].blobs.items() if blob not in kept}
    return sum(blobs.values())
