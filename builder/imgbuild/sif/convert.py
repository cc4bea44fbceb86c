"""Converts an image in a layout to one file: a SIF, or a squashfs for enroot.

Layers are decompressed, merged and compressed as one stream, without temporary files. The output
appears under its final name only when it is complete.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from imgbuild.errors import ImgbuildError, InputError, WorkFailed
from imgbuild.lock.lock_file import lock_path, read_lock
from imgbuild.oci.layout import Layout
from imgbuild.plan.image_digests import read_digests
from imgbuild.sif import container, enroot, files, squashfs
from imgbuild.sif.flat import FlatTree, LayerSource
from imgbuild.sif.image import layer_archive, read_sif_source
from imgbuild.system import boundary
from imgbuild.system.control_characters import shown_path
from imgbuild.system.files import replace_file
from imgbuild.system.reporter import SILENT_REPORTER, Reporter
from imgbuild.values import Arch, Bytes, Digest, digest_of_file

Format = Literal["sif", "squashfs"]
SUFFIXES: dict[Format, str] = {"sif": ".sif", "squashfs": ".sqsh"}


class ConvertOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The format and compressor of the output. `processors` has no effect on its bytes."""

    format: Format = "sif"
    compressor: squashfs.Compressor = "zstd"
    processors: int | None = None


class PushedSif(msgspec.Struct, frozen=True, kw_only=True):
    """A SIF in a registry.

    `image` is the image manifest, and `moved` is the number of uploaded bytes.
    """

    reference: str
    digest: Digest
    image: Digest
    moved: int


class ConvertedImage(msgspec.Struct, frozen=True, kw_only=True):
    """A SIF or squashfs of an image. Its bytes depend on `tool`, the version of mksquashfs."""

    name: str
    arch: Arch
    image: Digest
    output: Path
    format: Format
    compressor: squashfs.Compressor
    tool: str
    size: Bytes
    digest: Digest
    pushed: PushedSif | None = None


def convert_image(
    layout: Layout,
    arch: Arch,
    out: Path,
    options: ConvertOptions,
    *,
    lock: bytes = b"",
    reporter: Reporter = SILENT_REPORTER,
) -> ConvertedImage:
    """Write the image of `layout` for `arch`, and its lock.json `lock` if any, to `out`.

    The bytes of the output depend on the content of the layers, not on their compression. Raises
    ToolMissing if mksquashfs is missing, and IntegrityError if a layer is damaged.
    """
    tool = squashfs.find_mksquashfs()
    image = read_sif_source(layout, arch, lock)
    flat = FlatTree()
    layers = [
        LayerSource(path=file.path, digest=layer.digest, size=layer.size, diff_id=file.diff_id)
        for layer, file in zip(layout.image(arch).layers, layout.layer_files(arch), strict=True)
    ]
    flat.add(layers, reporter=reporter)
    for attribute, path in flat.lost_attributes.items():
        reporter.warn(
            f"{image.name}: a squashfs cannot store the attribute {attribute!r}, so"
            f" {shown_path(path)} and others are written without it"
        )
    for name in files.unsettable_variables(image) if options.format == "sif" else ():
        reporter.warn(f"{image.name}: omitted the variable {name!r}, which a shell cannot set")
    added = files.sif_members if options.format == "sif" else enroot.enroot_members
    flat.add([LayerSource(path=out, data=layer_archive(added(image, flat.tree)))])
    objects = files.sif_objects(image) if options.format == "sif" else []
    offset = container.file_system_offset(objects) if options.format == "sif" else 0
    with _temporary_output(out) as temporary:
        with reporter.progress(f"writing {out.name}", flat.size) as bar:
            chunks = flat.chunks(bar.advance)
            squashfs.write_squashfs(
                tool,
                chunks,
                flat.tree.root,
                temporary,
                compressor=options.compressor,
                time=max(image.time, flat.newest_time),
                processors=options.processors,
                offset=offset,
            )
        if options.format == "sif":
            container.write_container(temporary, objects, arch, image.time)
            temporary.chmod(0o755 & ~_umask())  # with Apptainer installed, a SIF can be executed
        size, digest = _measure_file(temporary)
    return ConvertedImage(
        name=image.name, arch=arch, image=image.digest, output=out, format=options.format,
        compressor=options.compressor, tool=tool.version, size=size, digest=digest,
    )  # fmt: skip


def find_lock_of_target(
    images: Path, target: str, layout: Layout, arch: Arch, *, reporter: Reporter = SILENT_REPORTER
) -> bytes:
    """Return the lock.json of `target` if it matches the image of `layout`, otherwise b""."""
    built = layout.image(arch).manifest.digest
    try:
        target_digests = read_digests(images, read_lock(images, target)).arch.get(arch)
    except ImgbuildError as error:
        reporter.warn(f"{target}: the output will not contain a lock: {error}")
        return b""
    if target_digests is None or target_digests.manifest != built:
        reporter.warn(
            f"{layout.path} has {built}, which does not match the lock of {target}, so the output"
            f" will not contain a lock; to build the locked image, run: imgbuild build {target}"
        )
        return b""
    return boundary.read_regular_file(lock_path(images, target))


def find_lock_of_image(
    images: Path, layout: Layout, arch: Arch, *, reporter: Reporter = SILENT_REPORTER
) -> bytes:
    """Return the lock.json of the image of `layout`, or b"" if there is none.

    Only the lock of the target with the layout's name is read.
    """
    target = Path(layout.name).name
    if target and lock_path(images, target).exists():
        return find_lock_of_target(images, target, layout, arch, reporter=reporter)
    reporter.warn(f"{layout.path}: found no lock of the image, so the output will not contain one")
    return b""


@contextlib.contextmanager
def _temporary_output(out: Path) -> Iterator[Path]:
    """Yield a temporary file, which is renamed to `out` on success and removed on failure."""
    if out.is_dir():
        message = f"{out} is a folder"
        raise InputError(message, hint="pass a file with --output")
    stack = contextlib.ExitStack()
    try:
        file = stack.enter_context(replace_file(out))
    except OSError as error:
        message = f"cannot write {out}: {error.strerror}"
        raise InputError(message, hint="choose another file with --output") from error
    try:
        with stack:
            yield Path(file.name)
    except OSError as error:
        message = f"cannot write {out}: {error.strerror}"
        hint = "free some space, or choose another file with --output"
        raise WorkFailed(message, hint=hint) from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _measure_file(path: Path) -> tuple[Bytes, Digest]:
    with path.open("rb") as file:
        digest = digest_of_file(file)
    return path.stat().st_size, digest
