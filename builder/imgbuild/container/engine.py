"""Docker and podman: load an image into whichever answers, run commands in it, take it out again.

Comes in: an OCI layout. Goes out: an image in the engine, checked to be the layout's. All goes
through the engine's own command and its streams, never through shared folders, so that an engine on
another machine (DOCKER_HOST, CONTAINER_HOST) works alike.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from imgbuild.errors import ToolMissing, WorkFailed
from imgbuild.oci import archive
from imgbuild.oci.layout import Layout, Stored
from imgbuild.system import process as processes
from imgbuild.system.console import console
from imgbuild.values import Arch

Kind = Literal["docker", "podman"]
PROBES = {
    "docker": ("version", "--format", "{{.Server.Version}}"),
    "podman": ("info", "--format", "{{.Version.Version}}"),
}
GPUS = {"docker": ("--gpus", "all"), "podman": ("--device", "nvidia.com/gpu=all")}
REMEDY = (
    "start Docker or podman, or name one on another machine in DOCKER_HOST or CONTAINER_HOST;"
    " building needs neither"
)
LOADED = "Loaded image"


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """A container engine that answers: its command, and the version of its server."""

    kind: Kind
    program: str
    version: str

    def command(self, *arguments: str) -> list[str]:
        """A command line for this engine."""
        return [self.program, *arguments]


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """An image as an engine names it: a name for people and its id, a digest."""

    reference: str
    id: str


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """How a command is run in an image. `options` are the engine's own, put before the image.

    Without `network` the container has a loopback only. `stdin` gives it this process's input,
    `tty` a terminal besides. `gpus` is a number of GPUs, or True for all.
    """

    env: Mapping[str, str] = {}
    user: str | None = None
    entrypoint: str | None = None
    network: bool = True
    gpus: bool | int = False
    stdin: bool = False
    tty: bool = False
    options: tuple[str, ...] = ()


class _Root(msgspec.Struct, frozen=True, rename="pascal"):
    layers: tuple[str, ...] = ()


class _Inspected(msgspec.Struct, frozen=True, rename="pascal"):
    id: str
    root_fs: _Root = msgspec.field(default=_Root(), name="RootFS")


def find(prefer: str | None = None) -> Engine | None:
    """The engine that answers: `prefer` ("docker" or "podman") alone if given.

    Otherwise Docker before podman, unless only CONTAINER_HOST is set.
    """
    if prefer is not None:
        order: tuple[Kind, ...] = ("podman",) if prefer == "podman" else ("docker",)
    elif "CONTAINER_HOST" in os.environ and "DOCKER_HOST" not in os.environ:
        order = ("podman", "docker")
    else:
        order = ("docker", "podman")
    for kind in order:
        program = shutil.which(kind)
        if program is None:
            continue
        answer = processes.run([program, *PROBES[kind]], check=False)
        version = answer.stdout.strip()
        if answer.status == 0 and version:
            return Engine(kind=kind, program=program, version=version)
        console.detail(f"{kind} does not answer: {answer.stderr.strip()}")
    return None


def require(prefer: str | None = None) -> Engine:
    """As `find`; ToolMissing if none answers."""
    found = find(prefer)
    if found is None:
        message = f"{prefer or 'no container engine'} {'does not answer' if prefer else 'answers'}"
        raise ToolMissing(message, hint=REMEDY)
    return found


def load(engine: Engine, layout: Layout, arch: Arch, tag: str) -> Loaded:
    """Bring the image on `arch` into `engine` under `tag`; nothing is sent if it is there already.

    WorkFailed if what the engine then has is not the layout's image.
    """
    stored = layout.image(arch)
    present = _inspect(engine, archive.reference(tag))
    if present is not None and _same(present, stored):
        console.detail(f"{tag} is in {engine.kind} already")
        return Loaded(reference=archive.reference(tag), id=_id(present))
    total = archive.size(layout, arch, "docker-archive")
    with console.progress(f"loading {tag} into {engine.kind}", total) as bar:

        def _counted() -> Iterator[bytes]:
            for chunk in archive.chunks(layout, arch, "docker-archive", tag=tag):
                yield chunk
                bar.advance(len(chunk))

        answer = processes.feed(engine.command("load"), _counted())
    named = [
        line.partition(":")[2].strip()
        for line in answer.stdout.splitlines()
        if line.startswith(LOADED)
    ]
    reference = named[0] if named else archive.reference(tag)
    found = _inspect(engine, reference)
    if found is None:
        message = f"{engine.kind} took the image and has none called {reference}"
        raise WorkFailed(message, hint=answer.stdout.strip() + answer.stderr.strip())
    if not _same(found, stored):
        message = (
            f"{engine.kind} {engine.version} has {_id(found)} under {reference},"
            f" the layout {layout.path} has {stored.manifest.digest}"
        )
        raise WorkFailed(message, hint=f"remove it with: {engine.kind} image rm {reference}")
    return Loaded(reference=reference, id=_id(found))


def remove(engine: Engine, reference: str) -> None:
    """Take the name `reference` from the engine, the image with its last name; no error if gone."""
    if _inspect(engine, reference) is not None:
        processes.run(engine.command("image", "rm", reference))


def run(
    engine: Engine,
    reference: str,
    command: Sequence[str],
    settings: Running | None = None,
    *,
    stream: bool = False,
) -> processes.Result:
    """Run `command` (none: the image's own) in a new container, which is removed at its end.

    The status is the command's and is not judged. `stream` lets it use the terminal.
    """
    flags = _flags(engine, settings or Running())
    full = engine.command("run", "--rm", *flags, reference, *command)
    return processes.run(full, check=False, stream=stream)


def create(
    engine: Engine, reference: str, command: Sequence[str], settings: Running | None = None
) -> str:
    """A new container that has not been started: its id."""
    flags = _flags(engine, settings or Running())
    return processes.run(engine.command("create", *flags, reference, *command)).stdout.strip()


def copy_in(engine: Engine, container: str, tar: Iterable[bytes], folder: str = "/") -> None:
    """Unpack a tar stream into `folder` of a container, with the owners that the tar names."""
    # What both call archive mode gives all files to the container's own user.
    owners = ("--archive=false",) if engine.kind == "podman" else ()
    processes.feed(engine.command("cp", *owners, "-", f"{container}:{folder}"), tar)


def copy_out(engine: Engine, container: str, path: str, destination: Path) -> None:
    """Copy a file or folder of a container to `destination` on this machine."""
    processes.run(engine.command("cp", f"{container}:{path}", str(destination)))


def start(engine: Engine, container: str, *, stream: bool = False) -> processes.Result:
    """Start a container and wait for its end; the status is its command's and is not judged."""
    return processes.run(engine.command("start", "--attach", container), check=False, stream=stream)


def discard(engine: Engine, container: str) -> None:
    """Remove a container, running or not, and volumes without a name; no error if it is gone."""
    processes.run(engine.command("rm", "--force", "--volumes", container), check=False)


def _gpus(engine: Engine, gpus: bool | int) -> tuple[str, ...]:
    if gpus is True:
        return GPUS[engine.kind]
    if engine.kind == "docker":
        return ("--gpus", str(gpus))
    return tuple(
        word for number in range(gpus) for word in ("--device", f"nvidia.com/gpu={number}")
    )


def _flags(engine: Engine, settings: Running) -> list[str]:
    flags = [f"--env={name}={value}" for name, value in settings.env.items()]
    if settings.user is not None:
        flags.append(f"--user={settings.user}")
    if settings.entrypoint is not None:
        flags.append(f"--entrypoint={settings.entrypoint}")
    if not settings.network:
        flags.append("--network=none")
    if settings.gpus:
        flags += _gpus(engine, settings.gpus)
    if settings.stdin or settings.tty:
        flags.append("--interactive")
    if settings.tty:
        flags.append("--tty")
    return [*flags, *settings.options]


def _inspect(engine: Engine, reference: str) -> _Inspected | None:
    answer = processes.run(engine.command("image", "inspect", reference), check=False)
    if answer.status != 0:
        return None
    found = msgspec.json.decode(answer.stdout, type=tuple[_Inspected, ...])
    return found[0] if found else None


def _id(found: _Inspected) -> str:
    return found.id if found.id.startswith("sha256:") else f"sha256:{found.id}"


def _same(found: _Inspected, stored: Stored) -> bool:
    """Whether an engine's image is the layout's.

    Its id is the manifest's digest in a store of OCI documents and the configuration's in an older
    one; either fixes the diff ids.
    """
    known = (stored.manifest.digest, stored.config.digest)
    return _id(found) in known and found.root_fs.layers in ((), stored.diff_ids)
