"""An image in a registry as a value: its documents, each checked, no layer.

Comes in: a reference, and an architecture if only one is meant. Goes out: an `Image`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from imgbuild import codec
from imgbuild.errors import InputError, IntegrityError
from imgbuild.oci import documents
from imgbuild.oci.documents import Descriptor, Index, Manifest, RootFs
from imgbuild.registry.client import Client, Fetched
from imgbuild.registry.reference import Reference
from imgbuild.values import Arch, Digest

TYPES = (documents.INDEX, documents.MANIFEST)


class Settings(msgspec.Struct, frozen=True, rename={"labels": "Labels"}):
    """What a listing wants of a configuration's settings."""

    labels: dict[str, str] = {}


class History(msgspec.Struct, frozen=True):
    """Who made a layer, in words."""

    created_by: str = ""
    empty_layer: bool = False


class Config(msgspec.Struct, frozen=True):
    """The part of an image configuration that says what the image is."""

    architecture: str
    rootfs: RootFs
    config: Settings = Settings()
    history: tuple[History, ...] = ()


class Remote(msgspec.Struct, frozen=True, kw_only=True):
    """The documents of an image on one architecture, as a registry has them."""

    arch: Arch
    manifest: Fetched
    parts: Manifest
    config: bytes
    settings: Config

    @property
    def layers(self) -> tuple[Descriptor, ...]:
        """The layers, bottom first."""
        return self.parts.layers

    @property
    def blobs(self) -> dict[Digest, int]:
        """What a pull moves: digest → bytes."""
        own = {
            self.manifest.digest: len(self.manifest.data),
            self.parts.config.digest: len(self.config),
        }
        return own | {layer.digest: layer.size for layer in self.layers}

    @property
    def size(self) -> int:
        """What a pull moves, in bytes."""
        return sum(self.blobs.values())


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """An image in a registry: the document that names it, and what is below, by architecture."""

    top: Fetched
    images: dict[Arch, Remote]


def read(client: Client, reference: Reference, arch: Arch | None = None) -> Image:
    """The documents of the image `reference`; with `arch`, of its manifest for that alone.

    InputError for an architecture that it lacks, and for what is no image that a layout can hold
    as it is; IntegrityError if a document is not what its digest names.
    """
    top = _typed(client.manifest(reference), reference)
    if top.media_type == documents.MANIFEST:
        only = _remote(client, reference, top)
        if arch not in (None, only.arch):
            message = f"{reference} is for {only.arch}, not for {arch}"
            raise InputError(message, hint="leave --arch out, or name another image")
        return Image(top=top, images={only.arch: only})
    entries = codec.decode(top.data, Index, file=str(reference)).manifests
    if arch is not None:
        entry = _entry(reference, entries, arch)
        return read(client, _at(reference, entry.digest), arch)
    found = [
        _remote(client, reference, _typed(client.manifest(_at(reference, entry.digest)), reference))
        for entry in entries
    ]
    images = {one.arch: one for one in found}
    if len(images) != len(found):
        message = f"{reference} has {len(found)} images for {', '.join(images)}"
        raise InputError(message, hint="name one of them by its digest")
    return Image(top=top, images=images)


def _at(reference: Reference, digest: Digest) -> Reference:
    return Reference(reference.host, reference.name, digest=digest)


def _typed(found: Fetched, reference: Reference) -> Fetched:
    if found.media_type not in TYPES:
        message = f"{reference} is of the type {found.media_type}, which no OCI layout holds as is"
        raise InputError(message, hint="name an OCI image; skopeo copy converts others")
    return found


def _entry(reference: Reference, entries: Sequence[Descriptor], arch: Arch) -> Descriptor:
    for entry in entries:
        if entry.platform.get("os") == "linux" and entry.platform.get("architecture") == arch.oci:
            return entry
    known = ", ".join(str(entry.platform.get("architecture")) for entry in entries)
    message = f"{reference} has no image for {arch}, only for {known}"
    raise InputError(message, hint="name another architecture, or leave --arch out")


def _remote(client: Client, reference: Reference, found: Fetched) -> Remote:
    name = f"{reference.repository}@{found.digest}"
    manifest = codec.decode(found.data, Manifest, file=name)
    if manifest.config.media_type != documents.CONFIG:
        message = f"{name} is no image: its configuration is of {manifest.config.media_type}"
        raise InputError(message, hint="name the image itself; with --arch, one of its manifests")
    config = client.blob(reference.repository, manifest.config)
    settings = codec.decode(config, Config, file=name)
    if len(settings.rootfs.diff_ids) != len(manifest.layers):
        message = f"{name}: {len(manifest.layers)} layers, {len(settings.rootfs.diff_ids)} diff ids"
        raise IntegrityError(message, hint="push the image again")
    try:
        arch = Arch.parse(settings.architecture)
    except ValueError as error:
        message = f"{name} is for {settings.architecture}, which imgbuild does not know"
        raise InputError(message, hint="choose with --arch what to pull") from error
    return Remote(arch=arch, manifest=found, parts=manifest, config=config, settings=settings)
