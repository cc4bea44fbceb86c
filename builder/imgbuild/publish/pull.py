"""Pulls an image from a registry into an OCI layout on disk, with its digest unchanged.

Cached layers are linked into the layout, and other layers are first downloaded into the cache.
Interrupted downloads are resumed. The digests of all blobs and the diff IDs of all layers are
checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from imgbuild.cache import checked_layers
from imgbuild.cache.context import Context
from imgbuild.cache.download import KEPT_NOTE, fetch_file
from imgbuild.cache.store import Store
from imgbuild.oci import documents, layout
from imgbuild.oci.documents import Descriptor
from imgbuild.oci.image import PlatformImage
from imgbuild.oci.reader import LayerFile
from imgbuild.registry.blobs import locked_blob
from imgbuild.registry.client import RegistryClient
from imgbuild.registry.image import RegistryImage, read_registry_image
from imgbuild.registry.image_reference import ImageReference
from imgbuild.registry.manifests import convert_not_found
from imgbuild.system.reporter import ProgressBar
from imgbuild.system.threads import StopFlag, run_for_each
from imgbuild.values import Arch, Digest

DOWNLOADS = 4


class PulledImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image in a layout on disk, with the total and the downloaded size in bytes."""

    reference: str
    digest: Digest
    arch: dict[Arch, Digest]
    output: Path
    size: int
    moved: int
    unchanged: bool


def pull_image(
    client: RegistryClient,
    reference: ImageReference,
    output: Path,
    store: Store,
    arch: Arch | None = None,
) -> PulledImage:
    """Write the image `reference`, or only its manifest for `arch`, to the layout `output`."""
    registry_image = read_registry_image(client, reference, arch)
    top, images = registry_image.top, registry_image.images
    size = sum(image.size for image in images.values())
    layout.refuse_others(output, layout_name(reference))
    unchanged = layout.has_complete_image(output, top.digest, client.reporter)
    layers = {layer.digest: layer for image in images.values() for layer in image.layers}
    near = {digest: _local_blob(store, output, layer) for digest, layer in layers.items()}
    moved = sum(layer.size for digest, layer in layers.items() if near[digest] is None)
    paths = _checked_blobs(client, reference, images.values(), near, store)
    if not unchanged:
        small_documents = [
            data for image in images.values() for data in (image.config_data, image.manifest_data)
        ]
        placed = [(layers[digest], path) for digest, path in paths.items()]
        layout.write_copied_layout(
            output,
            _top_descriptor(registry_image),
            [*small_documents, top.data],
            placed,
            layout_name(reference),
        )
    return PulledImage(
        reference=f"{reference.repository}@{top.digest}",
        digest=top.digest,
        arch={platform_arch: image.manifest.digest for platform_arch, image in images.items()},
        output=output,
        size=size,
        moved=moved,
        unchanged=unchanged,
    )


def _top_descriptor(registry_image: RegistryImage) -> Descriptor:
    if registry_image.top.media_type == documents.INDEX:
        return registry_image.top.descriptor
    (arch,) = registry_image.images
    return documents.create_descriptor(
        registry_image.top.media_type, registry_image.top.data, arch=arch
    )


def layout_name(reference: ImageReference) -> str:
    """Return the image's name in a layout: the tag, or the end of the repository name."""
    return reference.tag or reference.name.rpartition("/")[2]


def _local_blob(store: Store, output: Path, layer: Descriptor) -> Path | None:
    cached = store.blob(layer.digest)
    if cached is not None:
        return cached
    return layout.blob_path(output, layer.digest) if layout.has_intact_blob(output, layer) else None


def _checked_blobs(
    client: RegistryClient,
    reference: ImageReference,
    images: Iterable[PlatformImage],
    near: Mapping[Digest, Path | None],
    store: Store,
) -> dict[Digest, Path]:
    """Return the blobs of all layers. Blobs that are not in `near` are downloaded into the store.

    Raises IntegrityError if the content of a blob does not match the diff ID.
    """
    layers: dict[Digest, Descriptor] = {}
    diff_ids: dict[Digest, set[Digest]] = {}
    for image in images:
        for layer, diff_id in zip(image.layers, image.diff_ids, strict=True):
            layers[layer.digest] = layer
            if not checked_layers.is_noted(store, layer.digest, diff_id):
                diff_ids.setdefault(layer.digest, set()).add(diff_id)
    paths = {digest: path for digest, path in near.items() if path is not None}
    unread = [
        layer for digest, layer in layers.items() if digest not in paths or digest in diff_ids
    ]
    total = sum(layer.size for layer in unread if layer.digest not in paths)
    if not unread:
        return paths
    with client.reporter.progress(f"pulling {reference.repository}", total) as bar:

        def _fetch(layer: Descriptor, stop: StopFlag) -> Path:
            path = paths.get(layer.digest)
            path = path or _download_layer(client, reference, layer, store, bar, stop)
            for diff_id in diff_ids.get(layer.digest, ()):
                file = LayerFile(path=path, diff_id=diff_id)
                checked_layers.require_layer(
                    store, layer.digest, file, stop.with_check(lambda _: None)
                )
            return path

        fetched = run_for_each(unread, _fetch, threads=DOWNLOADS, retained=KEPT_NOTE)
    return paths | {layer.digest: path for layer, path in zip(unread, fetched, strict=True)}


def _download_layer(
    client: RegistryClient,
    reference: ImageReference,
    layer: Descriptor,
    store: Store,
    bar: ProgressBar,
    stop: StopFlag,
) -> Path:
    locked = locked_blob(reference.repository, layer)
    request = client.file_request(reference.repository, locked, layer=True)
    with convert_not_found(request.shown):
        return fetch_file(
            request, Context(store, client.http.client, client.reporter), bar.advance, stop
        )
