"""`imgbuild run`: run a command in an image that was built."""

from __future__ import annotations

import sys
from typing import Annotated

import msgspec
import typer

from imgbuild.cli._options import GPUS, THROUGH, LayoutFolder, OneArch, Through, supported
from imgbuild.cli._output import answer
from imgbuild.cli._selection import one_arch, single
from imgbuild.cli._targets import OneTarget
from imgbuild.cli._verb import option, verb
from imgbuild.system.console import console
from imgbuild.values import Arch

ENGINES = (Through.DOCKER, Through.PODMAN, Through.ROOT)


class RunInImage(msgspec.Struct, frozen=True, kw_only=True):
    """A command that ran in an image, and what it wrote."""

    target: str
    arch: Arch
    through: str
    status: int
    stdout: str
    stderr: str


@verb
def run(
    one: OneTarget,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- COMMAND...", help="The command. Default: a shell.", show_default=False
        ),
    ] = None,
    arch: OneArch = None,
    layout: LayoutFolder = None,
    through: Annotated[
        Through | None,
        THROUGH(
            "docker, podman, or root (a root folder in a user namespace, without an engine)."
            " Default: the engine that is running, else root."
        ),
    ] = None,
    network: Annotated[
        bool, option("--network/--no-network", "Give the command a network.", often=True)
    ] = True,
    gpus: Annotated[str, GPUS("The GPUs to make available, with docker and podman.")] = "0",
) -> None:
    """Run a command in the built image of a target.

    Put -- before the command, so that its options are not read as options of imgbuild. The exit
    status is that of the command. With --json the command has no terminal, and its output is part
    of the result.

    Examples:

        imgbuild run cu124-vllm -- python -c 'import vllm; print(vllm.__version__)'

        imgbuild run cu124-vllm --gpus all -- nvidia-smi
    """
    from imgbuild.cache.store import Store
    from imgbuild.container import engine as engines
    from imgbuild.container import run_in_image
    from imgbuild.pipeline import targets

    engine = supported(through, "run", ENGINES)
    pattern, words = one.split(command)
    session = one.session()
    name = single(session.select([pattern]))
    built = targets.built_layout(session, name, layout)
    chosen = one_arch(built, arch)
    json = console.json
    ran = run_in_image.run(
        built,
        chosen,
        name,
        words,
        through=engine,
        store=Store.open(),
        reporter=console,
        settings=engines.ContainerOptions(
            network=network,
            gpus=True if gpus == "all" else int(gpus),
            stdin=not json,
            tty=not json and sys.stdin.isatty() and sys.stdout.isatty(),
        ),
    )
    if json:
        answer(RunInImage(target=name, arch=chosen, **msgspec.structs.asdict(ran)), [])
    raise typer.Exit(ran.status)
