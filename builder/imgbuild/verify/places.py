"""Where an image that is verified lies: in a registry, or in an OCI layout.

Comes in: a reference or a folder. Goes out: its documents, each checked against its digest, and
what is known of its layers without reading them, or after.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from imgbuild import codec
from imgbuild.attest.signing.stored import at
from imgbuild.cache.store import Store
from imgbuild.errors import IntegrityError
from imgbuild.oci import documents, layout
from imgbuild.oci.documents import Descriptor, Index, Manifest
from imgbuild.registry.client import Client
from imgbuild.registry.reference import Reference
from imgbuild.values import Digest, digest_of

CHUNK = 1 << 20


class Place(Protocol):
    """Where an image lies. `top` is the document that names it."""

    name: str
    top: Descriptor

    def document(self, descriptor: Descriptor) -> bytes:
        """A small document; IntegrityError if it is not what its digest says."""

    def size(self, layer: Descriptor) -> int | None:
        """How many bytes a layer has there; None if it is not there."""

    def read(self, layer: Descriptor, advance: Callable[[int], object]) -> None:
        """Read a layer whole; IntegrityError if it is not what its digest says."""


class InRegistry:
    """An image in a registry."""

    def __init__(self, client: Client, reference: Reference) -> None:
        self.client = client
        self.repository = reference.repository
        self.name = str(reference)
        self.tag = "" if reference.digest else reference.tag or ""
        self._lock = threading.Lock()
        self._store: Store | None = None  # one for all threads, opened if a layer is read
        self._top = client.manifest(reference)
        self.top = Descriptor(
            media_type=self._top.media_type, digest=self._top.digest, size=len(self._top.data)
        )

    def document(self, descriptor: Descriptor) -> bytes:
        """See `Place`."""
        if descriptor.digest == self.top.digest:
            return self._top.data
        if descriptor.media_type in (documents.MANIFEST, documents.INDEX):
            return self.client.manifest(at(self.repository, digest=descriptor.digest)).data
        return self.client.blob(self.repository, descriptor)

    def size(self, layer: Descriptor) -> int | None:
        """See `Place`."""
        return self.client.has(self.repository, layer.digest)

    def read(self, layer: Descriptor, advance: Callable[[int], object]) -> None:
        """See `Place`; the layer is on the cache's disk only as long as it is read."""
        with self._lock:
            store = self._store = self._store or Store.open()
        with store.scratch() as folder:
            self.client.download(self.repository, layer, folder / "layer", advance)


class InLayout:
    """An image in an OCI layout."""

    def __init__(self, folder: Path) -> None:
        self._layout = layout.read(folder)
        self.name = str(folder)
        self.top = self._layout.top

    def document(self, descriptor: Descriptor) -> bytes:
        """See `Place`."""
        data = self._layout.blob(descriptor.digest).read_bytes()
        _expect(descriptor.digest, digest_of(data))
        return data

    def size(self, layer: Descriptor) -> int | None:
        """See `Place`."""
        path = self._layout.blob(layer.digest)
        return path.stat().st_size if path.is_file() else None

    def read(self, layer: Descriptor, advance: Callable[[int], object]) -> None:
        """See `Place`."""
        hashed = hashlib.sha256()
        try:
            with self._layout.blob(layer.digest).open("rb") as file:
                while chunk := file.read(CHUNK):
                    hashed.update(chunk)
                    advance(len(chunk))
        except OSError as error:
            message = f"cannot read {error.filename}: {error.strerror}"
            raise IntegrityError(message, hint="build it again") from error
        _expect(layer.digest, f"sha256:{hashed.hexdigest()}")


def manifests(place: Place) -> tuple[Descriptor, ...]:
    """The manifests of an image: one for each architecture, or the image itself."""
    if place.top.media_type != documents.INDEX:
        return (place.top,)
    data = place.document(place.top)
    entries = codec.decode(data, Index, file=place.top.digest, what="image index").manifests
    return tuple(msgspec.structs.replace(one, annotations={}) for one in entries)


def manifest(place: Place, descriptor: Descriptor) -> Manifest:
    """The manifest that `descriptor` names."""
    data = place.document(descriptor)
    return codec.decode(data, Manifest, file=descriptor.digest, what="image manifest")


def _expect(named: Digest, found: Digest) -> None:
    if named != found:
        message = f"{named} has the digest {found}"
        raise IntegrityError(message, hint="build it again")
