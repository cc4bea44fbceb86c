"""Plans the blobs, documents and tags of a push."""

# A separate module: a pure function.
from __future__ import annotations

import datetime
from collections.abc import Collection

import msgspec

from imgbuild.lock.lock_file import Lock
from imgbuild.oci import documents
from imgbuild.oci.documents import Document
from imgbuild.plan import image_digests, tags
from imgbuild.plan.image_digests import ImageDocuments, TargetDigests
from imgbuild.plan.plan import Layer
from imgbuild.values import Arch, Bytes, Digest, digest_of

CONFIG = "configuration"


class PlannedBlob(msgspec.Struct, frozen=True, kw_only=True):
    """A blob of an image: a layer with its recipe, or a configuration with its bytes."""

    name: str
    digest: Digest
    size: Bytes
    arches: tuple[Arch, ...]
    layer: Layer | None = None
    data: bytes = b""


class PushPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The uploads for a target: distinct blobs with bottom layers first, manifests, and tags.

    `top` is the document to tag. `only_base` is set for an image with only the layers of the base.
    """

    target: str
    lock: Lock
    target_digests: TargetDigests
    arches: tuple[Arch, ...]
    only_base: bool
    blobs: tuple[PlannedBlob, ...]
    manifests: tuple[Document, ...]
    top: Document
    tags: tuple[str, ...]

    @property
    def small_documents(self) -> tuple[Document, ...]:
        """All manifests, followed by the index, if any."""
        return self.manifests if self.top in self.manifests else (*self.manifests, self.top)


def push_plan(
    lock: Lock,
    target_digests: TargetDigests,
    arches: Collection[Arch],
    *,
    date: datetime.date,
    only_base: bool = False,
) -> PushPlan:
    """Return the plan to push the image of `lock` for `arches`.

    With `only_base`, the image has only the layers of the base. The tags come from `plan.tags`,
    with and without the date.
    """
    plans, image_documents = image_digests.plan_documents(
        lock, target_digests, sorted(arches), only_base=only_base
    )
    manifests = {arch: document.manifest for arch, document in image_documents.items()}
    small_documents = tuple(
        Document(manifest, documents.MANIFEST) for manifest in manifests.values()
    )
    index = Document(documents.create_index(manifests), documents.INDEX)
    stable = tags.stable_tag(lock.target, arches, target_digests.arch, base=only_base)
    return PushPlan(
        target=lock.target,
        lock=lock,
        target_digests=target_digests,
        arches=tuple(plans),
        only_base=only_base,
        blobs=_blobs({arch: planned.layers for arch, planned in plans.items()}, image_documents),
        manifests=small_documents,
        top=small_documents[0] if len(small_documents) == 1 else index,
        tags=(tags.dated_tag(stable, date), stable),  # if the last one exists, all of them do
    )


def _blobs(
    layers: dict[Arch, tuple[Layer, ...]], image_documents: dict[Arch, ImageDocuments]
) -> tuple[PlannedBlob, ...]:
    """Return each distinct blob, with its first name and all its architectures."""
    blobs: dict[Digest, PlannedBlob] = {}
    for arch, document in image_documents.items():
        arch_blobs = [
            PlannedBlob(
                name=layer.name, digest=record.digest, size=record.size, arches=(), layer=layer
            )
            for layer, record in zip(layers[arch], document.layers, strict=True)
        ]
        config = document.config
        digest = digest_of(config)
        arch_blobs.append(
            PlannedBlob(name=CONFIG, digest=digest, size=len(config), arches=(), data=config)
        )
        for blob in arch_blobs:
            seen = blobs.get(blob.digest, blob)
            among = tuple(sorted({*seen.arches, arch}))
            blobs[blob.digest] = msgspec.structs.replace(seen, arches=among)
    return tuple(blobs.values())
