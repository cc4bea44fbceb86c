"""Reads images from OCI layouts, and from archives such as the output of `docker save`."""

from __future__ import annotations

import hashlib
import stat
import tarfile
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import msgspec

from imgbuild import codec
from imgbuild.errors import InputError, IntegrityError
from imgbuild.oci.documents import Descriptor, Index
from imgbuild.oci.reader import LayerFile, check_digests
from imgbuild.system.boundary import open_regular, reads_untrusted
from imgbuild.system.files import require_readable
from imgbuild.values import Digest, digest_of

INDEX_FILE = "index.json"
BLOBS = "blobs/sha256"
MEMBER_LIMIT = 10_000  # files of an archive; an image has some hundred blobs
DOCUMENT_LIMIT = 16 << 20  # bytes; a configuration has some kilobytes
CHUNK = 1 << 20
HINT = "pass an OCI layout, an archive of one, or the output of `docker save` or `podman save`"
BUILD_AGAIN_REMEDY = "build or save the image again"

T = TypeVar("T")


class BlobLocation(msgspec.Struct, frozen=True, kw_only=True):
    """The location of a blob: a file, or a `part` (offset, length) of an archive."""

    path: Path
    size: int
    part: tuple[int, int] | None = None


class ImageStorage:
    """A folder or an archive that contains the files of an image."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)

    @property
    def top(self) -> Descriptor:
        """Implements `ImageSource.top`."""
        return msgspec.structs.replace(self.entry, annotations={})

    @cached_property
    def entry(self) -> Descriptor:
        """The only descriptor in `index.json`, with its annotations."""
        entries = decode_document(self, self.data(INDEX_FILE), Index, INDEX_FILE).manifests
        if len(entries) != 1:
            message = f"{self.path}: {INDEX_FILE} has {len(entries)} images"
            raise InputError(message, hint="pass a layout with one image")
        return entries[0]

    def place(self, name: str) -> BlobLocation:
        """Return the location of the file `name`. Raises IntegrityError if it is missing."""
        raise NotImplementedError

    def has(self, name: str) -> bool:
        """Return whether the file `name` exists."""
        try:
            self.place(name)
        except IntegrityError:
            return False
        return True

    def data(self, name: str) -> bytes:
        """Return the content of the file `name`, which must have the size of a document."""
        blob = self.place(name)
        if blob.size > DOCUMENT_LIMIT:
            message = (
                f"{self.path}: {name} has {blob.size} bytes, which is too large for a document"
            )
            raise IntegrityError(message, hint=HINT)
        with (
            require_readable(blob.path, IntegrityError, hint=BUILD_AGAIN_REMEDY),
            blob.path.open("rb") as file,
        ):
            file.seek(blob.part[0] if blob.part else 0)
            return file.read(blob.size)

    def read_document(self, descriptor: Descriptor) -> bytes:
        """Implements `ImageSource.read_document`."""
        data = self.data(blob_name(descriptor.digest))
        self._check_equal(descriptor.digest, digest_of(data))
        return data

    def size(self, layer: Descriptor) -> int | None:
        """Implements `ImageSource.size`."""
        try:
            return self.place(blob_name(layer.digest)).size
        except IntegrityError:
            return None

    def read(
        self, layer: Descriptor, advance: Callable[[int], object], diff_id: Digest | None = None
    ) -> None:
        """Implements `ImageSource.read`."""
        blob = self.place(blob_name(layer.digest))
        hashed, left = hashlib.sha256(), blob.size
        try:
            with blob.path.open("rb") as file:
                file.seek(blob.part[0] if blob.part else 0)
                while chunk := file.read(min(CHUNK, left)):
                    hashed.update(chunk)
                    left -= len(chunk)
                    advance(len(chunk))
        except OSError as error:
            message = f"cannot read {error.filename}: {error.strerror}"
            raise IntegrityError(message, hint=BUILD_AGAIN_REMEDY) from error
        self._check_equal(layer.digest, f"sha256:{hashed.hexdigest()}")
        if diff_id is not None:
            check_digests(LayerFile(path=blob.path, part=blob.part, diff_id=diff_id), layer.digest)

    def _check_equal(self, named: Digest, actual: Digest) -> None:
        if named != actual:
            message = f"{self.path}: {named} has the digest {actual}"
            raise IntegrityError(message, hint=BUILD_AGAIN_REMEDY)


class LayoutFolder(ImageStorage):
    """An OCI layout."""

    def place(self, name: str) -> BlobLocation:
        """Implements `ImageStorage.place`."""
        path = self.path / name
        try:
            status = path.stat()
        except OSError as error:
            message = f"{path}: {error.strerror}"
            raise IntegrityError(message, hint="build the image again") from error
        if not stat.S_ISREG(status.st_mode):
            message = f"{path} is not a regular file"
            raise IntegrityError(message, hint="build the image again")
        return BlobLocation(path=path, size=status.st_size)


class ImageArchive(ImageStorage):
    """An archive of an OCI layout, or the output of `docker save`."""

    @reads_untrusted("path", hint=HINT)
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._members: dict[str, BlobLocation] = {}
        self._links: dict[str, str] = {}
        try:
            with (
                open(path, "rb", opener=open_regular) as file,
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
                        self._members[name] = BlobLocation(path=path, size=member.size, part=part)
        except OSError as error:
            message = f"cannot read {path}: {error.strerror}"
            raise InputError(message, hint=HINT) from error
        except tarfile.TarError as error:
            message = f"{path} is not a tar archive: {error}"
            raise InputError(
                message, hint=f"{HINT}; decompress a compressed archive first"
            ) from error

    def place(self, name: str) -> BlobLocation:
        """Implements `ImageStorage.place`."""
        blob = self._members.get(self._links.get(name, name))
        if blob is None:
            message = f"{self.path} has no {name}"
            raise IntegrityError(message, hint="save the image again")
        return blob


def decode_document(holder: ImageStorage, data: bytes, kind: type[T], name: str) -> T:
    """Decode `data`, the content of the file `name` in `holder`."""
    return codec.decode(data, kind, file=f"{holder.path}: {name}", what="image", hint=HINT)


def blob_name(digest: Digest) -> str:
    """Return the file name of the blob with `digest` in an image."""
    return f"{BLOBS}/{digest.removeprefix('sha256:')}"
