"""Creates command lines for `docker run`, `podman run` and `apptainer run`.

Options: docs.docker.com/reference/cli/docker/container/run, docs.podman.io (podman-run),
apptainer.org/docs/user (apptainer run). NVIDIA's documentation of its PyTorch image recommends
`--ipc=host`, because data loaders and NCCL need more shared memory than the 64 MB of a container.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import msgspec

from imgbuild.container.engine import EngineKind, gpu_options
from imgbuild.container.request import ContainerRequest, Mount
from imgbuild.errors import InputError
from imgbuild.system import quoting

PREFIX = "APPTAINERENV_"  # Apptainer sets variables of the container from those with this prefix


class EngineCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A command line and its environment variables.

    `env` maps names to values. `env_from` maps names to the names of variables of this process
    whose values are used.
    """

    command: tuple[str, ...]
    env: Mapping[str, str] = {}
    env_from: Mapping[str, str] = {}

    def text(self) -> str:
        """Return the command as text that can be pasted into a shell."""
        plain, word = quoting.require_plain_word, partial(quoting.quote_word, lines=True)
        given = [f"{plain(name)}={word(value)}" for name, value in self.env.items()]
        given += [f'{plain(name)}="${plain(source)}"' for name, source in self.env_from.items()]
        return " ".join([*given, *map(word, self.command)])


def variables_from_process(env_from: Mapping[str, str]) -> dict[str, str]:
    """Return the variables in `EngineCommand.env_from` that are set, with their values."""
    values = {name: os.environ.get(source) for name, source in env_from.items()}
    return {name: value for name, value in values.items() if value is not None}


def engine_command(
    kind: EngineKind,
    request: ContainerRequest,
    program: str,
    reference: str,
    *,
    rootless: bool = False,
    init: bool = False,
) -> EngineCommand:
    """Return the command line for Docker or podman.

    With `rootless`, root in the container is the caller. With `init`, --init is added, so that
    Ctrl-C ends the command and orphaned processes are reaped.
    """
    ids = (0, 0) if rootless and kind == "docker" else request.caller
    user = f"--user={request.user or '{}:{}'.format(*ids)}"
    if kind == "podman" and rootless and request.user is None:
        user = "--userns=keep-id"
    words = [program, "run", "--rm", *(["--init"] if init else []), user]
    words += [f"--name={request.name}"] if request.name is not None else []
    words += ["--interactive"] if request.interactive or request.tty else []
    words += ["--tty"] if request.tty else []
    if request.gpus:
        words += gpu_options(kind, request.gpus)
    words.append("--ipc=host" if request.shm_size is None else f"--shm-size={request.shm_size}")
    if not request.network:
        words.append("--network=none")
    words += [f"--publish={port}" for port in request.ports]
    words += ["--security-opt=label=disable"] if request.selinux and request.mounts else []
    words += [_apptainer_bind(mount) for mount in request.mounts]
    words.append(f"--workdir={request.workdir}")
    if request.home is not None:
        words.append(f"--env=HOME={request.home}")
    words += [f"--env-file={path}" for path in request.env_files]
    words += [
        f"--env={name}" if value is None else f"--env={name}={value}"
        for name, value in request.env.items()
    ]
    return EngineCommand(command=(*words, reference, *request.command))


def apptainer_command(request: ContainerRequest, program: str, image: Path) -> EngineCommand:
    """Return the command line for `apptainer run`.

    The command uses the home folder, /tmp, network and /dev/shm of the host. Raises InputError if
    Apptainer cannot run as the requested user.
    """
    # Without --no-eval, in a SIF built by Apptainer, a shell would expand the arguments.
    words = [program, "--quiet", "run", "--cleanenv", "--no-eval", f"--pwd={request.workdir}"]
    words += [_apptainer_mount(mount) for mount in request.mounts]
    if request.gpus:
        words.append("--nv")
    if not request.network:
        words += ["--net", "--network=none"]
    ids = request.user_ids()
    if ids != request.caller:
        if request.caller[0] != 0 or ids is None:
            message = f"--user {request.user}: Apptainer runs commands as the current user"
            raise InputError(message, hint="omit --user")
        words += ["--security", f"uid:{ids[0]}", "--security", f"gid:{ids[1]}"]
    passed = [name for name, value in request.env.items() if value is None]
    given = {name: value for name, value in request.all_variables().items() if name not in passed}
    return EngineCommand(
        command=(*words, str(image), *request.command),
        env={f"{PREFIX}{name}": value for name, value in given.items()},
        env_from={f"{PREFIX}{name}": name for name in passed},
    )


def ignored_options(request: ContainerRequest, through: str) -> list[str]:
    """Return messages about options in `request` that are ignored by the engine `through`."""
    if through in ("docker", "podman"):
        return []
    name = {"apptainer": "Apptainer", "root": "a root folder"}[through]
    lines = []
    if request.ports:
        lines.append(f"--publish is ignored: {name} uses the network of this machine")
    if request.shm_size is not None:
        lines.append(
            "--shm-size is ignored: "
            + ("Apptainer uses the /dev/shm of this machine" if through == "apptainer"
               else "the /dev/shm of a root folder can use half of the memory")
        )  # fmt: skip
    return lines


def _apptainer_bind(mount: Mount) -> str:
    if ":" in f"{mount.source}{mount.target}":
        return f"--mount={_fields(mount)}"
    return f"--volume={mount.source}:{mount.target}{'' if mount.writable else ':ro'}"


def _apptainer_mount(mount: Mount) -> str:
    if any(mark in f"{mount.source}{mount.target}" for mark in ":,"):
        return f"--mount={_fields(mount)}"
    return f"--bind={mount.source}:{mount.target}{'' if mount.writable else ':ro'}"


def _fields(mount: Mount) -> str:
    """Format `mount` as a line of CSV, in which paths can contain any character."""
    fields = ["type=bind", f"src={mount.source}", f"dst={mount.target}"]
    fields += [] if mount.writable else ["ro"]
    return ",".join(
        '"{}"'.format(field.replace('"', '""')) if {'"', ","} & {*field} else field
        for field in fields
    )
