"""`imgbuild run`: run a command in the image of a target."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Annotated

import msgspec
import typer

from imgbuild.cli._container import RunOptions
from imgbuild.cli._help import RunCommand, command
from imgbuild.cli._options import (
    DRY_RUN,
    THROUGH,
    Engine,
    LayoutFolder,
    OneArch,
    processes,
)
from imgbuild.cli._output import answer
from imgbuild.cli._selection import arch_of
from imgbuild.cli._sessions import single
from imgbuild.cli._targets import OneTarget
from imgbuild.cli._verb import RunOutput, verb
from imgbuild.pipeline import run_target
from imgbuild.pipeline.session import Options, open_session
from imgbuild.system.console import console
from imgbuild.values import Arch


class RunInImage(msgspec.Struct, frozen=True, kw_only=True):
    """A command that ran in an image, and what it wrote."""

    target: str
    arch: Arch
    through: str
    status: int
    stdout: str
    stderr: str


class CommandToRun(msgspec.Struct, frozen=True, kw_only=True):
    """The command line of an engine, and variables that it needs.

    `env_from`: name → the variable of the caller whose value it has.
    """

    target: str
    arch: Arch
    command: tuple[str, ...]
    env: Mapping[str, str]
    env_from: Mapping[str, str]


@functools.partial(verb, output=RunOutput)
def run(
    one: OneTarget,
    container: RunOptions,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- COMMAND...", help="The command. Default: a shell.", show_default=False
        ),
    ] = None,
    arch: OneArch = None,
    layout: LayoutFolder = None,
    through: Annotated[
        Engine | None,
        THROUGH(
            "docker, podman, apptainer, or root (a root folder in a user namespace, without an"
            " engine). Default: docker or podman, whichever is running, else root."
        ),
    ] = None,
    dry_run: Annotated[bool, DRY_RUN("Here: print the engine's command, to copy.")] = False,
) -> None:
    """Run a command in the image of a target.

    The image is built and loaded first if it is missing or not that of the lock. The command
    starts in the current folder, which is mounted at the image's working folder (/workspace), as
    your own user, with all GPUs, with the host's shared memory and with your Hugging Face cache.
    HF_TOKEN and WANDB_* are passed if they are set. The folders and files that HF_HUB_CACHE,
    TORCH_HOME, SSL_CERT_FILE and similar variables name are mounted (docs/environment.md).

    Options of imgbuild come before the command; a -- marks where the command begins. The exit
    status is that of the command. With --json the command has no terminal, and its output is part
    of the result.

    Examples:

        imgbuild run cu124-vllm -- python train.py --lr 1e-5

        imgbuild run cu124-vllm -v /data:/data:ro -e NCCL_DEBUG=INFO -- torchrun train.py

        imgbuild run cu124-vllm --through apptainer -- python train.py

        imgbuild run cu124-vllm --dry-run -- python train.py
    """
    pattern, words = one.split(command)
    session = open_session(one.matrix, Options(jobs=processes(0)))
    found = run_target.find(session, single(session.select([pattern])), layout)
    chosen = arch_of(found.arches, found.place, arch)
    json = console.json
    request = container.request(found.config(chosen), words, interactive=not json, dry=dry_run)
    if dry_run:
        engine_command = run_target.command(found, request, through=through)
        shown = CommandToRun(
            target=found.name, arch=chosen, **msgspec.structs.asdict(engine_command)
        )
        answer(shown, [engine_command.text()])
        return
    ran = run_target.run(session, found, chosen, request, through=through, capture=json)
    if json:
        answer(RunInImage(target=found.name, arch=chosen, **msgspec.structs.asdict(ran)), [])
    raise typer.Exit(ran.status)


COMMAND = command(run, cls=RunCommand)
