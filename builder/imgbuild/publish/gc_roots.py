"""What the locks and seals of a project name, now and in its recent revisions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from imgbuild.assemble import mirror_items
from imgbuild.errors import InputError
from imgbuild.lock import lock as locks
from imgbuild.lock.lock import Lock
from imgbuild.project import Project
from imgbuild.publish.gc import Named
from imgbuild.show import revisions
from imgbuild.show.revisions import SEAL, LockText
from imgbuild.system.reporter import SILENT, Reporter
from imgbuild.values import Arch, Digest, digest_of


def named(
    project: Project,
    count: int,
    refs: Sequence[str],
    *,
    strict: bool,
    reporter: Reporter = SILENT,
) -> Named:
    """What the working tree and the last `count` revisions of `refs` name.

    InputError if git has no history; with `strict`, also if it has only a part of it.
    """
    past = revisions.past(project, count, refs)
    if past.shallow:
        message = (
            f"{project.root} is a shallow clone: the images named by older revisions are not known"
        )
        _refuse(message, "git fetch --unshallow", strict=strict, reporter=reporter)
    if past.behind:
        message = (
            f"{project.root}: {'; '.join(past.behind)}: the images that these name are not known"
        )
        _refuse(
            message,
            "git pull, or name what was fetched: --ref origin/main",
            strict=strict,
            reporter=reporter,
        )
    digests = revisions.named(project, past.commits)
    for path in project.images.glob(f"*/{SEAL}"):
        digests |= set(re.findall(revisions.DIGEST, path.read_text(encoding="utf-8")))
    have = project.sealed()
    artifacts, unread = _artifacts(
        [*revisions.locks_of(project, past.commits), *_own(project, have)], reporter
    )
    named_since = revisions.image_history(project, refs)
    return Named(
        digests=frozenset(digests | artifacts),
        named_since=named_since.images,
        targets=named_since.targets.union(have),
        tags=frozenset(tag for target in have for tag in newest(target)),
        until=past.until,
        unread=frozenset(unread),
    )


def _refuse(message: str, hint: str, *, strict: bool, reporter: Reporter) -> None:
    if strict:
        raise InputError(message, hint=hint)
    reporter.warn(f"{message}; {hint}")


def newest(target: str) -> list[str]:
    """The tags without a date that people pull, and a mirror's: they are moved, never removed."""
    images = [target, *(f"{target}-{word}" for word in (*Arch, "base"))]
    return [*images, *(mirror_items.newest(target, arch) for arch in Arch)]


def _own(project: Project, targets: Iterable[str]) -> Iterable[LockText]:
    for target in targets:
        path = locks.lock_path(project.images, target)
        yield LockText(target=target, place=str(path), data=path.read_bytes())


def _artifacts(texts: Iterable[LockText], reporter: Reporter) -> tuple[set[Digest], set[str]]:
    """The artifacts of inputs of these locks; targets of those that this imgbuild cannot read."""
    found, unread = set[Digest](), set[str]()
    for text in texts:
        try:
            lock = msgspec.json.decode(text.data, type=Lock)
        except msgspec.DecodeError as error:
            reporter.warn(
                f"{text.place} cannot be read ({error}): inputs of {text.target} are kept"
            )
            unread.add(text.target)
            continue
        found |= {digest_of(mirror_items.artifact(lock, arch)) for arch in lock.arch}
    return found, unread
