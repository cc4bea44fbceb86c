"""Reads images: the documents of one, each checked against its digest, and its layers.

An `ImageSource` is the place of an image. Here are folders and archives of an OCI layout, and what
`docker save` writes; `registry.image` has images in registries. Nothing is unpacked.
"""

from __future__ import annotations

import hashlib
import stat
import tarfile
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from imgbuild import codec
from imgbuild.errors import InputError, IntegrityError
from imgbuild.oci.documents import CONFIG, INDEX, Configuration, Descriptor, Index, Manifest
from imgbuild.system.boundary import reads, regular
from imgbuild.values import Arch, Digest, digest_of

INDEX_FILE = "index.json"
BLOBS = "blobs/sha256"
LISTING = "manifest.json"  # how `docker save` described an image before it wrote layouts
MEMBER_LIMIT = 10_000  # files of an archive; an image has some hundred blobs
DOCUMENT_LIMIT = 16 << 20  # bytes; a configuration has some kilobytes
CHUNK = 1 << 20
LISTS = (INDEX, "application/vnd.docker.distribution.manifest.list.v2+json")
CONFIGS = (CONFIG, "application/vnd.docker.container.image.v1+json")
HINT = "name an OCI layout, an archive of one, or a file from `docker save` or `podman save`"
AGAIN = "build or save the image again"

T = TypeVar("T")


class ImageSource(Protocol):
    """The place of an image."""

    @property
    def name(self) -> str:
        """The place, for messages."""

    @property
    def top(self) -> Descriptor:
        """The document that names the image: an index, or its one manifest."""

    def document(self, descriptor: Descriptor) -> bytes:
        """A small document; IntegrityError if it has another digest."""

    def size(self, layer: Descriptor) -> int | None:
        """How many bytes a layer has there; None if it is not there."""

    def read(self, layer: Descriptor, advance: Callable[[int], object]) -> None:
        """Read a whole layer; IntegrityError if it has another digest."""


class PlatformImage(msgspec.Struct, frozen=True, kw_only=True):
    """The documents of an image on one architecture: `data` is the manifest's."""

    arch: Arch
    descriptor: Descriptor
    data: bytes
    manifest: Manifest
    config: bytes
    configuration: Configuration

    @property
    def layers(self) -> tuple[Descriptor, ...]:
        """The layers, bottom first."""
        return self.manifest.layers

    @property
    def blobs(self) -> dict[Digest, int]:
        """What a pull downloads: digest → bytes."""
        own = {
            self.descriptor.digest: len(self.data),
            self.manifest.config.digest: len(self.config),
        }
        return own | {layer.digest: layer.size for layer in self.layers}

    @property
    def size(self) -> int:
        """What a pull downloads, in bytes."""
        return sum(self.blobs.values())


def manifests(source: ImageSource) -> tuple[Descriptor, ...]:
    """The manifests of an image: one for each architecture, or the image itself."""
    if source.top.media_type != INDEX:
        return (source.top,)
    data = source.document(source.top)
    entries = codec.decode(data, Index, file=source.top.digest, what="image index").manifests
    return tuple(msgspec.structs.replace(one, annotations={}) for one in entries)


def manifest(source: ImageSource, descriptor: Descriptor) -> Manifest:
    """The manifest that `descriptor` names."""
    data = source.document(descriptor)
    return codec.decode(data, Manifest, file=descriptor.digest, what="image manifest")


def platform_image(source: ImageSource, descriptor: Descriptor) -> PlatformImage:
    """The documents of the image whose manifest `descriptor` names.

    InputError if it is not an image, or for an architecture that imgbuild does not know;
    IntegrityError if a document's digest is another.
    """
    data = source.document(descriptor)
    found = codec.decode(data, Manifest, file=descriptor.digest, what="image manifest")
    if found.config.media_type not in CONFIGS:
        kind = found.config.media_type
        message = f"{descriptor.digest} is not an image: its configuration is of {kind}"
        hint = "name the image itself; with --arch, one of its manifests"
        raise InputError(message, hint=hint)
    config = source.document(found.config)
    name = found.config.digest
    configuration = codec.decode(config, Configuration, file=name, what="image configuration")
    try:
        arch = Arch.parse(configuration.architecture)
    except ValueError as error:
        message = f"{name} is for {configuration.architecture!r}, which imgbuild does not know"
        raise InputError(message, hint="name another architecture with --arch") from error
    if (fault := configuration.fault) is not None:
        message = f"{name}: the image configuration has {fault}"
        raise IntegrityError(message, hint=AGAIN)
    return PlatformImage(
        arch=arch, descriptor=descriptor, data=data, manifest=found, config=config,
        configuration=configuration,
    )  # fmt: skip


class Blob(msgspec.Struct, frozen=True, kw_only=True):
    """The place of a layer: a file, or a `part` (offset, length) of an archive."""

    path: Path
    size: int
    part: tuple[int, int] | None = None


class ImageSummary(msgspec.Struct, frozen=True, kw_only=True):
    """An image on one architecture. `digest` is its manifest's, or the configuration's."""

    path: Path
    digest: Digest
    configuration: Configuration
    layers: tuple[Blob, ...]


class _Listed(msgspec.Struct, frozen=True, rename="pascal"):
    config: str
    layers: tuple[str, ...]


def read(path: Path, arch: Arch | None = None) -> ImageSummary:
    """The image at `path`; `arch` is needed if it has several architectures.

    InputError if it is not an image, IntegrityError if a document is not what its digest says.
    """
    holder = Folder(path) if path.is_dir() else Archive(path)
    if not holder.has(INDEX_FILE):
        return _listed(holder, arch)
    entries = _decode(holder, holder.data(INDEX_FILE), Index, INDEX_FILE).manifests
    found = {item.digest: item for entry in entries for item in _manifests(holder, entry)}
    summaries = [_summary(holder, item) for item in found.values()]
    return _chosen(path, summaries, arch)


def _chosen(path: Path, summaries: list[ImageSummary], arch: Arch | None) -> ImageSummary:
    if arch is not None:
        fitting = [one for one in summaries if one.configuration.architecture == arch.oci]
        if not fitting:
            message = f"{path} has no image for {arch}"
            raise InputError(message, hint=f"it has {_arches(summaries)}")
        summaries = fitting
    if len(summaries) != 1:
        message = f"{path} holds {len(summaries)} images: {_arches(summaries)}"
        raise InputError(message, hint="name one with --arch, or give an archive of one image")
    return summaries[0]


def _arches(summaries: list[ImageSummary]) -> str:
    return ", ".join(sorted(one.configuration.architecture for one in summaries)) or "none"


def _manifests(holder: ImageStorage, entry: Descriptor) -> Iterator[Descriptor]:
    """The images that `entry` names, without BuildKit's attestations."""
    if "vnd.docker.reference.type" in entry.annotations:
        return
    if entry.media_type not in LISTS:
        yield entry
        return
    for inner in _decode(holder, holder.document(entry), Index, entry.digest).manifests:
        yield from _manifests(holder, inner)


def _summary(holder: ImageStorage, entry: Descriptor) -> ImageSummary:
    found = platform_image(holder, entry)
    return ImageSummary(
        path=holder.path,
        digest=entry.digest,
        configuration=found.configuration,
        layers=tuple(holder.place(_name(layer.digest)) for layer in found.layers),
    )


def _listed(holder: ImageStorage, arch: Arch | None) -> ImageSummary:
    """The image in an archive of an older `docker save`, whose files are not named by digests."""
    if not holder.has(LISTING):
        message = f"{holder.path} is not an image: it has neither {INDEX_FILE} nor {LISTING}"
        raise InputError(message, hint=HINT)
    listed = _decode(holder, holder.data(LISTING), tuple[_Listed, ...], LISTING)
    summaries = []
    for item in listed:
        config = holder.data(item.config)
        summaries.append(
            ImageSummary(
                path=holder.path,
                digest=digest_of(config),
                configuration=_decode(holder, config, Configuration, item.config),
                layers=tuple(holder.place(name) for name in item.layers),
            )
        )
    return _chosen(holder.path, summaries, arch)


class ImageStorage:
    """A folder or an archive that holds the files of an image, by their names."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)

    @property
    def top(self) -> Descriptor:
        """See `ImageSource`."""
        return msgspec.structs.replace(self.entry, annotations={})

    @cached_property
    def entry(self) -> Descriptor:
        """The only entry of `index.json`, with its annotations."""
        entries = _decode(self, self.data(INDEX_FILE), Index, INDEX_FILE).manifests
        if len(entries) != 1:
            message = f"{self.path}: {INDEX_FILE} names {len(entries)} images"
            raise InputError(message, hint="only layouts with one image are supported")
        return entries[0]

    def place(self, name: str) -> Blob:
        """The place of the file `name`; IntegrityError if there is none."""
        raise NotImplementedError

    def has(self, name: str) -> bool:
        """Whether there is a file `name`."""
        try:
            self.place(name)
        except IntegrityError:
            return False
        return True

    def data(self, name: str) -> bytes:
        """The content of the small file `name`."""
        found = self.place(name)
        if found.size > DOCUMENT_LIMIT:
            message = f"{self.path}: {name} has {found.size} bytes, too many for a document"
            raise IntegrityError(message, hint=HINT)
        try:
            with found.path.open("rb") as file:
                file.seek(found.part[0] if found.part else 0)
                return file.read(found.size)
        except OSError as error:
            message = f"cannot read {found.path}: {error.strerror}"
            raise IntegrityError(message, hint=AGAIN) from error

    def document(self, descriptor: Descriptor) -> bytes:
        """See `ImageSource`."""
        found = self.data(_name(descriptor.digest))
        self._expect(descriptor.digest, digest_of(found))
        return found

    def size(self, layer: Descriptor) -> int | None:
        """See `ImageSource`."""
        try:
            return self.place(_name(layer.digest)).size
        except IntegrityError:
            return None

    def read(self, layer: Descriptor, advance: Callable[[int], object]) -> None:
        """See `ImageSource`."""
        found = self.place(_name(layer.digest))
        hashed, left = hashlib.sha256(), found.size
        try:
            with found.path.open("rb") as file:
                file.seek(found.part[0] if found.part else 0)
                while chunk := file.read(min(CHUNK, left)):
                    hashed.update(chunk)
                    left -= len(chunk)
                    advance(len(chunk))
        except OSError as error:
            message = f"cannot read {error.filename}: {error.strerror}"
            raise IntegrityError(message, hint=AGAIN) from error
        self._expect(layer.digest, f"sha256:{hashed.hexdigest()}")

    def _expect(self, named: Digest, found: Digest) -> None:
        if named != found:
            message = f"{self.path}: {named} has the digest {found}"
            raise IntegrityError(message, hint=AGAIN)


class Folder(ImageStorage):
    """An OCI layout."""

    def place(self, name: str) -> Blob:
        """See `ImageStorage`."""
        path = self.path / name
        try:
            found = path.stat()
        except OSError as error:
            message = f"{path}: {error.strerror}"
            raise IntegrityError(message, hint="build the image again") from error
        if not stat.S_ISREG(found.st_mode):
            message = f"{path} is not a regular file"
            raise IntegrityError(message, hint="build the image again")
        return Blob(path=path, size=found.st_size)


class Archive(ImageStorage):
    """An archive of an OCI layout, or what `docker save` writes."""

    @reads("path", hint=HINT)
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._members: dict[str, Blob] = {}
        self._links: dict[str, str] = {}
        try:
            with (
                open(path, "rb", opener=regular) as file,
                tarfile.open(fileobj=file, mode="r:", encoding="utf-8") as tar,
            ):
                for number, member in enumerate(tar):
                    if number >= MEMBER_LIMIT:
                        message = f"{path} has more than {MEMBER_LIMIT} files"
                        raise IntegrityError(message, hint=HINT)
                    name = member.name.removeprefix("./")
                    if member.issym() or member.islnk():
                        self._links[name] = member.linkname.removeprefix("./").removeprefix("../")
                    elif member.isfile():
                        part = (member.offset_data, member.size)
                        self._members[name] = Blob(path=path, size=member.size, part=part)
        except OSError as error:
            message = f"cannot read {path}: {error.strerror}"
            raise InputError(message, hint=HINT) from error
        except tarfile.TarError as error:
            message = f"{path} is not a tar archive: {error}"
            raise InputError(
                message, hint=f"{HINT}; decompress it first if it is compressed"
            ) from error

    def place(self, name: str) -> Blob:
        """See `ImageStorage`."""
        found = self._members.get(self._links.get(name, name))
        if found is None:
            message = f"{self.path} has no {name}"
            raise IntegrityError(message, hint="save the image again")
        return found


def _decode(holder: ImageStorage, data: bytes, kind: type[T], name: str) -> T:
    return codec.decode(data, kind, file=f"{holder.path}: {name}", what="image", hint=HINT)


def _name(digest: Digest) -> str:
    return f"{BLOBS}/{digest.removeprefix('sha256:')}"
