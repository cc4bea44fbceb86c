"""Runs a command in an image that lies in a layout: through an engine, or in a root folder.

Comes in: a layout and a command. Goes out: the command's status. A root folder needs no engine and
no root; it is unpacked for the command and removed after it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from imgbuild import codec
from imgbuild.cache.store import Store
from imgbuild.container import engine, sandbox
from imgbuild.errors import ImgbuildError, IntegrityError
from imgbuild.oci import tree
from imgbuild.oci.layout import Layout
from imgbuild.oci.unpack import unpack
from imgbuild.plan.seal import Seal, seal_path
from imgbuild.system.console import console
from imgbuild.system.process import Result
from imgbuild.values import Arch


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """A command that ended. `through` is "docker", "podman" or "root"; text only if captured."""

    through: str
    status: int
    stdout: str
    stderr: str


class Running(msgspec.Struct, frozen=True):
    """The part of an image configuration that a command needs, as image-spec names it."""

    env: tuple[str, ...] = msgspec.field(default=(), name="Env")
    entrypoint: tuple[str, ...] = msgspec.field(default=(), name="Entrypoint")
    command: tuple[str, ...] = msgspec.field(default=(), name="Cmd")
    workdir: str = msgspec.field(default="/", name="WorkingDir")


def running(layout: Layout, arch: Arch) -> Running:
    """Environment, entry point, command and folder of the image on `arch`."""
    try:
        return msgspec.convert(layout.image(arch).settings, Running)
    except msgspec.ValidationError as error:
        message = f"{layout.path}: the configuration for {arch} is none: {error}"
        raise IntegrityError(message, hint="build it again") from error


def unpacked_size(images: Path, target: str, layout: Layout, arch: Arch) -> int | None:
    """Bytes of the image's layers once inflated, if the seal of `target` is of that image.

    None if nobody knows: it only makes a progress bar better.
    """
    try:
        sealed = codec.read(seal_path(images, target), Seal).arch.get(arch)
    except (OSError, ImgbuildError):
        return None
    if sealed is None or sealed.manifest != layout.image(arch).manifest.digest:
        return None
    sizes = [layer.unpacked for layer in sealed.layers]
    return sum(sizes) if all(sizes) else None  # a registry does not say how large its layers are


@contextlib.contextmanager
def root_folder(
    layout: Layout, arch: Arch, store: Store, *, unpacked: int | None = None
) -> Iterator[Path]:
    """The image on `arch` as a folder, which is gone when the work is done.

    `unpacked` is its size in bytes, for the progress bar.
    """
    blobs = [layout.blob(layer.digest) for layer in layout.image(arch).layers]
    with store.scratch() as scratch:
        root = scratch / "root"
        with console.step(f"unpacking {layout.path.name}"):
            unpack(blobs, root, unpacked=unpacked)
        try:
            yield root
        finally:
            tree.remove(root)  # an image may hold folders that their owner may not write


def environment(settings: Running) -> dict[str, str]:
    """The environment that the image sets, by name."""
    return dict(item.split("=", 1) for item in settings.env)


def run_in_root(
    root: Path,
    settings: Running,
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    binds: Sequence[sandbox.Bind] = (),
    network: bool = False,
    stream: bool = False,
) -> Result:
    """Run `command` (none: the image's own) in the folder `root`, through the entry point."""
    return sandbox.run(
        root,
        [*settings.entrypoint, *(command or settings.command)],
        env=environment(settings) | dict(env or {}),
        binds=binds,
        cwd=settings.workdir,
        network=network,
        stream=stream,
    )


def run(
    layout: Layout,
    arch: Arch,
    tag: str,
    command: Sequence[str],
    *,
    through: str | None,
    store: Store,
    settings: engine.Running,
    stream: bool = True,
    unpacked: int | None = None,
) -> Ran:
    """Run `command` with this terminal, or captured without `stream`; the status is the command's.

    `through` names "docker", "podman" or "root"; None takes the engine that answers, else a root
    folder. ToolMissing if the one that is named does not answer.
    """
    found = None if through == "root" else engine.find(through)
    if found is None and through in ("docker", "podman"):
        engine.require(through)
    if found is not None:
        loaded = engine.load(found, layout, arch, tag)
        done = engine.run(found, loaded.reference, command, settings, stream=stream)
        return _ran(found.kind, done)
    with root_folder(layout, arch, store, unpacked=unpacked) as root:
        own = running(layout, arch)
        done = run_in_root(root, own, command, network=settings.network, stream=stream)
        return _ran("root", done)


def _ran(through: str, done: Result) -> Ran:
    return Ran(through=through, status=done.status, stdout=done.stdout, stderr=done.stderr)
