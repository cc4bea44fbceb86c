"""The JSON documents of image-spec 1.1: read as values, written as canonical JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from imgbuild import codec
from imgbuild.values import Arch, Bytes, Digest, digest_of

if TYPE_CHECKING:
    from imgbuild.oci.layer import LayerRecord

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
LAYER_GZIP = f"{LAYER}+gzip"
LAYER_ZSTD = f"{LAYER}+zstd"


class Descriptor(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A descriptor: media type, digest and size of a blob."""

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


class History(msgspec.Struct, frozen=True):
    """What made a layer, in words; an `empty_layer` has no entry among the layers."""

    created_by: str = ""
    empty_layer: bool = False


class Configuration(msgspec.Struct, frozen=True):
    """An image configuration, as far as imgbuild reads it."""

    architecture: str
    rootfs: RootFs = RootFs(())
    os: str = ""
    variant: str = ""
    config: dict[str, object] | None = None
    history: tuple[History, ...] = ()


def manifest(
    config: bytes,
    layers: Sequence[LayerRecord],
    *,
    media_types: Mapping[Digest, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> bytes:
    """The manifest of `config` and `layers`, bottom first.

    `media_types`, by digest, are those of layers that are not a gzipped tar; the layers of a
    registry base can be.
    """
    types = media_types or {}
    return codec.compact(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": descriptor(CONFIG, config),
            "layers": [
                {
                    "mediaType": types.get(layer.digest, LAYER_GZIP),
                    "digest": layer.digest,
                    "size": layer.size,
                }
                for layer in layers
            ],
            **({"annotations": dict(annotations)} if annotations else {}),
        }
    )


def index(manifests: Mapping[Arch, bytes]) -> bytes:
    """The index of one image on several architectures, sorted by their names."""
    return codec.compact(
        {
            "schemaVersion": 2,
            "mediaType": INDEX,
            "manifests": [
                {**descriptor(MANIFEST, data), "platform": platform(arch)}
                for arch, data in sorted(manifests.items())
            ],
        }
    )


def descriptor(media_type: str, data: bytes) -> dict[str, object]:
    """The descriptor of the document `data`."""
    return {"mediaType": media_type, "digest": digest_of(data), "size": len(data)}


def platform(arch: Arch) -> dict[str, str]:
    """The platform of `arch`; arm64 has the variant v8, as Docker writes it."""
    variant = {"variant": "v8"} if arch is Arch.ARM64 else {}
    return {"architecture": arch.oci, "os": "linux", **variant}
