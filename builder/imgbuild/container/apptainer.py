"""Runs commands in a SIF file with Apptainer, as on a cluster.

The root is read-only, and the command runs as the caller, but without the caller's home folder and
environment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from imgbuild.system import process

REMEDY = "install Apptainer 1.4 or newer (https://apptainer.org), or omit --through"


class ApptainerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options to run a command in a SIF file.

    `binds` maps paths in the container to host folders, which are mounted read-only. The folder
    `work` is mounted as /tmp and as the home folder, because Apptainer's default is a memory file
    system of 64 MB. If the caller is root, the command runs as `user`, a pair of user and group
    IDs. `env` contains additional environment variables, and `options` additional options for
    Apptainer.
    """

    binds: Mapping[str, Path] = {}
    work: Path
    workdir: str = "/"
    gpus: bool = False
    user: tuple[int, int] | None = None
    env: Mapping[str, str] = {}
    options: tuple[str, ...] = ()


def require_apptainer() -> str:
    """Return the path of `apptainer`. Raises ToolMissing if it is not installed."""
    return process.find_program("apptainer", remedy=REMEDY)


def run_in_sif(
    program: str, image: Path, command: Sequence[str], settings: ApptainerOptions
) -> process.ProcessResult:
    """Run `command` with the entry point of `image`. The exit status is not checked."""
    words = command_line(program, image, command, settings)
    return process.run_command(words, env=apptainer_variables(settings), check=False)


def apptainer_variables(settings: ApptainerOptions) -> dict[str, str]:
    """Return the environment that passes `settings.env` to Apptainer.

    Unlike values of --env, values in these variables can contain commas.
    """
    return {f"APPTAINERENV_{name}": value for name, value in settings.env.items()}


def command_line(
    program: str, image: Path, command: Sequence[str], settings: ApptainerOptions
) -> list[str]:
    """Return the command line for `run_in_sif`.

    It must be run with the environment `apptainer_variables(settings)`.
    """
    # Without --no-eval, in a SIF built by Apptainer, a shell would expand the arguments.
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
