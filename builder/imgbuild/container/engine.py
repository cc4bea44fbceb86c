"""Finds Docker and podman, and creates, starts and removes containers.

Data is passed through the streams of the engine's command instead of shared folders, because the
engine can be on another machine (DOCKER_HOST, CONTAINER_HOST).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from imgbuild.errors import ToolMissing
from imgbuild.system import decoding, process, programs
from imgbuild.system.reporter import SILENT_REPORTER, Reporter
from imgbuild.values import Digest

EngineKind = Literal["docker", "podman"]
# Queried in one call: the version, and whether the engine is rootless.
PROBES = {
    "docker": ("info", "--format", "{{.ServerVersion}} {{json .SecurityOptions}}"),
    "podman": ("info", "--format", "{{.Version.Version}} {{.Host.Security.Rootless}}"),
}
ROOTLESS = {"docker": "name=rootless", "podman": "true"}
HOSTS = {"docker": "DOCKER_HOST", "podman": "CONTAINER_HOST"}
GPUS = {"docker": ("--gpus", "all"), "podman": ("--device", "nvidia.com/gpu=all")}
REMEDY = (
    "start Docker or podman, or set DOCKER_HOST or CONTAINER_HOST to an engine on another machine"
)


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """A running container engine: path of the command, and version of the server.

    If it is `rootless`, root in a container is the user who started the engine.
    """

    kind: EngineKind
    program: str
    version: str
    rootless: bool

    def command(self, *arguments: str) -> list[str]:
        """Return a command line for this engine."""
        return [self.program, *arguments]


class InspectedImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image in an engine. The diff IDs of its layers are () if they are unknown."""

    id: Digest
    diff_ids: tuple[Digest, ...]


class ContainerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a container for tests. `options` are additional options of the engine.

    Without `network`, the container has only a loopback interface. `gpus` is a number of GPUs, or
    True for all GPUs.
    """

    env: Mapping[str, str] = {}
    user: str | None = None
    network: bool = True
    gpus: bool | int = False
    options: tuple[str, ...] = ()


class _RootFilesystem(msgspec.Struct, frozen=True, rename="pascal"):
    layers: tuple[str, ...] = ()


class _InspectedJson(msgspec.Struct, frozen=True, rename="pascal"):
    id: str
    root_fs: _RootFilesystem = msgspec.field(default=_RootFilesystem(), name="RootFS")


def find_engine(
    prefer: str | None = None, *, reporter: Reporter = SILENT_REPORTER
) -> Engine | None:
    """Find a running engine. Returns None if no engine is running.

    If `prefer` is set, only this engine ("docker" or "podman") is tried. Otherwise, Docker is tried
    before podman, unless only CONTAINER_HOST is set. Raises ToolMissing if the engine in
    DOCKER_HOST or CONTAINER_HOST does not respond.
    """
    if prefer is not None:
        order: tuple[EngineKind, ...] = ("podman",) if prefer == "podman" else ("docker",)
    elif "CONTAINER_HOST" in os.environ and "DOCKER_HOST" not in os.environ:
        order = ("podman", "docker")
    else:
        order = ("docker", "podman")
    for kind in order:
        program = programs.find_on_path(kind)
        if program is None:
            continue
        answer = process.run_command([program, *PROBES[kind]], check=False)
        version, _, security = answer.stdout.partition(" ")  # both empty if no engine responds
        if answer.status == 0 and version:
            rootless = ROOTLESS[kind] in security
            return Engine(kind=kind, program=program, version=version, rootless=rootless)
        reason = answer.stderr.strip()
        host = os.environ.get(HOSTS[kind])
        if host and prefer is None:
            message = f"{HOSTS[kind]}={host}: cannot connect to {kind}: {reason}"
            raise ToolMissing(message, hint=f"start {kind}, or unset {HOSTS[kind]}")
        reporter.detail(f"cannot connect to {kind}: {reason}")
    return None


def require_engine(prefer: str | None = None, *, reporter: Reporter = SILENT_REPORTER) -> Engine:
    """Find a running engine, like `find_engine`. Raises ToolMissing if no engine is running."""
    engine = find_engine(prefer, reporter=reporter)
    if engine is None:
        message = f"cannot connect to {prefer}" if prefer else "no container engine is running"
        raise ToolMissing(message, hint=REMEDY)
    return engine


def is_local(engine: Engine) -> bool:
    """Return whether DOCKER_HOST or CONTAINER_HOST refers to an engine on this machine."""
    host = os.environ.get(HOSTS[engine.kind], "")
    return not host or host.startswith(("unix:", "npipe:"))


def inspect_image(engine: Engine, reference: str) -> InspectedImage | None:
    """Return the image `reference` in `engine`, or None if it is missing."""
    answer = process.run_command(engine.command("image", "inspect", reference), check=False)
    if answer.status != 0:
        return None
    image = decoding.decode_json(answer.stdout, tuple[_InspectedJson, ...])[0]
    name = image.id if image.id.startswith("sha256:") else f"sha256:{image.id}"
    return InspectedImage(id=name, diff_ids=image.root_fs.layers)


def diff_ids(engine: Engine) -> frozenset[Digest]:
    """Return the diff IDs of the layers of all named images in `engine`."""
    words = engine.command("image", "ls", "--quiet", "--no-trunc")
    answer = process.run_command(words, check=False)
    if answer.status != 0:  # as when an image is removed while Docker reads its content
        answer = process.run_command(words)
    listed = answer.stdout.split()
    if not listed:
        return frozenset()
    # An image may be removed between the two commands: the others are printed nevertheless.
    words = engine.command("image", "inspect", *dict.fromkeys(listed))
    images = process.run_command(words, check=False).stdout or "[]"
    inspected = decoding.decode_json(images, tuple[_InspectedJson, ...])
    return frozenset(layer for image in inspected for layer in image.root_fs.layers)


def remove_image(engine: Engine, reference: str) -> None:
    """Remove the name `reference`, if it exists, and the image if it has no other name."""
    if inspect_image(engine, reference) is not None:
        process.run_command(engine.command("image", "rm", reference))


def create_container(
    engine: Engine, reference: str, command: Sequence[str], settings: ContainerOptions | None = None
) -> str:
    """Create a container without starting it. Returns the container ID."""
    flags = _flags(engine, settings or ContainerOptions())
    return process.run_command(engine.command("create", *flags, reference, *command)).stdout.strip()


def copy_into_container(
    engine: Engine, container: str, tar: Iterable[bytes], folder: str = "/"
) -> None:
    """Unpack a tar stream into `folder` of a container. Files keep their owners."""
    # podman's archive mode changes the owner to the container's user.
    owners = ("--archive=false",) if engine.kind == "podman" else ()
    process.feed_command(engine.command("cp", *owners, "-", f"{container}:{folder}"), tar)


def start_container(engine: Engine, container: str) -> process.ProcessResult:
    """Start a container, and wait for its end. The exit status is not checked."""
    return process.run_command(engine.command("start", "--attach", container), check=False)


def remove_container(engine: Engine, container: str) -> None:
    """Remove a running or stopped container and its anonymous volumes. It can be missing."""
    process.run_command(engine.command("rm", "--force", "--volumes", container), check=False)


def gpu_options(kind: EngineKind, gpus: bool | int) -> tuple[str, ...]:
    """Return the engine's options for a number of GPUs, or for all GPUs if `gpus` is True."""
    if gpus is True:
        return GPUS[kind]
    if kind == "docker":
        return ("--gpus", str(gpus))
    return tuple(
        word for number in range(gpus) for word in ("--device", f"nvidia.com/gpu={number}")
    )


def _flags(engine: Engine, settings: ContainerOptions) -> list[str]:
    flags = [f"--env={name}={value}" for name, value in settings.env.items()]
    if settings.user is not None:
        flags.append(f"--user={settings.user}")
    if not settings.network:
        flags.append("--network=none")
    if settings.gpus:
        flags += gpu_options(engine.kind, settings.gpus)
    return [*flags, *settings.options]
