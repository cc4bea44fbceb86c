"""Reads documents and layers of images, and checks documents against their digests.

Images are read from folders and archives with an OCI layout, or from the output of `docker save`.
`registry.image` reads images from registries. No files are unpacked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from imgbuild import codec
from imgbuild.errors import InputError, IntegrityError
from imgbuild.oci import documents
from imgbuild.oci.documents import CONFIG, INDEX, Configuration, Descriptor, Index, Manifest
from imgbuild.oci.reader import LayerFile
from imgbuild.oci.storage import (
    BUILD_AGAIN_REMEDY,
    HINT,
    INDEX_FILE,
    BlobLocation,
    ImageArchive,
    ImageStorage,
    LayoutFolder,
    blob_name,
    decode_document,
)
from imgbuild.values import Arch, Digest, digest_of

IMPLIED_VARIANTS = {"amd64": "v1", "arm64": "v8"}  # as containerd normalizes platforms
UNKNOWN_PLATFORM = "unknown"  # BuildKit's annotation of statements in an index
LISTING_FILE = (
    "manifest.json"  # the description of an image by `docker save` before it wrote layouts
)
LISTS = (INDEX, documents.DOCKER_INDEX)
CONFIGS = (CONFIG, "application/vnd.docker.container.image.v1+json")


class ImageSource(Protocol):
    """A source from which an image is read, such as a folder or a registry."""

    @property
    def name(self) -> str:
        """The location, for messages."""

    @property
    def top(self) -> Descriptor:
        """The top-level document of the image: an index, or the only manifest."""

    def read_document(self, descriptor: Descriptor) -> bytes:
        """Return the content of a document. Raises IntegrityError if its digest is wrong."""

    def size(self, layer: Descriptor) -> int | None:
        """Return the size of a layer in bytes, or None if the layer is missing."""

    def read(
        self, layer: Descriptor, advance: Callable[[int], object], diff_id: Digest | None = None
    ) -> None:
        """Read and check a layer. Raises IntegrityError if its digest or diff ID is wrong."""


class PlatformImage(msgspec.Struct, frozen=True, kw_only=True):
    """The documents of an image for one architecture, and its layers, bottom layer first."""

    arch: Arch
    manifest: Descriptor
    manifest_data: bytes
    config: Descriptor
    config_data: bytes
    configuration: Configuration
    layers: tuple[Descriptor, ...]

    @property
    def diff_ids(self) -> tuple[Digest, ...]:
        """The diff IDs of the layers."""
        return self.configuration.rootfs.diff_ids

    @property
    def settings(self) -> dict[str, object]:
        """The runtime settings in the configuration."""
        return self.configuration.config or {}

    @property
    def blobs(self) -> dict[Digest, int]:
        """The blobs that a pull downloads: their sizes in bytes, by digest."""
        parts = (self.manifest, self.config, *self.layers)
        return {part.digest: part.size for part in parts}

    @property
    def size(self) -> int:
        """The total size of the blobs that a pull downloads, in bytes."""
        return sum(self.blobs.values())


def list_manifests(source: ImageSource) -> tuple[Descriptor, ...]:
    """Return the manifests of an image: one for each architecture, or the only manifest."""
    if source.top.media_type != INDEX:
        return (source.top,)
    data = _read_typed_document(source, source.top, (INDEX,), "image index")
    entries = codec.decode(data, Index, file=source.top.digest, what="image index").manifests
    _refuse_ambiguous(entries, source)
    return tuple(msgspec.structs.replace(entry, annotations={}) for entry in entries)


def _refuse_ambiguous(entries: Sequence[Descriptor], source: ImageSource) -> None:
    """Raise IntegrityError if two entries have the same platform.

    Container engines would disagree on which entry to use.
    """
    by_platform: dict[tuple[tuple[str, str], ...], Descriptor] = {}
    for entry in entries:
        if not entry.platform or entry.platform.get("os") == UNKNOWN_PLATFORM:
            continue
        platform = _normalize_platform(entry.platform)
        other = by_platform.setdefault(tuple(sorted(platform.items())), entry)
        if other is not entry:
            parts = ("os", "architecture", "variant")
            name = "/".join(platform[part] for part in parts if part in platform)
            message = (
                f"{source.top.digest} has two images for {name}: {other.digest} and {entry.digest}"
            )
            raise IntegrityError(message, hint="an index can have only one image per platform")


def _normalize_platform(platform: Mapping[str, str | list[str]]) -> dict[str, str]:
    """Remove empty values, and the variant if the architecture implies it, from a platform."""
    values = {key: str(value) for key, value in platform.items() if value}
    if values.get("variant") == IMPLIED_VARIANTS.get(values.get("architecture", "")):
        values.pop("variant", None)
    return values


def read_manifest(source: ImageSource, descriptor: Descriptor) -> Manifest:
    """Return the manifest with the digest and size in `descriptor`."""
    data = _read_typed_document(source, descriptor, documents.MANIFESTS, "image manifest")
    return codec.decode(data, Manifest, file=descriptor.digest, what="image manifest")


def images_by_arch(images: Iterable[PlatformImage], name: object) -> dict[Arch, PlatformImage]:
    """Return `images` by architecture.

    Raises InputError, with `name` in the message, if two images have the same architecture.
    """
    result: dict[Arch, PlatformImage] = {}
    for each in images:
        if each.arch in result:
            digests = f"{result[each.arch].manifest.digest} and {each.manifest.digest}"
            message = f"{name} has two images for {each.arch}: {digests}"
            raise InputError(message, hint="select one image by digest")
        result[each.arch] = each
    return result


def _document(source: ImageSource, descriptor: Descriptor) -> bytes:
    data = source.read_document(descriptor)
    if len(data) != descriptor.size:
        message = f"{descriptor.digest} has {len(data)} bytes, not {descriptor.size}"
        raise IntegrityError(message, hint=BUILD_AGAIN_REMEDY)
    return data


def _read_typed_document(
    source: ImageSource, descriptor: Descriptor, types: tuple[str, ...], what: str
) -> bytes:
    """Return the document of `descriptor`, whose type must be one of `types`.

    Raises InputError, with `what` in the message, for another type. Raises IntegrityError if the
    type in the document differs from the type in the descriptor.
    """
    data = _document(source, descriptor)
    stated = documents.stated_type(data, descriptor.digest)
    if stated not in ("", descriptor.media_type):
        message = f"{descriptor.digest} has the type {stated}, not {descriptor.media_type}"
        raise IntegrityError(message, hint=BUILD_AGAIN_REMEDY)
    if descriptor.media_type not in types:
        kind = descriptor.media_type or "not stated"
        message = f"{descriptor.digest} is not a valid {what}: its media type is {kind}"
        raise InputError(message, hint=f"expected {' or '.join(types)}")
    return data


def platform_image(source: ImageSource, descriptor: Descriptor) -> PlatformImage:
    """Return the documents of the image with the manifest `descriptor`.

    Raises InputError if it is not an image, or has an unsupported architecture or layer type.
    Raises IntegrityError if the digest of a document is wrong, or if the manifest and the
    configuration contradict each other.
    """
    data = _read_typed_document(source, descriptor, documents.MANIFESTS, "image manifest")
    manifest = codec.decode(data, Manifest, file=descriptor.digest, what="image manifest")
    config, configuration = image_configuration(source, descriptor, manifest)
    name = manifest.config.digest
    try:
        arch = Arch.parse(configuration.architecture)
    except ValueError as error:
        message = f"{name} is for {configuration.architecture!r}, which imgbuild does not support"
        raise InputError(message, hint="select another architecture with --arch") from error
    if (fault := configuration.start_fault) is not None:
        message = f"{name}: the image configuration has {fault}"
        raise IntegrityError(message, hint=BUILD_AGAIN_REMEDY)
    return PlatformImage(
        arch=arch, manifest=descriptor, manifest_data=data, config=manifest.config,
        config_data=config, configuration=configuration, layers=manifest.layers,
    )  # fmt: skip


def image_configuration(
    source: ImageSource, descriptor: Descriptor, manifest: Manifest
) -> tuple[bytes, Configuration]:
    """Return the encoded and decoded configuration of `manifest`.

    Raises the same errors as `platform_image`, but accepts any architecture.
    """
    kind, name = manifest.config.media_type, manifest.config.digest
    if kind not in CONFIGS:
        message = f"{descriptor.digest} is not an image: its configuration has the type {kind}"
        hint = "pass an image, or select a manifest with --arch"
        raise InputError(message, hint=hint)
    for number, layer in enumerate(manifest.layers, start=1):
        fault = f"has the unsupported type {layer.media_type}"
        if layer.media_type in documents.LAYER_TYPES:
            if not layer.urls:
                continue
            fault = f"must be downloaded from {layer.urls[0]}, which is not supported"
        message = f"{descriptor.digest}: layer {number} ({layer.digest}) {fault}"
        hint = "use an image with gzip layers, or push the image again with gzip layers"
        raise InputError(message, hint=hint)
    config = _document(source, manifest.config)
    configuration = codec.decode(config, Configuration, file=name, what="image configuration")
    listed = descriptor.platform
    for part, actual in (("os", configuration.os), ("architecture", configuration.architecture)):
        if actual and listed.get(part, actual) != actual:
            message = (
                f"{descriptor.digest} has the {part} {listed[part]} in the index, but {actual} in "
                "its configuration"
            )
            raise IntegrityError(message, hint=BUILD_AGAIN_REMEDY)
    _diff_ids(configuration, len(manifest.layers), descriptor.digest)
    return config, configuration


def _diff_ids(configuration: Configuration, layers: int, name: str) -> tuple[Digest, ...]:
    diff_ids = configuration.rootfs.diff_ids
    if len(diff_ids) != layers:
        message = f"{name} has {layers} layers, but {len(diff_ids)} diff IDs in its configuration"
        raise IntegrityError(message, hint=BUILD_AGAIN_REMEDY)
    return diff_ids


class ImageSummary(msgspec.Struct, frozen=True, kw_only=True):
    """An image for one architecture. `digest` is the digest of the manifest or configuration."""

    path: Path
    digest: Digest
    configuration: Configuration
    layers: tuple[LayerFile, ...]


class _ListedImage(msgspec.Struct, frozen=True, rename="pascal"):
    config: str
    layers: tuple[str, ...]


def read_image(path: Path, arch: Arch | None = None) -> ImageSummary:
    """Read the image at `path`. `arch` is required if the image has several architectures.

    Raises InputError if `path` is not an image, and IntegrityError if a document does not match its
    digest.
    """
    holder = LayoutFolder(path) if path.is_dir() else ImageArchive(path)
    if not holder.has(INDEX_FILE):
        return _docker_save_image(holder, arch)
    entries = decode_document(holder, holder.data(INDEX_FILE), Index, INDEX_FILE).manifests
    descriptors = {
        item.digest: item for entry in entries for item in _nested_manifests(holder, entry)
    }
    summaries = [_summary(holder, item) for item in descriptors.values()]
    return _choose_summary(path, summaries, arch)


def _choose_summary(path: Path, summaries: list[ImageSummary], arch: Arch | None) -> ImageSummary:
    if arch is not None:
        fitting = [
            summary for summary in summaries if summary.configuration.architecture == arch.oci
        ]
        if not fitting:
            message = f"{path} has no image for {arch}"
            raise InputError(message, hint=f"select one of: {_arches(summaries)}")
        summaries = fitting
    if len(summaries) != 1:
        message = f"{path} has {len(summaries)} images: {_arches(summaries)}"
        raise InputError(message, hint="select one with --arch, or pass an archive with one image")
    return summaries[0]


def _arches(summaries: list[ImageSummary]) -> str:
    return ", ".join(sorted(summary.configuration.architecture for summary in summaries)) or "none"


def _nested_manifests(holder: ImageStorage, entry: Descriptor) -> Iterator[Descriptor]:
    """Yield the image manifests below `entry`, without BuildKit's attestations."""
    if "vnd.docker.reference.type" in entry.annotations:
        return
    if entry.media_type not in LISTS:
        yield entry
        return
    for inner in decode_document(
        holder, _read_typed_document(holder, entry, LISTS, "image index"), Index, entry.digest
    ).manifests:
        yield from _nested_manifests(holder, inner)


def _summary(holder: ImageStorage, entry: Descriptor) -> ImageSummary:
    image = platform_image(holder, entry)
    return ImageSummary(
        path=holder.path,
        digest=entry.digest,
        configuration=image.configuration,
        layers=_layers(
            (holder.place(blob_name(layer.digest)) for layer in image.layers),
            image.diff_ids,
        ),
    )


def _layers(blobs: Iterable[BlobLocation], diff_ids: Iterable[Digest]) -> tuple[LayerFile, ...]:
    return tuple(
        LayerFile(path=blob.path, part=blob.part, diff_id=diff_id)
        for blob, diff_id in zip(blobs, diff_ids, strict=True)
    )


def _docker_save_image(holder: ImageStorage, arch: Arch | None) -> ImageSummary:
    """Return the image in an archive from an older `docker save`.

    File names in such an archive are not digests.
    """
    if not holder.has(LISTING_FILE):
        message = f"{holder.path} is not an image: it has neither {INDEX_FILE} nor {LISTING_FILE}"
        raise InputError(message, hint=HINT)
    listed = decode_document(
        holder, holder.data(LISTING_FILE), tuple[_ListedImage, ...], LISTING_FILE
    )
    summaries = []
    for item in listed:
        config = holder.data(item.config)
        configuration = decode_document(holder, config, Configuration, item.config)
        diff_ids = _diff_ids(configuration, len(item.layers), f"{holder.path}: {item.config}")
        summaries.append(
            ImageSummary(
                path=holder.path,
                digest=digest_of(config),
                configuration=configuration,
                layers=_layers(map(holder.place, item.layers), diff_ids),
            )
        )
    return _choose_summary(holder.path, summaries, arch)
