"""`imgbuild run`: run a command in an image that was built."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from imgbuild.cli import _options
from imgbuild.cli._selection import one_arch, single
from imgbuild.system.console import console
from imgbuild.values import Arch

if TYPE_CHECKING:
    pass


class RunInImage(msgspec.Struct, frozen=True, kw_only=True):
    """A command that ran in an image, and what it wrote."""

    target: str
    arch: Arch
    through: str
    status: int
    stdout: str
    stderr: str


def run(
    name: _options.One,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- COMMAND", help="What to run; by default a shell.", show_default=False
        ),
    ] = None,
    arch: _options.OneArch = None,
    layout: _options.LayoutFolder = None,
    through: _options.RunThrough = None,
    network: Annotated[
        bool,
        typer.Option(
            "--network/--no-network", help="Give it a network.", rich_help_panel=_options.WORK
        ),
    ] = True,
    gpus: Annotated[
        bool,
        typer.Option("--gpus", help="Give it the GPUs (engines).", rich_help_panel=_options.WORK),
    ] = False,
    matrix: _options.MatrixFile = None,
    json: _options.Json = False,
    quiet: _options.Quiet = False,
    verbose: _options.Verbose = False,
) -> None:
    """Run a command in the built image of one target. The exit status is the command's.

    What follows -- is the command, so that its options are not taken for imgbuild's.

    With --json the command has no terminal, and what it wrote is part of the answer.

    Example:

        imgbuild run cu124-vllm -- python -c 'import vllm; print(vllm.__version__)'
    """
    from imgbuild.cache.store import Store
    from imgbuild.container import engine as engines
    from imgbuild.container import run_in_image
    from imgbuild.pipeline import targets

    _options.configure(json=json, quiet=quiet, verbose=verbose)
    session = targets.open_session(matrix, targets.Options())
    name = single(session.select([name]))
    built = targets.built_layout(session, name, layout)
    chosen = one_arch(built, arch)
    words = list(command or [])
    ran = run_in_image.run(
        built,
        chosen,
        name,
        words[1:] if words[:1] == ["--"] else words,
        through=through.value if through else None,
        store=Store.open(),
        reporter=console,
        settings=engines.ContainerOptions(
            network=network,
            gpus=gpus,
            stdin=not json,
            tty=not json and sys.stdin.isatty() and sys.stdout.isatty(),
        ),
        unpacked=run_in_image.unpacked_size(session.project.images, name, built, chosen),
    )
    if json:
        answer = RunInImage(target=name, arch=chosen, **msgspec.structs.asdict(ran))
        _options.answer(answer, [], json=True)
    raise typer.Exit(ran.status)
