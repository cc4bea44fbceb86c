"""Reads a base image from a registry, given a reference with a digest."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from imgbuild.cache.context import Context
from imgbuild.cache.download import fetch_all
from imgbuild.errors import InputError, IntegrityError
from imgbuild.lock.resolution import LockedFile, RegistryLayer
from imgbuild.oci import documents
from imgbuild.registry import image_reference
from imgbuild.registry.client import RegistryClient
from imgbuild.registry.image import RegistrySource, image_for_arch
from imgbuild.registry.image_reference import ImageReference
from imgbuild.values import Arch, Digest


class BaseImage(msgspec.Struct, frozen=True, kw_only=True):
    """A registry image for one architecture. `settings` are its runtime settings."""

    manifest: Digest
    layers: tuple[RegistryLayer, ...]
    settings: dict[str, object]


def parse_base_reference(text: str) -> ImageReference:
    """Parse `[host/]name[:tag]@sha256:…`.

    Raises InputError if the reference is invalid or has no digest.
    """
    try:
        reference = image_reference.parse_reference(text)
    except InputError:
        reference = None
    if reference is None or reference.digest is None:
        message = f"{text!r} is not an image reference with a digest"
        raise InputError(message, hint="use host/name@sha256:…, as shown by `skopeo inspect`")
    return reference


def read_base_image(text: str, arch: Arch, client: RegistryClient | None = None) -> BaseImage:
    """Read the manifest and configuration of the image `text` for `arch`.

    Raises InputError if the image does not support `arch` or a layer type is not supported,
    IntegrityError if a document does not match its digest, and FetchFailed if the registry does not
    serve a document.
    """
    try:
        image = image_for_arch(
            RegistrySource(client or RegistryClient(), parse_base_reference(text)), arch
        )
    except (InputError, IntegrityError) as error:  # they contain only digests
        error.message = f"{text}: {error.message}"
        raise
    layers = tuple(
        RegistryLayer(
            digest=layer.digest,
            size=layer.size,
            diff_id=diff_id,
            media_type=documents.LAYER_TYPES[layer.media_type],
        )
        for layer, diff_id in zip(image.layers, image.diff_ids, strict=True)
    )
    return BaseImage(manifest=image.manifest.digest, layers=layers, settings=image.settings)


def fetch_layers(
    text: str, layers: Sequence[LockedFile], context: Context, client: RegistryClient | None = None
) -> None:
    """Fetch those of `layers`, from the image `text`, that the store lacks."""
    repository, client = (
        parse_base_reference(text).repository,
        client or RegistryClient(offline=context.http.offline),
    )
    requests = [client.file_request(repository, layer, layer=True) for layer in layers]
    fetch_all(requests, client.context(context), title=f"layers of {repository.name}")
