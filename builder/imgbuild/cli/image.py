"""`imgbuild load` and `run`: use an image that was built."""

from __future__ import annotations

import enum
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from imgbuild.cli import options
from imgbuild.errors import InputError, NothingSelected
from imgbuild.system.console import console
from imgbuild.values import Arch

if TYPE_CHECKING:
    from imgbuild.matrix.select import Selected
    from imgbuild.oci.layout import Layout


class Through(enum.StrEnum):
    """What runs a command: an engine, or a root folder in namespaces of its own."""

    DOCKER = "docker"
    PODMAN = "podman"
    ROOT = "root"


LayoutFolder = Annotated[
    Path | None,
    typer.Option(
        "--layout",
        metavar="PATH",
        help="The OCI layout; by default build/TARGET beside the matrix.",
        rich_help_panel=options.WORK,
        show_default=False,
    ),
]
Way = Annotated[
    Through | None,
    typer.Option(
        "--through",
        help="By default the engine that answers, else a root folder, which needs no engine.",
        rich_help_panel=options.WORK,
        show_default=False,
    ),
]


class RunInImage(msgspec.Struct, frozen=True, kw_only=True):
    """A command that ran in an image, and what it wrote."""

    target: str
    arch: Arch
    through: str
    status: int
    stdout: str
    stderr: str


class LoadedImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image that an engine has now."""

    target: str
    engine: str
    reference: str
    id: str


def load(
    names: options.Names = None,
    target: options.Targets = None,
    everything: options.Everything = False,
    arch: options.OneArch = None,
    layout: LayoutFolder = None,
    engine: Annotated[
        Through | None,
        typer.Option(
            "--engine",
            help="docker or podman; by default the one that answers.",
            rich_help_panel=options.WORK,
            show_default=False,
        ),
    ] = None,
    matrix: options.MatrixFile = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Load built images into Docker or podman, and check that they arrived as they are.

    Exit status 6 if no engine answers.

    Example:

        imgbuild load cu124-vllm
    """
    from imgbuild.container import engine as engines
    from imgbuild.pipeline import targets

    options.configure(json=json, quiet=quiet, verbose=verbose)
    if engine is Through.ROOT:
        message = "--engine root: a root folder is no engine"
        raise InputError(message, hint="name docker or podman; imgbuild run needs no engine")
    session = targets.open_session(matrix, targets.Options())
    selected = session.select(options.wanted(names, target), everything=everything, arches=[])
    same_image(selected, layout)
    found = engines.require(engine.value if engine else None, reporter=console)
    done = []
    for item in selected:
        built = targets.built_layout(session, item.name, layout)
        with console.step(f"loading {item.name} into {found.kind}"):
            only = one_arch(built, arch)
            loaded = engines.load(found, built, only, item.name, reporter=console)
        done.append(
            LoadedImage(
                target=item.name, engine=found.kind, reference=loaded.reference, id=loaded.id
            )
        )
    options.answer(done, [f"{item.reference} {item.id}" for item in done], json=json)


def run(
    name: options.One,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- COMMAND", help="What to run; by default a shell.", show_default=False
        ),
    ] = None,
    arch: options.OneArch = None,
    layout: LayoutFolder = None,
    through: Way = None,
    network: Annotated[
        bool,
        typer.Option(
            "--network/--no-network", help="Give it a network.", rich_help_panel=options.WORK
        ),
    ] = True,
    gpus: Annotated[
        bool,
        typer.Option("--gpus", help="Give it the GPUs (engines).", rich_help_panel=options.WORK),
    ] = False,
    matrix: options.MatrixFile = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
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

    options.configure(json=json, quiet=quiet, verbose=verbose)
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
        options.answer(answer, [], json=True)
    raise typer.Exit(ran.status)


def single(selected: Sequence[Selected]) -> str:
    """The name of the one target that is meant."""
    if len(selected) > 1:
        message = f"several targets match: {', '.join(item.name for item in selected)}"
        raise InputError(message, hint="name one of them")
    return selected[0].name


def same_image(selected: Sequence[Selected], layout: Path | None) -> None:
    """InputError if `layout` is to stand for several targets."""
    if layout is not None and len(selected) > 1:
        message = f"--layout {layout} is one image, {len(selected)} targets are selected"
        raise InputError(message, hint="name one target, or leave --layout out")


def one_arch(layout: Layout, arches: Sequence[Arch] | None) -> Arch:
    """The one architecture that is meant: the named one, else this machine's, else the only one."""
    have = tuple(layout.images)
    if arches and len(set(arches)) > 1:
        message = f"--arch {' --arch '.join(arches)}: only one can be used at a time"
        raise InputError(message, hint="name one of them")
    if arches:
        wanted = arches[0]
    else:
        try:
            wanted = Arch.parse(platform.machine())
        except ValueError:
            wanted = have[0]
        if wanted not in have and len(have) == 1:
            wanted = have[0]
    if wanted not in have:
        message = f"{layout.path} has no {wanted}; it has {', '.join(have)}"
        raise NothingSelected(message, hint="build that architecture, or name one with --arch")
    return wanted
