"""Runs a command in the image of a layout, with an engine or in a root folder.

A root folder needs neither an engine nor root (see `root_folder`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from imgbuild.cache.store import Store
from imgbuild.container import engine, sandbox
from imgbuild.container.load import load
from imgbuild.container.root_folder import root_folder
from imgbuild.errors import IntegrityError
from imgbuild.oci.layout import Layout
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


def environment(settings: CommandConfig) -> dict[str, str]:
    """The environment of the image: name → value."""
    return dict(item.split("=", 1) for item in settings.env)


def run_in_root(
    root: sandbox.Root,
    settings: CommandConfig,
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    binds: Sequence[sandbox.Bind] = (),
    network: bool = False,
    stream: bool = False,
) -> Result:
    """Run `command` (empty: the image's) in `root`, with the image's entry point."""
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
    with root_folder(layout, arch, store, reporter=reporter) as root:
        own = running(layout, arch)
        network, stream = settings.network, settings.stdin
        done = run_in_root(root, own, command, network=network, stream=stream)
        return _ran("root", done)


def _ran(through: str, done: Result) -> Ran:
    return Ran(through=through, status=done.status, stdout=done.stdout, stderr=done.stderr)
