"""Reads and checks documents of registry images, and reads their layers on request.

`RegistrySource` implements `ImageSource` of `oci.image`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import msgspec

from imgbuild import codec
from imgbuild.cache.store import Store
from imgbuild.errors import InputError
from imgbuild.oci import documents
from imgbuild.oci.documents import Descriptor, Document, Index
from imgbuild.oci.image import LISTS, PlatformImage, images_by_arch, platform_image
from imgbuild.oci.reader import LayerFile, check_digests
from imgbuild.registry import manifests
from imgbuild.registry.client import RegistryClient
from imgbuild.registry.image_reference import ImageReference
from imgbuild.values import Arch, Digest

OCI_DOCUMENT_TYPES = (documents.INDEX, documents.MANIFEST)


class RegistrySource:
    """A registry image. `fetched` is its index or only manifest."""

    def __init__(self, client: RegistryClient, reference: ImageReference) -> None:
        self.client = client
        self.reference = reference
        self.repository = reference.repository
        self.name = str(reference)
        self.tag = "" if reference.digest else reference.tag or ""
        self._lock = threading.Lock()
        self._store: Store | None = None  # shared by all threads, opened when a layer is read
        self.fetched = client.manifest(reference)
        self.top = self.fetched.descriptor

    def read_document(self, descriptor: Descriptor) -> bytes:
        """Implements `ImageSource.read_document`."""
        if descriptor.digest == self.top.digest:
            return self.fetched.data
        if descriptor.media_type in manifests.TYPES:
            return self.client.manifest(self.repository.with_digest(descriptor.digest)).data
        return self.client.blob(self.repository, descriptor)

    def size(self, layer: Descriptor) -> int | None:
        """Implements `ImageSource.size`."""
        return self.client.has(self.repository, layer.digest)

    def read(
        self, layer: Descriptor, advance: Callable[[int], object], diff_id: Digest | None = None
    ) -> None:
        """Implements `ImageSource.read`.

        While the layer is read, a copy is stored in the cache's temporary folder.
        """
        with self._lock:
            store = self._store = self._store or Store.open()
        with store.scratch() as folder:
            self.client.download(self.repository, layer, folder / "layer", advance)
            if diff_id is not None:
                check_digests(LayerFile(path=folder / "layer", diff_id=diff_id), layer.digest)


class RegistryImage(msgspec.Struct, frozen=True, kw_only=True):
    """A registry image: its index or only manifest, and the other documents by architecture."""

    top: Document
    images: dict[Arch, PlatformImage]


def read_registry_image(
    client: RegistryClient, reference: ImageReference, arch: Arch | None = None
) -> RegistryImage:
    """Read the documents of the image `reference`.

    If `arch` is set, only the documents for `arch` are read. Raises InputError if `arch` is missing
    or if an OCI layout cannot contain the image unchanged, and IntegrityError if a document does
    not match its digest.
    """
    source = RegistrySource(client, reference)
    top = source.fetched
    _require_type(top.media_type, reference)
    if arch is not None or top.media_type == documents.MANIFEST:
        only = image_for_arch(source, arch)
        _require_type(only.manifest.media_type, reference)
        top = Document(only.manifest_data, only.manifest.media_type)
        return RegistryImage(top=top, images={only.arch: only})
    entries = codec.decode(top.data, Index, file=str(reference)).manifests
    for entry in entries:
        _require_type(entry.media_type, reference)
    images = images_by_arch((platform_image(source, entry) for entry in entries), reference)
    return RegistryImage(top=top, images=images)


def image_for_arch(source: RegistrySource, arch: Arch | None) -> PlatformImage:
    """Return the image for `arch`, or the only image if `arch` is None.

    Raises InputError if the image does not exist, and IntegrityError if a document does not match
    its digest.
    """
    descriptor = source.top
    if arch is not None and descriptor.media_type in LISTS:
        entries = codec.decode(source.fetched.data, Index, file=source.name).manifests
        descriptor = _entry(source.reference, entries, arch)
    image = platform_image(source, descriptor)
    if arch not in (None, image.arch):
        message = f"{source.name} has no image for {arch}, only for {image.arch}"
        raise InputError(message, hint="specify an image for this architecture")
    return image


def _require_type(media_type: str, reference: ImageReference) -> None:
    if media_type not in OCI_DOCUMENT_TYPES:
        message = (
            f"{reference} has the media type {media_type}, which an OCI layout cannot contain "
            "unchanged"
        )
        raise InputError(message, hint="use an OCI image, or convert this image with `skopeo copy`")


def _entry(reference: ImageReference, entries: Sequence[Descriptor], arch: Arch) -> Descriptor:
    for entry in entries:
        if entry.platform.get("os") == "linux" and entry.platform.get("architecture") == arch.oci:
            return entry
    platforms = {
        f"{entry.platform.get('os')}/{entry.platform.get('architecture')}" for entry in entries
    }
    message = (
        f"{reference} has no image for linux/{arch.oci}, only for {', '.join(sorted(platforms))}"
    )
    raise InputError(message, hint="use another image, or omit the architecture")
