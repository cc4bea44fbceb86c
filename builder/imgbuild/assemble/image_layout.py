"""Builds an OCI layout with the locked digest from a lock.

Steps: lock and digests → plan → fetch → assemble → OCI layout
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from imgbuild.assemble.inputs import Inputs
from imgbuild.assemble.layer_contents import LayerJob
from imgbuild.assemble.workers import assemble_all
from imgbuild.cache.store import Store
from imgbuild.errors import IntegrityError
from imgbuild.lock.lock_file import Lock
from imgbuild.oci import layout
from imgbuild.plan import image_digests
from imgbuild.plan.image_digests import ImageDocuments, TargetDigests
from imgbuild.plan.plan import Layer, RegistryRecipe
from imgbuild.values import Arch, Digest, digest_of


class BuiltImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image in an OCI layout.

    `size` is the download size in bytes, and `assembled` is the number of layers that were built.
    """

    target: str
    digest: Digest
    arch: dict[Arch, Digest]
    output: Path
    size: int
    assembled: int = msgspec.field(name="made")
    unchanged: bool


def build_layout(
    lock: Lock,
    target_digests: TargetDigests,
    arches: Sequence[Arch],
    output: Path,
    inputs: Inputs,
    *,
    processes: int,
    verify: bool,
    only_base: bool = False,
) -> BuiltImage:
    """Write the image of `lock` for `arches` to the OCI layout `output`, with the locked digest.

    If `only_base` is set, the image has only the layers of the base. digests.json does not contain
    the digest of this image.
    """
    plans, documents = image_digests.plan_documents(
        lock, target_digests, arches, only_base=only_base
    )
    digest = image_digests.top_digest(
        {arch: document.manifest for arch, document in documents.items()}
    )
    layout.refuse_others(output, lock.target)
    unchanged = not verify and layout.has_complete_image(output, digest, inputs.context.reporter)
    new_count = 0
    if not unchanged:
        layers = [layer for planned in plans.values() for layer in planned.layers]
        new_count = make_missing(
            lock, layers, target_digests, inputs, processes=processes, verify=verify
        )
        layout.write_layout(output, _images(documents, inputs.store), lock.target)
    return BuiltImage(
        target=lock.target,
        digest=digest,
        arch={arch: digest_of(document.manifest) for arch, document in documents.items()},
        output=output,
        size=sum(document.size for document in documents.values()),
        assembled=new_count,
        unchanged=unchanged,
    )


def make_missing(
    lock: Lock,
    requested: Iterable[Layer],
    target_digests: TargetDigests,
    inputs: Inputs,
    *,
    processes: int,
    verify: bool = False,
) -> int:
    """Build the `requested` layers that the store lacks. Returns the number of built layers.

    If `verify` is set, all layers are built and decompressed. Raises IntegrityError if a digest
    differs from the locked digest.
    """
    layer_records = image_digests.layer_records(target_digests)
    layers = {layer.id: layer for layer in requested}
    missing = [
        layer
        for layer in layers.values()
        if verify or inputs.store.blob(layer_records[layer.id].digest) is None
    ]
    if not verify:
        inputs.link_published_layers(lock, {layer.id: layer_records[layer.id] for layer in missing})
        missing = [
            layer for layer in missing if inputs.store.blob(layer_records[layer.id].digest) is None
        ]
    inputs.fetch_inputs(lock, missing)
    jobs = [
        LayerJob(layer=layer, record=layer_records[layer.id], keep=True, verify=verify)
        for layer in missing
        if not isinstance(layer.recipe, RegistryRecipe)
    ]
    assemble_all(jobs, inputs.context, processes=processes)
    return len(missing)


def _images(documents: dict[Arch, ImageDocuments], store: Store) -> dict[Arch, layout.ImageFiles]:
    return {
        arch: layout.ImageFiles(
            config=document.config,
            manifest=document.manifest,
            layers={layer.digest: layer_blob(store, layer.digest) for layer in document.layers},
        )
        for arch, document in documents.items()
    }


def layer_blob(store: Store, digest: Digest) -> Path:
    """Return the path of the blob of a layer that this process built.

    Raises IntegrityError if the blob was removed.
    """
    path = store.blob(digest)
    if path is None:
        message = f"layer {digest} was removed from the cache {store.root} while it was in use"
        raise IntegrityError(message, hint="run the same command again")
    return path
