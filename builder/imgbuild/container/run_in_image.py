"""Runs a command in the image of a layout, with an engine or in a root folder.

A root folder needs neither an engine nor root: the image is unpacked for the command, and removed
afterwards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from imgbuild import codec
from imgbuild.cache.store import Store
from imgbuild.container import engine, sandbox
from imgbuild.container.load import load
from imgbuild.errors import ImgbuildError, IntegrityError
from imgbuild.oci import tree
from imgbuild.oci.layout import Layout
from imgbuild.oci.unpack import unpack
from imgbuild.plan.seal import Seal, seal_path
from imgbuild.system.process import Result
from imgbuild.system.reporter import SILENT, Reporter
from imgbuild.values import Arch


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """A finished command. `through` is "docker", "podman" or "root"; text only if captured."""

    through: str
    status: int
    stdout: str
    stderr: str


class CommandConfig(msgspec.Struct, frozen=True):
    """The part of an image configuration that running a command needs, from image-spec 1.1."""

    env: tuple[str, ...] = msgspec.field(default=(), name="Env")
    entrypoint: tuple[str, ...] = msgspec.field(default=(), name="Entrypoint")
    command: tuple[str, ...] = msgspec.field(default=(), name="Cmd")
    workdir: str = msgspec.field(default="/", name="WorkingDir")


def running(layout: Layout, arch: Arch) -> CommandConfig:
    """Environment, entry point, command and working folder of the image on `arch`.

    IntegrityError if the configuration is invalid.
    """
    try:
        return msgspec.convert(layout.image(arch).settings, CommandConfig)
    except msgspec.ValidationError as error:
        message = f"{layout.path}: invalid image configuration for {arch}: {error}"
        raise IntegrityError(message, hint="build it again") from error


def unpacked_size(images: Path, target: str, layout: Layout, arch: Arch) -> int | None:
    """The inflated size of the image's layers, for a progress bar; None if unknown.

    It is known if the `digests.json` of `target` is that of the image.
    """
    try:
        sealed = codec.read(seal_path(images, target), Seal).arch.get(arch)
    except (OSError, ImgbuildError):
        return None
    if sealed is None or sealed.manifest != layout.image(arch).manifest.digest:
        return None
    sizes = [layer.unpacked for layer in sealed.layers]
    return sum(sizes) if all(sizes) else None  # unknown for layers of a registry base


@contextlib.contextmanager
def root_folder(
    layout: Layout,
    arch: Arch,
    store: Store,
    *,
    unpacked: int | None = None,
    reporter: Reporter = SILENT,
) -> Iterator[Path]:
    """The image on `arch` unpacked to a folder, which is removed at the end.

    `unpacked` is its size in bytes, for the progress bar.
    """
    blobs = [layout.blob(layer.digest) for layer in layout.image(arch).layers]
    with store.scratch() as scratch:
        root = scratch / "root"
        with reporter.step(f"unpacking {layout.path.name}"):
            unpack(blobs, root, unpacked=unpacked, reporter=reporter)
        try:
            yield root
        finally:
            tree.remove(root)  # an image may contain read-only folders


def environment(settings: CommandConfig) -> dict[str, str]:
    """The environment of the image: name → value."""
    return dict(item.split("=", 1) for item in settings.env)


def run_in_root(
    root: Path,
    settings: CommandConfig,
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    binds: Sequence[sandbox.Bind] = (),
    network: bool = False,
    stream: bool = False,
) -> Result:
    """Run `command` (empty: the image's) in the folder `root`, with the image's entry point."""
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
    settings: engine.ContainerOptions,
    unpacked: int | None = None,
    reporter: Reporter = SILENT,
) -> Ran:
    """Run `command` on this terminal or, without `settings.stdin`, capture its output.

    `through` is "docker", "podman" or "root"; None means a running engine, else a root folder.
    ToolMissing if the named engine is not running.
    """
    found = None if through == "root" else engine.find(through, reporter=reporter)
    if found is None and through in ("docker", "podman"):
        engine.require(through)
    if found is not None:
        loaded = load(found, layout, arch, tag, reporter=reporter)
        done = engine.run(found, loaded.reference, command, settings, stream=settings.stdin)
        return _ran(found.kind, done)
    with root_folder(layout, arch, store, unpacked=unpacked, reporter=reporter) as root:
        own = running(layout, arch)
        network, stream = settings.network, settings.stdin
        done = run_in_root(root, own, command, network=network, stream=stream)
        return _ran("root", done)


def _ran(through: str, done: Result) -> Ran:
    return Ran(through=through, status=done.status, stdout=done.stdout, stderr=done.stderr)
