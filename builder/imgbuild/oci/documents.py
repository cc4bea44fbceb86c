"""Reads and writes OCI documents (image-spec 1.1): index, manifest, configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from imgbuild import codec
from imgbuild.errors import IntegrityError
from imgbuild.system import decoding
from imgbuild.values import Arch, Digest, FileSize, digest_of

if TYPE_CHECKING:
    from imgbuild.oci.layer import LayerRecord

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
MANIFESTS = (MANIFEST, DOCKER_MANIFEST)
LAYER = "application/vnd.oci.image.layer.v1.tar"
LAYER_GZIP = f"{LAYER}+gzip"
LAYER_ZSTD = f"{LAYER}+zstd"
# Supported layers → OCI's name of the format; Docker's types are equivalent. Not zstd:
# Docker 20.10 and Python's tarfile do not support it.
LAYER_TYPES = {
    LAYER: LAYER,
    LAYER_GZIP: LAYER_GZIP,
    "application/vnd.docker.image.rootfs.diff.tar": LAYER,
    "application/vnd.docker.image.rootfs.diff.tar.gzip": LAYER_GZIP,
}
EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
EMPTY_CONFIG = b"{}"  # the configuration of artifacts that need none
TITLE = "org.opencontainers.image.title"  # the file name that `oras pull` uses for a layer


class Descriptor(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The media type, digest and size of a blob.

    `urls` are alternative locations of the blob. `data` is its content, which must match `digest`.
    """

    media_type: str
    digest: Digest
    size: FileSize
    platform: dict[str, str | list[str]] = {}
    annotations: dict[str, str] = {}
    artifact_type: str = ""
    urls: tuple[str, ...] = ()
    data: bytes = b""

    def __post_init__(self) -> None:
        if self.data and digest_of(self.data) != self.digest:
            message = f"the content in the descriptor of {self.digest} does not match the digest"
            raise ValueError(message)


class Document(msgspec.Struct, frozen=True):
    """The content and media type of a manifest or index."""

    data: bytes
    media_type: str

    @property
    def digest(self) -> Digest:
        """The digest of the content."""
        return digest_of(self.data)

    @property
    def descriptor(self) -> Descriptor:
        """The descriptor of the document, without a platform."""
        return create_descriptor(self.media_type, self.data)


class _DocumentShape(msgspec.Struct, frozen=True, rename="camel"):
    media_type: str = ""
    manifests: msgspec.Raw = msgspec.Raw()
    layers: msgspec.Raw = msgspec.Raw()


def stated_type(data: bytes, name: object) -> str:
    """Return the media type in a manifest or an index, or "" if there is none.

    Raises IntegrityError, with `name` in the message, if the document is both an index and an
    image.
    """
    try:
        shape = decoding.decode_json(data, _DocumentShape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    if shape.manifests and shape.layers:
        message = f"{name} is both an index and an image"
        raise IntegrityError(
            message, hint="do not use this image, because its content is ambiguous"
        )
    return shape.media_type


class Manifest(msgspec.Struct, frozen=True, rename="camel"):
    """An image manifest for one architecture."""

    config: Descriptor
    layers: tuple[Descriptor, ...]


class Index(msgspec.Struct, frozen=True, rename="camel"):
    """A list of manifests: `index.json`, or the index of a multi-architecture image."""

    manifests: tuple[Descriptor, ...]


class RootFs(msgspec.Struct, frozen=True):
    """The diff IDs of an image, bottom layer first."""

    diff_ids: tuple[Digest, ...]


class History(msgspec.Struct, frozen=True):
    """An item in an image's history. If `empty_layer` is set, no layer belongs to the item."""

    created_by: str = ""
    empty_layer: bool = False


class Configuration(msgspec.Struct, frozen=True):
    """The fields of an image configuration that imgbuild reads."""

    architecture: str
    rootfs: RootFs = RootFs(())
    os: str = ""
    variant: str = ""
    config: dict[str, object] | None = None
    history: tuple[History, ...] = ()

    @property
    def labels(self) -> dict[str, str]:
        """The labels of the image."""
        labels = (self.config or {}).get("Labels")
        return {key: str(text) for key, text in labels.items()} if isinstance(labels, dict) else {}

    @property
    def start_fault(self) -> str | None:
        """A setting that prevents containers from starting, such as an invalid variable."""
        settings = self.config or {}
        for key in ("Env", "Entrypoint", "Cmd", "WorkingDir", "User"):
            value = settings.get(key)
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, str) and (
                    "\0" in item or (key == "Env" and item.find("=") < 1)
                ):
                    return f"{item!r} in {key}"
        return None


def docker_manifest(
    config: bytes,
    layers: Sequence[LayerRecord],
    *,
    media_types: Mapping[Digest, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> bytes:
    """Return the manifest of an image with `config` and `layers`, bottom layer first.

    `media_types` maps digests to media types for layers that are not gzipped tars. Base images from
    registries can have such layers.
    """
    types = media_types or {}
    listed = [
        Descriptor(
            media_type=types.get(layer.digest, LAYER_GZIP), digest=layer.digest, size=layer.size
        )
        for layer in layers
    ]
    return create_manifest(create_descriptor(CONFIG, config), listed, annotations=annotations)


def create_manifest(
    config: Descriptor,
    layers: Sequence[Descriptor],
    *,
    artifact_type: str = "",
    subject: Descriptor | None = None,
    annotations: Mapping[str, str] | None = None,
) -> bytes:
    """Return the manifest of an image, or of an artifact that refers to `subject`."""
    document: dict[str, object] = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": config,
        "layers": layers,
    }
    if artifact_type:
        document["artifactType"] = artifact_type
    if subject is not None:
        document["subject"] = Descriptor(
            media_type=subject.media_type, digest=subject.digest, size=subject.size
        )
    if annotations:
        document["annotations"] = annotations
    return codec.encode_compact(document)


def create_index(manifests: Mapping[Arch, bytes]) -> bytes:
    """Return the index of a multi-architecture image, sorted by architecture name."""
    return codec.encode_compact(
        {
            "schemaVersion": 2,
            "mediaType": INDEX,
            "manifests": [
                create_descriptor(MANIFEST, data, arch=arch)
                for arch, data in sorted(manifests.items())
            ],
        }
    )


def create_descriptor(
    media_type: str,
    data: bytes,
    annotations: Mapping[str, str] | None = None,
    *,
    arch: Arch | None = None,
) -> Descriptor:
    """Return the descriptor of the blob `data`. If `arch` is set, it includes the platform."""
    return Descriptor(
        media_type=media_type,
        digest=digest_of(data),
        size=len(data),
        platform=platform_of_arch(arch) if arch is not None else {},
        annotations=dict(annotations or {}),
    )


def platform_of_arch(arch: Arch) -> dict[str, str | list[str]]:
    """Return the platform of `arch`. The variant of arm64 is v8, as in Docker."""
    fields: dict[str, str | list[str]] = {"architecture": arch.oci, "os": "linux"}
    if arch is Arch.ARM64:
        fields["variant"] = "v8"
    return fields
