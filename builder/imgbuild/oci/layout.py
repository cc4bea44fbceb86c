"""Writes and reads OCI image layouts: folders with one image, for one or several architectures.

skopeo, podman, umoci and containerd can read them. `index.json` is written last, by an atomic
rename, and blobs that it no longer refers to are removed after that. A killed process thus leaves
either the old image or the new one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from imgbuild import codec
from imgbuild.errors import ImgbuildError, InputError, IntegrityError
from imgbuild.oci import documents
from imgbuild.oci.documents import Descriptor, Manifest
from imgbuild.oci.image import BLOBS, INDEX_FILE, Folder, manifests, platform_image
from imgbuild.system import files
from imgbuild.system.boundary import regular
from imgbuild.system.reporter import SILENT, Reporter
from imgbuild.values import Arch, Digest, digest_of

MARKER = "oci-layout"
MARKER_TEXT = b'{"imageLayoutVersion":"1.0.0"}'
MARKER_LIMIT = 4096  # bytes; a marker has about thirty
REF_NAME = "org.opencontainers.image.ref.name"
TEMPORARY = ".tmp-"
REMEDY = "build it again"


class _Marker(msgspec.Struct, frozen=True, rename="camel"):
    image_layout_version: str


class ImageFiles(msgspec.Struct, frozen=True, kw_only=True):
    """An image on one architecture, to be written: its documents, and the file of each layer."""

    config: bytes
    manifest: bytes
    layers: Mapping[Digest, Path]


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """An image on one architecture in a layout; `settings` is its configuration's `config`."""

    manifest: Descriptor
    config: Descriptor
    layers: tuple[Descriptor, ...]
    diff_ids: tuple[Digest, ...]
    settings: dict[str, object]


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """A layout that was read. `top` is the descriptor of its only manifest, or of its index.

    `notes` are the annotations in `index.json`, which are not covered by a digest.
    """

    path: Path
    name: str
    top: Descriptor
    images: dict[Arch, Stored]
    notes: dict[str, str] = {}

    @property
    def digest(self) -> Digest:
        """The digest of the image."""
        return self.top.digest

    def blob(self, digest: Digest) -> Path:
        """The path of a blob in this layout."""
        return blob(self.path, digest)

    def image(self, arch: Arch) -> Stored:
        """The image on `arch`; InputError, with the available ones, if there is none."""
        if arch not in self.images:
            message = f"{self.path} has no image for {arch}, only {', '.join(sorted(self.images))}"
            raise InputError(message, hint=f"build it for {arch}, or choose another architecture")
        return self.images[arch]


def write(
    out: Path,
    images: Mapping[Arch, ImageFiles],
    name: str,
    *,
    notes: Mapping[str, str] | None = None,
    reporter: Reporter = SILENT,
) -> Digest:
    """Write the layout `out` of `images`, with the tag `name`; returns the digest of the image.

    Layers are hard links to the given files. If a link cannot be made they are copied, and a blob
    that exists with the right size is kept. `notes` are annotations in `index.json`, which are not
    covered by a digest. InputError if `out` is not empty and not a layout.
    """
    texts = [data for summary in images.values() for data in (summary.config, summary.manifest)]
    layers = {digest: path for one in images.values() for digest, path in one.layers.items()}
    data_of = {arch: summary.manifest for arch, summary in images.items()}
    if len(data_of) == 1:
        ((arch, data),) = data_of.items()
        top = documents.descriptor(documents.MANIFEST, data, arch=arch)
    else:
        data = documents.index(data_of)
        top = documents.descriptor(documents.INDEX, data)
        texts.append(data)
    named = [
        layer
        for manifest in data_of.values()
        for layer in codec.decode(manifest, Manifest, file=str(out)).layers
    ]
    placed = [(layer, layers[layer.digest]) for layer in named]
    keep(out, top, texts, placed, name, notes=notes, reporter=reporter)
    return top.digest


def keep(
    out: Path,
    top: Descriptor,
    texts: Iterable[bytes],
    layers: Iterable[tuple[Descriptor, Path]],
    name: str,
    *,
    notes: Mapping[str, str] | None = None,
    reporter: Reporter = SILENT,
) -> None:
    """Write the layout `out` of the image `top`, like `write`, from its existing documents."""
    with _exclusive(out), files.plain_errors(out, hint=files.OUTPUT_HINT):
        for layer, path in layers:
            _place_file(out, layer, path, reporter)
        for data in texts:
            _place_bytes(out, data)
        annotations = {**(notes or {}), REF_NAME: name}
        codec.write_bytes(out / INDEX_FILE, index_file(top, annotations))
        _sweep(out)


def source(out: Path) -> Folder:
    """The image in the layout `out`, to read; errors as of `read`."""
    read(out)
    return Folder(out)


def index_file(top: Descriptor, annotations: dict[str, str]) -> bytes:
    """The bytes of `index.json` for an image whose descriptor is `top`."""
    entry = msgspec.structs.replace(top, annotations=annotations)
    return codec.compact({"schemaVersion": 2, "mediaType": documents.INDEX, "manifests": [entry]})


def read(out: Path) -> Layout:
    """Read the layout `out`, and check its documents, but not its layers, against their digests.

    InputError if it is not a layout of version 1.0, IntegrityError if a document or the marker is
    damaged.
    """
    folder = Folder(out)
    if not folder.has(INDEX_FILE):
        message = f"{out} is not an OCI layout: it has no {INDEX_FILE}"
        hint = "build the target first, or pass the folder of a layout"
        raise InputError(message, hint=hint)
    _check_marker(out / MARKER)
    images = {}
    for descriptor in manifests(folder):
        found = platform_image(folder, descriptor)
        images[found.arch] = Stored(
            manifest=found.descriptor,
            config=found.manifest.config,
            layers=found.layers,
            diff_ids=found.configuration.rootfs.diff_ids,
            settings=found.configuration.config or {},
        )
    annotations = folder.entry.annotations
    return Layout(
        path=out,
        name=annotations.get(REF_NAME, ""),
        top=folder.top,
        images=images,
        notes={key: text for key, text in annotations.items() if key != REF_NAME},
    )


def _check_marker(path: Path) -> None:
    try:
        with open(path, "rb", opener=regular) as file:
            data = file.read(MARKER_LIMIT)
        version = codec.decode(data, _Marker, file=str(path)).image_layout_version
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}"
        raise IntegrityError(message, hint=REMEDY) from error
    except InputError as error:
        message = f"{path} is damaged: it has no version of the layout"
        raise IntegrityError(message, hint=REMEDY) from error
    if re.fullmatch(r"1\.0\.[0-9]+", version) is None:
        message = f"{path}: unsupported layout version {version!r} (expected 1.0.x)"
        raise InputError(message, hint=REMEDY)


def check(out: Path, digest: Digest) -> bool:
    """Whether `out` has the image `digest`, and each layer has its size; layers are not hashed."""
    try:
        found = read(out)
    except ImgbuildError:
        return False
    layers = (layer for stored in found.images.values() for layer in stored.layers)
    return found.digest == digest and all(has(out, layer.digest, layer.size) for layer in layers)


@contextlib.contextmanager
def _exclusive(out: Path) -> Iterator[None]:
    """Lock `out` against other writers; the kernel releases the lock when this process ends.

    If writing fails, the image that was there before stays alone: without one, nothing stays, nor
    does a folder that was made here.
    """
    existed = out.is_dir()
    if existed and not (out / MARKER).exists() and any(out.iterdir()):
        message = f"{out} is not empty and not an OCI layout"
        raise InputError(message, hint="choose another folder with --output, or empty this one")
    lock = _lock(out)
    try:
        if os.pread(lock, len(MARKER_TEXT) + 1, 0) != MARKER_TEXT:
            os.ftruncate(lock, 0)
            os.pwrite(lock, MARKER_TEXT, 0)
        yield
    except BaseException:
        _drop(out, existed=existed)
        raise
    finally:
        os.close(lock)


def _lock(out: Path) -> int:
    while True:
        try:
            (out / BLOBS).mkdir(parents=True, exist_ok=True)
            lock = os.open(out / MARKER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            if error.errno in files.FULL:
                raise files.described(error, out, hint=files.OUTPUT_HINT) from error
            message = f"cannot write {error.filename or out}: {error.strerror}"
            raise InputError(message, hint="choose another folder with --output") from error
        fcntl.flock(lock, fcntl.LOCK_EX)
        if files.same_file(lock, out / MARKER):
            return lock
        os.close(lock)  # the writer before failed, and removed it


def _drop(out: Path, *, existed: bool) -> None:
    """Remove what an interrupted write has left in `out`; errors here hide no other."""
    with contextlib.suppress(OSError, ImgbuildError):
        if (out / INDEX_FILE).exists():
            _sweep(out)
            return
        shutil.rmtree((out / BLOBS).parent)
        (out / MARKER).unlink()
        if not existed:
            out.rmdir()


def _place_bytes(out: Path, data: bytes) -> None:
    codec.write_bytes(blob(out, digest_of(data)), data)


def _place_file(out: Path, layer: Descriptor, source: Path, reporter: Reporter) -> None:
    place = blob(out, layer.digest)
    present = has(out, layer.digest, layer.size)
    if present and place.samefile(source):
        return
    size = source.stat().st_size
    if size != layer.size:
        message = f"{source} has {size} bytes (expected {layer.size}, from the manifest)"
        raise IntegrityError(message, hint="remove that file and build again")
    temporary = place.with_name(f"{TEMPORARY}{place.name}")
    temporary.unlink(missing_ok=True)
    try:
        try:
            temporary.hardlink_to(source)
        except OSError as error:  # another file system, no support for links, or too many links
            if present:
                return
            reporter.detail(f"copying {source} to {place}: {error.strerror}")
            shutil.copyfile(source, temporary)
        temporary.replace(place)
    finally:
        temporary.unlink(missing_ok=True)


def _sweep(out: Path) -> None:
    """Remove unused blobs: those of an older image, and leftovers of a killed process."""
    found = read(out)
    named = {found.digest}
    for stored in found.images.values():
        named |= {stored.manifest.digest, stored.config.digest}
        named |= {layer.digest for layer in stored.layers}
    kept = {digest.removeprefix("sha256:") for digest in named}
    for path in (out / BLOBS).iterdir():
        if path.name not in kept:
            path.unlink()


def has(out: Path, digest: Digest, size: int) -> bool:
    """Whether `out` has a blob with this digest in its name and this size; it is not hashed."""
    try:
        return blob(out, digest).stat().st_size == size
    except OSError:
        return False


def blob(out: Path, digest: Digest) -> Path:
    """The path of the blob `digest` in the layout `out`."""
    return out / BLOBS / digest.removeprefix("sha256:")
