"""Apptainer: runs commands in a SIF, as on a cluster.

Comes in: a SIF and a command. Goes out: what the command left. The root is read-only, the user is
whoever calls, nothing of the home or the environment comes along.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from imgbuild.system import process as processes

REMEDY = "install Apptainer 1.4 or newer (https://apptainer.org), or leave --through out"


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """How a command is run in a SIF.

    `binds` are folders of this machine by the place where they are seen, read-only. `work` becomes
    /tmp and the home: the memory that Apptainer gives for them holds 64 MB. `user`, a user and a
    group id, is for callers who are root: in the container they are that one. `env` are variables
    beside those of the image; `options` are further ones of Apptainer's.
    """

    binds: Mapping[str, Path] = {}
    work: Path
    workdir: str = "/"
    gpus: bool = False
    user: tuple[int, int] | None = None
    env: Mapping[str, str] = {}
    options: tuple[str, ...] = ()


def require() -> str:
    """The command; ToolMissing if there is none."""
    return processes.find("apptainer", remedy=REMEDY)


def run(program: str, image: Path, command: Sequence[str], settings: Running) -> processes.Result:
    """Run `command` through the entry point of `image`; its status is not judged."""
    words = command_line(program, image, command, settings)
    return processes.run(words, env=environment(settings), check=False)


def environment(settings: Running) -> dict[str, str]:
    """By which Apptainer is told the variables of `settings`; --env would cut "0,1" in two."""
    return {f"APPTAINERENV_{name}": value for name, value in settings.env.items()}


def command_line(program: str, image: Path, command: Sequence[str], settings: Running) -> list[str]:
    """What `run` runs, in `environment`."""
    # Without --no-eval a SIF that Apptainer made itself has a shell expand the command's words.
    words = [program, "--quiet", "run", "--containall", "--no-eval", "--no-privs"]
    words += ["--workdir", str(settings.work), "--pwd", settings.workdir]
    for place, source in settings.binds.items():
        words += ["--bind", f"{source}:{place}:ro"]
    if settings.gpus:
        words.append("--nv")
    if settings.user is not None and os.geteuid() == 0:
        uid, gid = settings.user
        words += ["--security", f"uid:{uid}", "--security", f"gid:{gid}"]
    return [*words, *settings.options, str(image), *command]
