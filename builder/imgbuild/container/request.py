"""Defines requests to run a command in a container."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from imgbuild.values import is_number


def process_ids() -> tuple[int, int]:
    """Return the user and group ID of this process."""
    return os.geteuid(), os.getegid()


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """A file or folder of this machine (an absolute path) that is mounted at `target`."""

    source: Path
    target: str
    writable: bool = True


class ContainerRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A command, and the settings of its container.

    If `name` is None, the engine chooses a name for the container. If `command` is empty, the
    image's default command runs. In `env`, None stands for the variable's value in this process.
    Such a variable is passed by name, so that its value is not visible in command lines.
    `env_files` maps files of variables to their contents. `ports` have the format of `docker run
    --publish`.

    `user` is "UID[:GID]" or, for Docker and podman, a name. None stands for `caller`, so that new
    files in `mounts` belong to the caller. `home` is the value of HOME, or None for the container's
    default. `gpus` is a number of GPUs, or True for all GPUs. `shm_size` has the format of `docker
    run`. If it is unset, the container uses the shared memory of the host. `selinux` is set on a
    machine with SELinux, because labels would deny access to mounts.
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

    def all_variables(self) -> dict[str, str]:
        """Return all variables with values.

        Variables that are passed by name but not set are omitted.
        """
        variables: dict[str, str] = {}
        for values in self.env_files.values():
            variables |= values
        for name, value in self.env.items():
            setting = os.environ.get(name) if value is None else value
            if setting is not None:
                variables[name] = setting
        return variables

    def user_ids(self) -> tuple[int, int] | None:
        """Return the user and group ID of the command, or None if `user` is a name."""
        if self.user is None:
            return self.caller
        uid, _, gid = self.user.partition(":")
        if not is_number(uid) or not is_number(gid or "0"):
            return None
        return int(uid), int(gid or self.caller[1])
