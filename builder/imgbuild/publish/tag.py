"""Tags an image if the repository contains all its parts (`registry tag`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from imgbuild import codec
from imgbuild.errors import InputError, IntegrityError
from imgbuild.oci.documents import Descriptor, Document, Index, Manifest
from imgbuild.oci.image import LISTS
from imgbuild.registry.client import RegistryClient
from imgbuild.registry.image_reference import TAG, ImageReference, Repository
from imgbuild.system.threads import StopFlag, run_for_each
from imgbuild.values import Digest

THREADS = 8
# Tags that belong to the image of the digest in their name: the referrers of registries without
# that part of the API, and signatures, attestations and SBOMs as cosign tags them.
ATTACHED_TAG = re.compile(r"sha256-([0-9a-f]{64})(?:\.[A-Za-z0-9]+)?")


class ChangedTag(msgspec.Struct, frozen=True, kw_only=True):
    """A tag that was set, and its previous digest, or "" for a new tag."""

    name: str
    digest: Digest
    before: str

    @property
    def moved(self) -> bool:
        """Whether the tag referred to another image before."""
        return self.before != self.digest

    def __str__(self) -> str:
        if not self.moved:
            return f"{self.name} (unchanged)"
        return f"{self.name} (was {self.before})" if self.before else f"{self.name} (new)"


def tags_by_digest(
    client: RegistryClient, repository: Repository, names: Iterable[str]
) -> dict[Digest, tuple[str, ...]]:
    """Return the tags in `names` by the digest to which they refer.

    Tags that no longer exist are omitted.
    """
    order = sorted(names)
    named = run_for_each(
        order, lambda name, _: client.resolve(repository.tagged(name)), threads=THREADS
    )
    tags_by_digest: dict[Digest, tuple[str, ...]] = {}
    for name, descriptor in zip(order, named, strict=True):
        if descriptor is not None:
            tags_by_digest[descriptor.digest] = (*tags_by_digest.get(descriptor.digest, ()), name)
    return tags_by_digest


def set_tag(
    client: RegistryClient, repository: Repository, document: Document, name: str
) -> ChangedTag:
    """Set the tag `name` to `document`, unless the tag already refers to `document`."""
    digest = document.digest
    before = client.resolve(repository.tagged(name))
    if before is None or before.digest != digest:
        client.put_manifest(repository, document.data, document.media_type, tag=name)
    return ChangedTag(name=name, digest=digest, before=before.digest if before else "")


def tag_image(
    client: RegistryClient, reference: ImageReference, names: Sequence[str]
) -> tuple[ChangedTag, ...]:
    """Set the tags `names` on the image `reference`, which must be complete.

    Raises InputError for an invalid tag, NotFound for a missing image, and IntegrityError for a
    missing part of the image.
    """
    for name in names:
        if TAG.fullmatch(name) is None:
            message = f"{name!r} is not a valid tag"
            hint = (
                "use up to 128 letters, digits, '_', '.' and '-', starting with a letter, a "
                "digit or '_'"
            )
            raise InputError(message, hint=hint)
    top = client.manifest(reference)
    refuse_broken(client, reference.repository, top)
    repository = reference.repository
    return tuple(set_tag(client, repository, top, name) for name in names)


def refuse_broken(client: RegistryClient, repository: Repository, top: Document) -> None:
    """Raise IntegrityError, with the missing parts, if the image `top` is incomplete."""
    manifests = [top]
    if top.media_type in LISTS:
        listed = codec.decode(top.data, Index, file=f"{repository}@{top.digest}").manifests
        references = [repository.with_digest(item.digest) for item in listed]
        manifests = run_for_each(
            references, lambda reference, _: client.manifest(reference), threads=THREADS
        )
    blobs: dict[Digest, Descriptor] = {}
    for document in manifests:
        manifest = codec.decode(document.data, Manifest, file=f"{repository}@{document.digest}")
        blobs |= {blob.digest: blob for blob in (manifest.config, *manifest.layers)}

    def _size(blob: Descriptor, _: StopFlag) -> int | None:
        return client.has(repository, blob.digest)

    sizes = run_for_each(list(blobs.values()), _size, threads=THREADS)
    absent = [
        blob.digest
        for blob, size in zip(blobs.values(), sizes, strict=True)
        if size is None or size != blob.size
    ]
    if absent:
        message = f"{repository}@{top.digest} is incomplete: {', '.join(absent)}"
        hint = "push the image again; tags were not changed"
        raise IntegrityError(message, hint=hint)
