"""An image to read, wherever it lies: an OCI layout, an archive of one, what `docker save` writes.

Comes in: a folder or a tar file. Goes out: the configuration and the place of every layer, inside
the archive if it is one; nothing is unpacked. Small documents are checked against their digests.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from imgbuild import codec
from imgbuild.errors import InputError, IntegrityError
from imgbuild.oci.documents import INDEX, Descriptor, Index, Manifest
from imgbuild.oci.layout import BLOBS, INDEX_FILE
from imgbuild.values import Arch, Digest, digest_of, sha256

LISTING = "manifest.json"  # how `docker save` described an image before it wrote layouts
DOCUMENT_LIMIT = 16 << 20  # bytes; a configuration has some kilobytes
LISTS = (INDEX, "application/vnd.docker.distribution.manifest.list.v2+json")
HINT = "name an OCI layout, an archive of one, or a file from `docker save` or `podman save`"

T = TypeVar("T")


class Blob(msgspec.Struct, frozen=True, kw_only=True):
    """Where a layer lies: a whole file, or a `part` (offset, length) of an archive."""

    path: Path
    size: int
    part: tuple[int, int] | None = None


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """The platform of an image and how it runs."""

    architecture: str
    os: str = ""
    variant: str = ""
    config: dict[str, object] | None = None


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """An image on one architecture. `digest` is its manifest's, or the configuration's."""

    path: Path
    digest: Digest
    configuration: Configuration
    layers: tuple[Blob, ...]


class _Listed(msgspec.Struct, frozen=True, rename="pascal"):
    config: str
    layers: tuple[str, ...]


def read(path: Path, arch: Arch | None = None) -> Picture:
    """The image at `path`; `arch` is needed if it has several architectures.

    InputError if it is no image, IntegrityError if a document is not what its digest says.
    """
    holder = _Folder(path) if path.is_dir() else _Archive(path)
    if not holder.has(INDEX_FILE):
        return _listed(holder, arch)
    entries = _decode(holder, holder.data(INDEX_FILE), Index, INDEX_FILE).manifests
    found = {item.digest: item for entry in entries for item in _manifests(holder, entry)}
    pictures = [_picture(holder, item) for item in found.values()]
    return _chosen(path, pictures, arch)


def _chosen(path: Path, pictures: list[Picture], arch: Arch | None) -> Picture:
    if arch is not None:
        fitting = [one for one in pictures if one.configuration.architecture == arch.oci]
        if not fitting:
            message = f"{path} has no image for {arch}"
            raise InputError(message, hint=f"it has {_arches(pictures)}")
        pictures = fitting
    if len(pictures) != 1:
        message = f"{path} holds {len(pictures)} images: {_arches(pictures)}"
        raise InputError(message, hint="name one with --arch, or give an archive of one image")
    return pictures[0]


def _arches(pictures: list[Picture]) -> str:
    return ", ".join(sorted(one.configuration.architecture for one in pictures)) or "none"


def _manifests(holder: _Holder, entry: Descriptor) -> Iterator[Descriptor]:
    """The images that `entry` means; what BuildKit attaches to an image is none."""
    if "vnd.docker.reference.type" in entry.annotations:
        return
    if entry.media_type not in LISTS:
        yield entry
        return
    for inner in _decode(holder, holder.blob(entry.digest), Index, entry.digest).manifests:
        yield from _manifests(holder, inner)


def _picture(holder: _Holder, entry: Descriptor) -> Picture:
    manifest = _decode(holder, holder.blob(entry.digest), Manifest, entry.digest)
    config = holder.blob(manifest.config.digest)
    return Picture(
        path=holder.path,
        digest=entry.digest,
        configuration=_decode(holder, config, Configuration, manifest.config.digest),
        layers=tuple(holder.place(_name(layer.digest)) for layer in manifest.layers),
    )


def _listed(holder: _Holder, arch: Arch | None) -> Picture:
    """The one image of a `docker save` of old, whose files have names and no digests."""
    if not holder.has(LISTING):
        message = f"{holder.path} is no image: it has neither {INDEX_FILE} nor {LISTING}"
        raise InputError(message, hint=HINT)
    listed = _decode(holder, holder.data(LISTING), tuple[_Listed, ...], LISTING)
    pictures = []
    for item in listed:
        config = holder.data(item.config)
        pictures.append(
            Picture(
                path=holder.path,
                digest=digest_of(config),
                configuration=_decode(holder, config, Configuration, item.config),
                layers=tuple(holder.place(name) for name in item.layers),
            )
        )
    return _chosen(holder.path, pictures, arch)


class _Holder:
    """What holds the files of an image, by their names."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def place(self, name: str) -> Blob:
        """Where the file `name` lies; IntegrityError if it is not there."""
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
        with found.path.open("rb") as file:
            file.seek(found.part[0] if found.part else 0)
            return file.read(found.size)

    def blob(self, digest: Digest) -> bytes:
        """The document that is named by its digest."""
        found = self.data(_name(digest))
        if digest_of(found) != digest:
            message = f"{self.path}: {digest} is damaged: it has the digest sha256:{sha256(found)}"
            raise IntegrityError(message, hint="build or save the image again")
        return found


class _Folder(_Holder):
    def place(self, name: str) -> Blob:
        path = self.path / name
        try:
            return Blob(path=path, size=path.stat().st_size)
        except OSError as error:
            message = f"{path}: {error.strerror}"
            raise IntegrityError(message, hint="build the image again") from error


class _Archive(_Holder):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._members: dict[str, Blob] = {}
        self._links: dict[str, str] = {}
        try:
            with tarfile.open(path, "r:", encoding="utf-8") as tar:
                for member in tar:
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
            message = f"{path} is no tar archive: {error}"
            raise InputError(message, hint=f"{HINT}; not compressed as a whole") from error

    def place(self, name: str) -> Blob:
        found = self._members.get(self._links.get(name, name))
        if found is None:
            message = f"{self.path} has no {name}"
            raise IntegrityError(message, hint="save the image again")
        return found


def _decode(holder: _Holder, data: bytes, kind: type[T], name: str) -> T:
    return codec.decode(data, kind, file=f"{holder.path}: {name}", what="image", hint=HINT)


def _name(digest: Digest) -> str:
    return f"{BLOBS}/{digest.removeprefix('sha256:')}"
