"""Writes, reads and checks OCI image layouts. Each layout is a folder with one image.

skopeo, podman, umoci and containerd can read these layouts. `index.json` is replaced atomically
after all other files are written, and unreferenced blobs are then removed. If the process is
killed, the layout contains either the old or the new image.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from imgbuild import codec
from imgbuild.errors import ImgbuildError, InputError, IntegrityError
from imgbuild.oci import documents
from imgbuild.oci.documents import Descriptor, Index, Manifest
from imgbuild.oci.image import PlatformImage, images_by_arch, list_manifests, platform_image
from imgbuild.oci.reader import LayerFile
from imgbuild.oci.storage import BLOBS, INDEX_FILE, LayoutFolder
from imgbuild.system import files, known_hashes
from imgbuild.system.boundary import open_regular
from imgbuild.system.folder import OpenFolder, is_private
from imgbuild.system.placing import place_file
from imgbuild.system.reporter import SILENT_REPORTER, Reporter
from imgbuild.values import Arch, Digest, digest_of

MARKER = "oci-layout"
MARKER_TEXT = b'{"imageLayoutVersion":"1.0.0"}'
MARKER_LIMIT = 4096  # bytes; a marker has about thirty
REF_NAME = "org.opencontainers.image.ref.name"
TEMPORARY = ".tmp-"
REMEDY = "build the image again"
# Blobs, and temporary names of `_place_file` and `OpenFolder.write`.
_REMOVABLE = re.compile(
    rf"[0-9a-f]{{64}}|{re.escape(TEMPORARY)}[0-9a-f]{{32}}|\.[0-9a-f]{{64}}\..+\.tmp"
)


class _LayoutMarker(msgspec.Struct, frozen=True, rename="camel"):
    image_layout_version: str


class ImageFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The documents and layer files of an image to write, for one architecture."""

    config: bytes
    manifest: bytes
    layers: Mapping[Digest, Path]


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """An OCI layout on disk. `top` is the descriptor of the image's index or only manifest."""

    path: Path
    name: str
    top: Descriptor
    images: dict[Arch, PlatformImage]

    @property
    def digest(self) -> Digest:
        """The digest of the image."""
        return self.top.digest

    def blob(self, digest: Digest) -> Path:
        """Return the path of a blob in this layout."""
        return blob_path(self.path, digest)

    def layer_files(self, arch: Arch) -> tuple[LayerFile, ...]:
        """Return the layer files of the image for `arch`, bottom layer first."""
        stored = self.image(arch)
        return tuple(
            LayerFile(path=self.blob(layer.digest), diff_id=diff_id)
            for layer, diff_id in zip(stored.layers, stored.diff_ids, strict=True)
        )

    def require_intact(self, digest: Digest) -> None:
        """Raise IntegrityError if the content of a blob does not match `digest`."""
        path, fault = self.blob(digest), ""
        try:
            if not known_hashes.user_known_hashes().matches(path, digest.removeprefix("sha256:")):
                fault = f"{path} is damaged: its content does not match its digest"
        except OSError as error:
            fault = f"cannot read {path}: {error.strerror}"
        if fault:
            raise IntegrityError(fault, hint="build or pull the image again")

    def image(self, arch: Arch) -> PlatformImage:
        """Return the image for `arch`. Raises InputError if there is none."""
        if arch not in self.images:
            message = f"{self.path} has no image for {arch}, only {', '.join(sorted(self.images))}"
            raise InputError(message, hint=f"build it for {arch}, or choose another architecture")
        return self.images[arch]


def write_layout(
    out: Path,
    images: Mapping[Arch, ImageFiles],
    name: str,
    *,
    reporter: Reporter = SILENT_REPORTER,
) -> Digest:
    """Write `images` to the layout `out` with the tag `name`, and return the image digest.

    Layers are hard links to the given files. If a link cannot be created, the file is copied.
    Existing blobs are kept. Raises InputError if `out` is neither empty nor a layout, or if it
    contains another image.
    """
    texts = [data for summary in images.values() for data in (summary.config, summary.manifest)]
    layers = {
        digest: path for summary in images.values() for digest, path in summary.layers.items()
    }
    data_of = {arch: summary.manifest for arch, summary in images.items()}
    if len(data_of) == 1:
        ((arch, data),) = data_of.items()
        top = documents.create_descriptor(documents.MANIFEST, data, arch=arch)
    else:
        data = documents.create_index(data_of)
        top = documents.create_descriptor(documents.INDEX, data)
        texts.append(data)
    named = [
        layer
        for manifest in data_of.values()
        for layer in codec.decode(manifest, Manifest, file=str(out)).layers
    ]
    placed = [(layer, layers[layer.digest]) for layer in named]
    write_copied_layout(out, top, texts, placed, name, reporter=reporter)
    return top.digest


def write_copied_layout(
    out: Path,
    top: Descriptor,
    texts: Iterable[bytes],
    layers: Iterable[tuple[Descriptor, Path]],
    name: str,
    *,
    reporter: Reporter = SILENT_REPORTER,
) -> None:
    """Write the image `top`, from existing documents, to the layout `out`.

    Raises the same errors as `write_layout`.
    """
    with _lock_layout(out, name) as folder, files.plain_errors(out, hint=files.OUTPUT_HINT):
        with folder.folder(BLOBS) as blobs:
            for layer, path in layers:
                _place_file(out, blobs, layer, path, reporter)
            for data in texts:
                blobs.write(digest_of(data).removeprefix("sha256:"), data)
        folder.write(INDEX_FILE, index_file(top, {REF_NAME: name}))
        _remove_unused_blobs(folder, _referenced_blobs(out))


def refuse_others(out: Path, name: str) -> None:
    """Raise InputError if writing the image `name` to the layout `out` would delete another image.

    An image with the same name counts as an older version, which can be replaced. An unreadable
    index can be replaced, too.
    """
    try:
        entries = codec.read_document(out / INDEX_FILE, Index).manifests
    except ImgbuildError:
        return
    names = [entry.annotations.get(REF_NAME, "") for entry in entries]
    if names and names != [name]:
        others = ", ".join(sorted({other or "an unnamed image" for other in names} - {name}))
        message = (
            f"{out} contains images other than {name}: "
            f"{others or f'{len(names)} images with this name'}"
        )
        hint = "choose another folder with --output, or remove this folder"
        raise InputError(message, hint=hint)


def layout_source(out: Path) -> LayoutFolder:
    """Return the image in the layout `out`. Raises the same errors as `read_layout`."""
    read_layout(out)
    return LayoutFolder(out)


def index_file(top: Descriptor, annotations: dict[str, str]) -> bytes:
    """Return the content of `index.json` for the image with the descriptor `top`."""
    entry = msgspec.structs.replace(top, annotations=annotations)
    return codec.encode_compact(
        {"schemaVersion": 2, "mediaType": documents.INDEX, "manifests": [entry]}
    )


def read_layout(out: Path) -> Layout:
    """Read the layout `out`. Documents are checked against their digests, but layers are not.

    Raises InputError if `out` is not a layout of version 1.0, and IntegrityError if a document or
    the file `oci-layout` is damaged.
    """
    folder = LayoutFolder(out)
    if not folder.has(INDEX_FILE):
        message = f"{out} is not an OCI layout: it has no {INDEX_FILE}"
        hint = "build the target first, or pass the folder of a layout"
        raise InputError(message, hint=hint)
    _check_marker(out / MARKER)
    images = images_by_arch((platform_image(folder, each) for each in list_manifests(folder)), out)
    name = folder.entry.annotations.get(REF_NAME, "")
    return Layout(path=out, name=name, top=folder.top, images=images)


def _check_marker(path: Path) -> None:
    with (
        files.require_readable(path, IntegrityError, hint=REMEDY),
        open(path, "rb", opener=open_regular) as file,
    ):
        data = file.read(MARKER_LIMIT)
    try:
        version = codec.decode(data, _LayoutMarker, file=str(path)).image_layout_version
    except InputError as error:
        message = f"{path} is damaged: the layout version is missing"
        raise IntegrityError(message, hint=REMEDY) from error
    if re.fullmatch(r"1\.0\.[0-9]+", version) is None:
        message = f"{path}: unsupported layout version {version!r} (expected 1.0.x)"
        raise InputError(message, hint=REMEDY)


def has_complete_image(out: Path, digest: Digest, reporter: Reporter = SILENT_REPORTER) -> bool:
    """Return whether `out` contains the complete image `digest`.

    Layers with a known hash are not read again. A damaged layer is reported as a warning.
    """
    try:
        layout = read_layout(out)
    except ImgbuildError:
        return False
    layers = [layer for stored in layout.images.values() for layer in stored.layers]
    if layout.digest != digest or not all(
        has_blob(out, layer.digest, layer.size) for layer in layers
    ):
        return False
    damaged = [layout.blob(layer.digest) for layer in layers if not has_intact_blob(out, layer)]
    for path in damaged:
        reporter.warn(f"replacing {path}, which is damaged")
    return not damaged


def has_intact_blob(out: Path, layer: Descriptor) -> bool:
    """Return whether `out` has an undamaged blob of `layer` (see `system.known_hashes`).

    Returns False if the blob belongs to another user, who could change it later.
    """
    try:
        with open(blob_path(out, layer.digest), "rb", opener=open_regular) as file:
            status = os.fstat(file.fileno())
            right = known_hashes.user_known_hashes().matches_file(
                file, layer.digest.removeprefix("sha256:")
            )
    except (OSError, ImgbuildError):
        return False
    return right and status.st_uid == os.geteuid() and status.st_size == layer.size


@contextlib.contextmanager
def _lock_layout(out: Path, name: str) -> Iterator[OpenFolder]:
    """Lock `out` against other writers. The kernel releases the lock when this process ends.

    Links below `out` are not followed. If writing the image `name` fails, the previous image
    remains unchanged. If there was no image, all created files and folders are removed.
    """
    existed = out.is_dir()
    if existed and not (out / MARKER).exists() and any(out.iterdir()):
        message = f"{out} is neither empty nor an OCI layout"
        raise InputError(message, hint="choose another folder with --output, or empty this folder")
    with contextlib.ExitStack() as stack:
        folder, lock = _open_and_lock(out)
        stack.enter_context(folder)
        stack.callback(os.close, lock)
        folder.require_file(INDEX_FILE)
        refuse_others(out, name)
        try:
            if os.pread(lock, len(MARKER_TEXT) + 1, 0) != MARKER_TEXT:
                os.ftruncate(lock, 0)
                os.pwrite(lock, MARKER_TEXT, 0)
            yield folder
        except BaseException:
            _remove_leftovers(folder, existed=existed)
            raise


def _open_and_lock(out: Path) -> tuple[OpenFolder, int]:
    while True:
        try:
            with contextlib.ExitStack() as stack:
                folder = stack.enter_context(OpenFolder.open(out, make=True))
                folder.folder(BLOBS, make=True).close()
                lock = folder.file(MARKER, os.O_RDWR | os.O_CREAT)
                stack.pop_all()
        except OSError as error:
            if error.errno in files.DISK_FULL_ERRORS:
                raise files.convert_os_error(error, out, hint=files.OUTPUT_HINT) from error
            message = f"cannot write {error.filename or out}: {error.strerror}"
            raise InputError(message, hint="choose another folder with --output") from error
        fcntl.flock(lock, fcntl.LOCK_EX)
        if files.same_file(lock, out / MARKER):
            return folder, lock
        folder.close()
        os.close(lock)  # the earlier writer failed, and removed it


def _remove_leftovers(folder: OpenFolder, *, existed: bool) -> None:
    with contextlib.suppress(OSError, ImgbuildError):
        if folder.status(INDEX_FILE) is not None:
            _remove_unused_blobs(folder, _referenced_blobs(folder.path))
            return
        _remove_unused_blobs(folder, frozenset())
        for name in (BLOBS, str(Path(BLOBS).parent)):
            folder.remove_folder(name)
        folder.remove(MARKER)
        if not existed:
            folder.path.rmdir()


def _place_file(
    out: Path, blobs: OpenFolder, layer: Descriptor, source: Path, reporter: Reporter
) -> None:
    name = layer.digest.removeprefix("sha256:")
    size = source.stat().st_size
    if size != layer.size:
        message = f"{source} has {size} bytes (expected {layer.size}, from the manifest)"
        raise IntegrityError(message, hint="remove the file and build the image again")
    present = blobs.require_file(name)
    origin = source.stat()
    if present is not None and is_private(present):
        if os.path.samestat(present, origin):
            return
        if present.st_dev != origin.st_dev and has_intact_blob(out, layer):  # an earlier copy
            return
    place_file(blobs, name, source, name, reporter, prefix=TEMPORARY)


def _referenced_blobs(out: Path) -> frozenset[Digest]:
    layout = read_layout(out)
    named = {layout.digest}
    for stored in layout.images.values():
        named |= {stored.manifest.digest, stored.config.digest}
        named |= {layer.digest for layer in stored.layers}
    return frozenset(named)


def _remove_unused_blobs(folder: OpenFolder, used: frozenset[Digest]) -> None:
    """Remove blobs that are not in `used`, such as those of an older image or interrupted write.

    Files that imgbuild did not create are kept.
    """
    with folder.folder(BLOBS) as blobs:
        for name in filter(_REMOVABLE.fullmatch, blobs.names()):
            if f"sha256:{name}" not in used:
                with known_hashes.user_known_hashes().relinking(
                    blobs.path / name
                ):  # the cache has it too
                    blobs.remove(name)


def has_blob(out: Path, digest: Digest, size: int) -> bool:
    """Return whether `out` has a blob with this digest and size. The blob is not hashed."""
    try:
        return blob_path(out, digest).stat().st_size == size
    except OSError:
        return False


def blob_path(out: Path, digest: Digest) -> Path:
    """Return the path of the blob `digest` in the layout `out`."""
    return out / BLOBS / digest.removeprefix("sha256:")
