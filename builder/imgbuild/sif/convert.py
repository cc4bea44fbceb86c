"""An image in a layout to one file that runs without root: a SIF, or a squashfs for enroot.

Comes in: a layout. Goes out: a file, in one step (a rename), and what it is. Beside that file
nothing is written: layers are inflated, merged and compressed as one stream.
"""

from __future__ import annotations

import contextlib
import glob
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from imgbuild.errors import ImgbuildError, InputError, WorkFailed
from imgbuild.lock.lock import lock_path, read_lock
from imgbuild.oci.layout import Layout
from imgbuild.oci.merged import shown
from imgbuild.plan.seal import read_seal
from imgbuild.sif import container, enroot, files, squashfs
from imgbuild.sif.flat import Flat, Layer
from imgbuild.sif.image import archive, read
from imgbuild.system import files as disk
from imgbuild.system.console import console
from imgbuild.values import Arch, Bytes, Digest, digest_of_file

Format = Literal["sif", "squashfs"]
SUFFIXES: dict[Format, str] = {"sif": ".sif", "squashfs": ".sqsh"}


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How a file is made. The bytes do not depend on `processors`."""

    format: Format = "sif"
    compressor: squashfs.Compressor = "zstd"
    processors: int | None = None


class Pushed(msgspec.Struct, frozen=True, kw_only=True):
    """A SIF in a registry. `image` is the manifest that it refers to."""

    reference: str
    digest: Digest
    image: Digest
    moved: int


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was made of an image. The version of mksquashfs, `tool`, decides its bytes."""

    name: str
    arch: Arch
    image: Digest
    output: Path
    format: Format
    compressor: squashfs.Compressor
    tool: str
    size: Bytes
    digest: Digest
    pushed: Pushed | None = None


def convert(
    layout: Layout,
    arch: Arch,
    out: Path,
    options: Options,
    *,
    lock: bytes = b"",
    layers: Sequence[Layer] | None = None,
) -> Made:
    """Make `out` of the image of `layout` on `arch`; `lock` is its lock.json, if it has one.

    `layers`, bottom first, stand for those of a layout that has the documents alone: the bytes of
    the file follow from their content, not from how it is compressed.

    ToolMissing if there is no mksquashfs, IntegrityError if a layer is damaged.
    """
    tool = squashfs.find()
    image = read(layout, arch, lock)
    flat = Flat()
    if layers is None:
        layers = [
            Layer(path=layout.blob(layer.digest), digest=layer.digest, size=layer.size)
            for layer in layout.image(arch).layers
        ]
    flat.add(layers)
    for attribute, path in flat.lost.items():
        console.warn(f"{image.name}: a squashfs holds no attribute {attribute!r}: {shown(path)}"
                     " and others lose it")  # fmt: skip
    own = files if options.format == "sif" else enroot
    flat.add([Layer(path=out, data=archive(own.members(image, flat.tree)))])
    objects = files.objects(image) if options.format == "sif" else []
    offset = container.file_system_at(objects) if options.format == "sif" else 0
    form = squashfs.Form(
        compressor=options.compressor,
        time=max(image.time, flat.newest),
        processors=options.processors,
    )
    with _written(out) as temporary:
        with console.progress(f"writing {out.name}", flat.size) as bar:
            chunks = flat.chunks(bar.advance)
            squashfs.write(tool, chunks, flat.tree.root, temporary, form, offset=offset)
        if options.format == "sif":
            container.finish(temporary, objects, arch, image.time)
            temporary.chmod(0o755 & ~_umask())  # a SIF is a program where Apptainer is installed
        size, digest = _measured(temporary)
    return Made(
        name=image.name, arch=arch, image=image.digest, output=out, format=options.format,
        compressor=options.compressor, tool=tool.version, size=size, digest=digest,
    )  # fmt: skip


def lock_of(images: Path, target: str, layout: Layout, arch: Arch) -> bytes:
    """The lock.json of `target` if the image of `layout` is what follows from it, else nothing."""
    built = layout.image(arch).manifest.digest
    try:
        sealed = read_seal(images, read_lock(images, target)).arch.get(arch)
    except ImgbuildError as error:
        console.warn(f"{target}: its lock is left out: {error}")
        return b""
    if sealed is None or sealed.manifest != built:
        console.warn(f"{layout.path} holds {built}, which is not what the lock of {target} gives;"
                     f" the lock is left out (imgbuild build --target {target})")  # fmt: skip
        return b""
    return lock_path(images, target).read_bytes()


def lock_of_any(images: Path, layout: Layout, arch: Arch) -> bytes:
    """The lock.json below `images` from which the image of `layout` follows; nothing if none does.

    Of the target that the layout is named after, else there is none: locks of others are not read.
    """
    target = Path(layout.name).name
    if target and lock_path(images, target).exists():
        return lock_of(images, target, layout, arch)
    console.warn(f"{layout.path}: no lock here gives its image, and none is put in")
    return b""


@contextlib.contextmanager
def _written(out: Path) -> Iterator[Path]:
    """A file to write, which becomes `out` if all goes well and is gone otherwise.

    It is locked, so that what a killed process left behind is known by its being free, and removed.
    """
    if out.is_dir():
        message = f"{out} is a folder"
        raise InputError(message, hint="name a file with --output")
    temporary = out.with_name(f".{out.name}.{secrets.token_hex(4)}.tmp")
    with contextlib.ExitStack() as held:
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            _sweep(out)
            file = held.enter_context(temporary.open("xb"))
            held.callback(temporary.unlink, missing_ok=True)
            with contextlib.suppress(OSError):  # a file system without locks: then none is swept
                disk.try_lock(file.fileno())
        except OSError as error:
            message = f"cannot write {error.filename or out}: {error.strerror}"
            raise InputError(message, hint="name another file with --output") from error
        try:
            yield temporary
            temporary.replace(out)
        except OSError as error:
            message = f"cannot write {out}: {error.strerror}"
            hint = "make room, or name another file with --output"
            raise WorkFailed(message, hint=hint) from error


def _sweep(out: Path) -> None:
    """Remove what killed processes left of `out`."""
    for left in out.parent.glob(f".{glob.escape(out.name)}.*.tmp"):
        with contextlib.suppress(OSError), left.open("rb") as file:
            if disk.try_lock(file.fileno()):
                left.unlink()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _measured(path: Path) -> tuple[Bytes, Digest]:
    with path.open("rb") as file:
        digest = digest_of_file(file)
    return path.stat().st_size, digest
