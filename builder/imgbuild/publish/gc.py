"""Deletes old dated images of a project's targets from a repository.

Only manifests are deleted. The registry's garbage collection deletes blobs.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from imgbuild import codec
from imgbuild.lock.lock_file import read_lock
from imgbuild.matrix.project_paths import Project
from imgbuild.oci.documents import Index
from imgbuild.oci.image import LISTS
from imgbuild.plan import image_digests, tags
from imgbuild.publish.tag import ATTACHED_TAG, tags_by_digest
from imgbuild.registry.image_reference import Repository
from imgbuild.system.threads import StopFlag, run_for_each
from imgbuild.values import Digest

if TYPE_CHECKING:
    from imgbuild.registry.client import RegistryClient

COLLECTION_NOTE = (
    "to free the space, run the registry's garbage collection; for docker-registry, while no "
    "push is running: docker-registry garbage-collect CONFIG.yml"
)
THREADS = 8


class OldImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image that has only old, dated tags.

    `manifests` lists the manifests of the index that no other image uses. `attached` lists tags of
    signatures and SBOMs.
    """

    digest: Digest
    tags: tuple[str, ...]
    manifests: tuple[Digest, ...] = ()
    attached: tuple[str, ...] = ()


class OldImages(msgspec.Struct, frozen=True, kw_only=True):
    """The old images of a repository. `kept` is the number of other tagged images."""

    repository: str
    kept: int
    old: tuple[OldImage, ...]
    deleted: bool = False


def locked_digests(project: Project) -> frozenset[Digest]:
    """Return the digests of all locked images of `project`. Raises LockStale for a stale lock."""
    digests: set[Digest] = set()
    for target in project.locked_targets():
        target_digests = image_digests.read_digests(
            project.images, read_lock(project.images, target)
        )
        digests |= {
            target_digests.digest,
            *(image.manifest for image in target_digests.arch.values()),
        }
    return frozenset(digests)


def find_old_images(
    client: RegistryClient,
    repository: Repository,
    targets: Collection[str],
    retained: Collection[Digest],
    before: datetime.date,
) -> OldImages:
    """Return the images that have only tags of `targets` with dates before `before`.

    Images whose digest is in `retained` are excluded.
    """
    names = tuple(client.tags(repository))
    images = tags_by_digest(
        client, repository, (name for name in names if not ATTACHED_TAG.match(name))
    )
    indexed = run_for_each(
        list(images), partial(_listed_manifests, client, repository), threads=THREADS
    )
    listed = dict(zip(images, indexed, strict=True))
    old = {
        digest: names_of
        for digest, names_of in images.items()
        if digest not in retained and all(_is_old(tag, targets, before) for tag in names_of)
    }
    used = {*images, *retained}.union(*(listed[digest] for digest in images if digest not in old))
    sweep = []
    for digest, names_of in sorted(old.items(), key=lambda item: item[1]):
        manifests = tuple(manifest for manifest in listed[digest] if manifest not in used)
        attached = _attached_tags(names, (digest, *manifests))
        sweep.append(OldImage(digest=digest, tags=names_of, manifests=manifests, attached=attached))
    return OldImages(repository=str(repository), kept=len(images) - len(old), old=tuple(sweep))


def delete_old_images(
    client: RegistryClient, repository: Repository, sweep: OldImages
) -> OldImages:
    """Delete the images in `sweep` and their attachments. Returns the deleted images.

    An image that was tagged again in the meantime is kept.
    """
    named = tags_by_digest(client, repository, client.tags(repository))
    removed = []
    with client.reporter.progress(f"deleting from {repository}", len(sweep.old), unit="images") as (
        bar
    ):
        for image in sweep.old:
            if set(named.get(image.digest, ())) <= set(image.tags):
                for tag in image.attached:
                    _delete_tag(client, repository, tag)
                for digest in (image.digest, *image.manifests):
                    client.delete(repository, digest)
                removed.append(image)
            else:
                client.reporter.warn(f"keeping {image.digest}, which now has another tag")
            bar.advance(1)
    return msgspec.structs.replace(sweep, old=tuple(removed), deleted=True)


def _delete_tag(client: RegistryClient, repository: Repository, tag: str) -> None:
    attached = client.resolve(repository.tagged(tag))
    if attached is not None:
        client.delete(repository, attached.digest)


def _listed_manifests(
    client: RegistryClient, repository: Repository, digest: Digest, _: StopFlag
) -> tuple[Digest, ...]:
    """Return the manifests in the index `digest`, or () if `digest` is a manifest."""
    document = client.manifest(repository.with_digest(digest))
    if document.media_type not in LISTS:
        return ()
    index = codec.decode(document.data, Index, file=f"{repository}@{digest}")
    return tuple(listed.digest for listed in index.manifests)


def _attached_tags(names: Iterable[str], digests: Iterable[Digest]) -> tuple[str, ...]:
    belongs = {digest.removeprefix("sha256:") for digest in digests}
    tags = (
        name for name in names if (match := ATTACHED_TAG.fullmatch(name)) and match[1] in belongs
    )
    return tuple(sorted(tags))


def _is_old(tag: str, targets: Collection[str], before: datetime.date) -> bool:
    match = tags.DATED_TAG.fullmatch(tag)
    if match is None or not any(tags.is_tag_of(match[1], target) for target in targets):
        return False
    try:
        day = tags.day_of_tag(tag, match[1])
    except ValueError:
        return False
    return day is not None and day < before
