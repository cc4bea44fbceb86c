"""Loads images of OCI layouts into Docker or podman for `imgbuild load`."""

from __future__ import annotations

import msgspec

from imgbuild.cache import checked_layers
from imgbuild.cache.store import Store
from imgbuild.container import engine
from imgbuild.container.engine import Engine
from imgbuild.errors import WorkFailed
from imgbuild.oci import archive
from imgbuild.oci.image import PlatformImage
from imgbuild.oci.layout import Layout
from imgbuild.system.reporter import SILENT_REPORTER, Reporter
from imgbuild.values import Arch, Digest


class EngineImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image in an engine. Containers run `id`, because other processes can move the name."""

    reference: str
    id: Digest


def load_image(
    container_engine: Engine,
    layout: Layout,
    arch: Arch,
    tag: str,
    *,
    reporter: Reporter = SILENT_REPORTER,
) -> EngineImage:
    """Load the image for `arch` into an engine as `tag`, unless the engine already has the image.

    Raises WorkFailed if the loaded image differs from the layout, and IntegrityError if the content
    of a layer does not match the diff ID.
    """
    stored = layout.image(arch)
    if container_engine.kind == "podman":  # Docker checks the diff IDs
        checked_layers.require_image(Store.open(), layout, arch, reporter=reporter)
    reference = archive.complete_reference(tag)
    present = engine.inspect_image(container_engine, reference)
    if present is not None and _is_same_image(present, stored):
        reporter.detail(f"{tag} already exists in {container_engine.kind}")
        return EngineImage(reference=reference, id=present.id)
    engine_diff_ids = engine.diff_ids(container_engine)
    pairs = zip(stored.layers, stored.diff_ids, strict=True)
    # Imports the clients of engines, which takes 0.2 s, only if they are needed.
    from imgbuild.container.transfer import ImageTransfer, transfer_image

    job = ImageTransfer(
        engine=container_engine,
        layout=layout,
        arch=arch,
        reference=reference,
        title=f"loading {tag} into {container_engine.kind}",
        there=frozenset(layer.digest for layer, diff_id in pairs if diff_id in engine_diff_ids),
    )
    transfer_image(job, reporter)
    # Another process may have loaded a different image with the same name.
    names = (reference, stored.manifest.digest, stored.config.digest)
    inspected = (engine.inspect_image(container_engine, name) for name in names)
    same = next((image for image in inspected if image and _is_same_image(image, stored)), None)
    if same is None:
        present = engine.inspect_image(container_engine, reference)
        name = present.id if present is not None else "no image"
        message = (
            f"{container_engine.kind} {container_engine.version} stored {name} as {reference}, not"
            f" as {stored.manifest.digest} from {layout.path}"
        )
        raise WorkFailed(message, hint=f"run {container_engine.kind} image rm {reference}")
    return EngineImage(reference=reference, id=same.id)


def _is_same_image(inspected: engine.InspectedImage, stored: PlatformImage) -> bool:
    """Return whether an image in an engine is the image of a layout.

    The image ID is the digest of the manifest if the engine stores OCI documents. Otherwise, it is
    the digest of the configuration.
    """
    image_ids = (stored.manifest.digest, stored.config.digest)
    return inspected.id in image_ids and inspected.diff_ids in ((), stored.diff_ids)
