"""The small JSON documents of registries and layouts, as values: read leniently, written elsewhere.

Comes in: nothing. Goes out: the media types and shapes of image-spec 1.1 that others share.
"""

from __future__ import annotations

import msgspec

from imgbuild.values import Bytes, Digest

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
LAYER_GZIP = f"{LAYER}+gzip"
LAYER_ZSTD = f"{LAYER}+zstd"


class Descriptor(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What an OCI document says of a blob."""

    media_type: str
    digest: Digest
    size: Bytes
    platform: dict[str, str | list[str]] = {}
    annotations: dict[str, str] = {}
    artifact_type: str = ""


class Manifest(msgspec.Struct, frozen=True, rename="camel"):
    """The manifest of an image on one architecture."""

    config: Descriptor
    layers: tuple[Descriptor, ...]


class Index(msgspec.Struct, frozen=True, rename="camel"):
    """A list of manifests: `index.json`, or the index of an image on several architectures."""

    manifests: tuple[Descriptor, ...]


class RootFs(msgspec.Struct, frozen=True):
    """The diff ids of an image, bottom first."""

    diff_ids: tuple[Digest, ...]


class Configuration(msgspec.Struct, frozen=True):
    """The part of an image configuration that names its platform, its layers and how it runs."""

    architecture: str
    rootfs: RootFs
    config: dict[str, object] = {}
