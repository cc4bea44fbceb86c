"""The request for a container: command, user, mounts, variables, GPUs, network, shm size."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from imgbuild.values import is_number


def process_ids() -> tuple[int, int]:
    """The user and group ID of this process."""
    return os.geteuid(), os.getegid()


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """A file or folder of this machine, by its absolute path, at `target` in the container."""

    source: Path
    target: str
    writable: bool = True


class ContainerRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A command and its container.

    `name` is the name of the container; if it is None, the engine chooses one. `command` is empty
    for the image's default. `env` has None for a variable that keeps the value of this process,
    which is passed by name, so that it does not appear in a command line. `env_files` are files of
    variables, each with its content. `ports` are as in `docker run --publish`.

    `user` is "UID[:GID]", or a name for Docker and podman; None is `caller`, so that files in
    `mounts` belong to the caller. `home` is the value of HOME, None for the container's default.
    `gpus` is a number of GPUs, or True for all. Without `shm_size` (as in `docker run`) the
    container uses the shared memory of the host. `selinux`: this machine has SELinux, whose labels
    would deny the container access to its mounts.
    """

    name: str | None = None
    command: tuple[str, ...] = ()
    workdir: str = "/"
    mounts: tuple[Mount, ...] = ()
    env: Mapping[str, str | None] = {}
    env_files: Mapping[Path, Mapping[str, str]] = {}
    ports: tuple[str, ...] = ()
    user: str | None = None
    caller: tuple[int, int] = msgspec.field(default_factory=process_ids)
    home: str | None = None
    gpus: bool | int = False
    shm_size: str | None = None
    network: bool = True
    selinux: bool = False
    interactive: bool = False
    tty: bool = False

    def variables(self) -> dict[str, str]:
        """All variables with their values, without those passed by name that are unset."""
        variables: dict[str, str] = {}
        for values in self.env_files.values():
            variables |= values
        for name, value in self.env.items():
            setting = os.environ.get(name) if value is None else value
            if setting is not None:
                variables[name] = setting
        return variables

    def ids(self) -> tuple[int, int] | None:
        """The user and group ID of the command; None if `user` is a name."""
        if self.user is None:
            return self.caller
        uid, _, gid = self.user.partition(":")
        if not is_number(uid) or not is_number(gid or "0"):
            return None
        return int(uid), int(gid or self.caller[1])
