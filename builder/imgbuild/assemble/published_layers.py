"""The layers of a published image: their records, from digests.json, and where their blobs are.

So an extension needs nothing of the published image to know its digests, and a build takes those
layers from a registry or a layout and makes only the added ones.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from imgbuild.assemble import mirror_items
from imgbuild.assemble.inputs import Inputs
from imgbuild.cache.store import Store
from imgbuild.errors import FetchFailed, IntegrityError
from imgbuild.lock import published as extend
from imgbuild.lock.published import SEAL, PublishedTarget
from imgbuild.lock.resolution import RegistryLayer
from imgbuild.matrix.model import Matrix
from imgbuild.oci.layer import LayerRecord
from imgbuild.plan import seal as seals
from imgbuild.plan.plan import Layer
from imgbuild.registry import base_image
from imgbuild.values import Digest, digest_of_file

LAYOUT = "oci:"


def records(matrix: Matrix, name: str) -> dict[Digest, LayerRecord]:
    """Layer id → record of what target `name` extends; empty if it extends nothing.

    LockStale if the seal is not of the lock, or other layers would follow from it here.
    """
    found = extend.extended_target(matrix, name)
    if found is None:
        return {}
    hint = "copy both files again, or use the version of imgbuild that published them"
    return seals.sealed_records(seals.read_seal_at(found.folder / SEAL, found.lock, hint=hint))


def take(
    name: str, due: Sequence[Layer], known: Mapping[Digest, LayerRecord], inputs: Inputs
) -> None:
    """Fetch those of `due` that are published into the store, if the matrix says where they are.

    A mirror is asked first; if no other source is allowed, they are made from their inputs later.
    FetchFailed if the source lacks one, IntegrityError if it has something else.
    """
    found = extend.extended_target(inputs.matrix, name)
    published = records(inputs.matrix, name)
    wanted = [known[layer.id] for layer in due if layer.id in published]
    if found is None or not found.image or not wanted:
        return
    if found.image.startswith(LAYOUT):
        for record in wanted:
            _copy(_blob(inputs.matrix, found, record.digest), record.digest, inputs.store)
        return
    place = f"{found.image.partition('@')[0]}@{found.digest}"
    if inputs.offline:
        message = f"{len(wanted)} layers of {place} are not in {inputs.store.root}"
        raise FetchFailed(message, hint="run once without --offline")
    left = _layers(wanted)
    if inputs.mirror is not None:
        items = [mirror_items.layer(item) for item in left]
        fetched = inputs.mirror.bring(items, inputs.context, title=f"layers of {found.name}")
        left = [] if inputs.mirror.only else [item for item in left if item.digest not in fetched]
    if left:
        base_image.fetch_layers(place, left, inputs.context)


def _layers(wanted: Iterable[LayerRecord]) -> list[RegistryLayer]:
    return [
        RegistryLayer(digest=record.digest, size=record.size, diff_id=record.diff_id)
        for record in wanted
    ]


def _blob(matrix: Matrix, found: PublishedTarget, digest: Digest) -> Path:
    folder = matrix.folder if isinstance(matrix, extend.Extended) else Path()
    layout = folder / found.image.removeprefix(LAYOUT)
    path = layout / "blobs/sha256" / digest.removeprefix("sha256:")
    if not path.is_file():
        message = f"{layout} has no layer {digest}, which is one of {found.name}"
        hint = "name the layout of the image that is published, or take `image` out of the matrix"
        raise FetchFailed(message, hint=hint)
    return path


def _copy(path: Path, digest: Digest, store: Store) -> None:
    with store.scratch() as scratch:
        copy = Path(shutil.copyfile(path, scratch / "blob"))
        with copy.open("rb") as file:
            found = digest_of_file(file)
        if found != digest:
            message = f"{path} has the digest {found}"
            raise IntegrityError(message, hint="the layout is damaged: copy the image again")
        store.add_blob(copy, digest)
