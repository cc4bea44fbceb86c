"""From a sealed lock to an OCI layout on disk, with the sealed digest.

lock and seal → plan → fetch → assemble → OCI layout
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from imgbuild.assemble.inputs import Inputs
from imgbuild.assemble.layers import LayerJob
from imgbuild.assemble.workers import assemble_all
from imgbuild.cache.store import Store
from imgbuild.errors import IntegrityError
from imgbuild.lock.lock import Lock
from imgbuild.oci import layout
from imgbuild.plan import seal as seals
from imgbuild.plan.plan import Layer, RegistryRecipe, base_of, plan
from imgbuild.plan.seal import ImageDocuments, Seal
from imgbuild.values import Arch, Digest, digest_of


class BuiltImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image in a layout on disk. `size` is the bytes of a pull; `made` counts layers."""

    target: str
    digest: Digest
    arch: dict[Arch, Digest]
    output: Path
    size: int
    made: int
    unchanged: bool


def build(
    lock: Lock,
    sealed: Seal,
    arches: Sequence[Arch],
    output: Path,
    inputs: Inputs,
    *,
    processes: int,
    verify: bool,
    only_base: bool = False,
) -> BuiltImage:
    """Write the image of `lock` on `arches` to the OCI layout `output`, with the sealed digest.

    With `only_base` the image has the base's layers alone; its digest is not one of digests.json.
    """
    plans = {arch: plan(lock, arch) for arch in arches}
    if only_base:
        plans = {arch: base_of(planned) for arch, planned in plans.items()}
    known = seals.sealed_records(sealed)
    documents = {
        arch: seals.documents(planned, known, None if only_base else sealed.arch[arch].floors)
        for arch, planned in plans.items()
    }
    digest = seals.top_digest({arch: document.manifest for arch, document in documents.items()})
    layout.refuse_others(output, lock.target)
    unchanged = not verify and layout.check(output, digest, inputs.context.reporter)
    made = 0
    if not unchanged:
        layers = [layer for planned in plans.values() for layer in planned.layers]
        made = make_missing(lock, layers, sealed, inputs, processes=processes, verify=verify)
        layout.write(output, _images(documents, inputs.store), lock.target)
    return BuiltImage(
        target=lock.target,
        digest=digest,
        arch={arch: digest_of(document.manifest) for arch, document in documents.items()},
        output=output,
        size=sum(document.size for document in documents.values()),
        made=made,
        unchanged=unchanged,
    )


def make_missing(
    lock: Lock,
    wanted: Iterable[Layer],
    sealed: Seal,
    inputs: Inputs,
    *,
    processes: int,
    verify: bool = False,
) -> int:
    """Make those of the `wanted` layers that the store lacks; returns how many.

    IntegrityError if one does not come out as sealed. With `verify` all are made, and inflated.
    """
    known = seals.sealed_records(sealed)
    layers = {layer.id: layer for layer in wanted}
    due = [
        layer
        for layer in layers.values()
        if verify or inputs.store.blob(known[layer.id].digest) is None
    ]
    if not verify:
        inputs.take_published(lock, {layer.id: known[layer.id] for layer in due})
        due = [layer for layer in due if inputs.store.blob(known[layer.id].digest) is None]
    inputs.fetch(lock, due)
    jobs = [
        LayerJob(layer=layer, record=known[layer.id], keep=True, verify=verify)
        for layer in due
        if not isinstance(layer.recipe, RegistryRecipe)
    ]
    assemble_all(jobs, inputs.context, processes=processes)
    return len(due)


def _images(documents: dict[Arch, ImageDocuments], store: Store) -> dict[Arch, layout.ImageFiles]:
    return {
        arch: layout.ImageFiles(
            config=document.config,
            manifest=document.manifest,
            layers={layer.digest: made(store, layer.digest) for layer in document.layers},
        )
        for arch, document in documents.items()
    }


def made(store: Store, digest: Digest) -> Path:
    """The blob of a layer that was just made; IntegrityError if it was removed."""
    path = store.blob(digest)
    if path is None:
        message = f"layer {digest} was removed from the cache {store.root} while it was in use"
        raise IntegrityError(message, hint="run the same command again")
    return path
