"""`imgbuild render`: a lock as text for people and other builders."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from imgbuild.cli import _options
from imgbuild.errors import InputError
from imgbuild.system.console import console

if TYPE_CHECKING:
    from imgbuild.render.write import Wish
    from imgbuild.values import Arch


class Format(enum.StrEnum):
    """What is written."""

    DOCKERFILE = "dockerfile"
    BAKE = "bake"
    APPTAINER = "apptainer"
    REQUIREMENTS = "requirements"
    PYLOCK = "pylock"
    SCRIPT = "script"


Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="PATH",
        help="Write here: a folder for Dockerfiles and for several targets, else a file. By default"
        " Dockerfiles go beside their locks, and all else to stdout.",
        rich_help_panel=_options.WORK,
        show_default=False,
    ),
]
Online = Annotated[
    bool,
    typer.Option(
        "--online",
        help="A Dockerfile that fetches base and wheels itself, from addresses looked up now."
        " Needs --output: it names hosts, and is not for keeping.",
        rich_help_panel=_options.WORK,
    ),
]
Registry = Annotated[
    str | None,
    typer.Option(
        "--registry",
        metavar="HOST/NAME",
        help="With --online: the repository that has the base; by default the matrix's `registry`.",
        rich_help_panel=_options.WORK,
        show_default=False,
    ),
]
Check = Annotated[
    bool,
    typer.Option(
        "--check",
        help="Say whether the Dockerfiles beside the locks and docker-bake.json are current; exit"
        " status 5 if one is not.",
        rich_help_panel=_options.WORK,
    ),
]


def render(
    names: _options.Names = None,
    target: _options.Targets = None,
    everything: _options.Everything = False,
    arch: _options.Arches = None,
    form: Annotated[
        Format,
        typer.Option("--format", help="What to write.", rich_help_panel=_options.WORK),
    ] = Format.DOCKERFILE,
    output: Output = None,
    online: Online = False,
    registry: Registry = None,
    check: Check = False,
    matrix: _options.MatrixFile = None,
    json: _options.Json = False,
    quiet: _options.Quiet = False,
    verbose: _options.Verbose = False,
) -> None:
    """Write locked targets as Dockerfiles, or in another form that people and tools read.

    dockerfile: images/TARGET/Dockerfile with the files that it copies, and docker-bake.json.
    bake: a file for `docker buildx bake` of the named targets. apptainer: a definition file.
    requirements: for pip and uv. pylock: PEP 751, with addresses looked up now. script: a shell
    script that makes the environment on a machine without containers, and checks it.

    Examples:

        imgbuild render --all

        imgbuild render --all --check

        imgbuild render cu124-vllm --online --output cu124-vllm

        imgbuild render cu124-vllm --format script > cu124-vllm.sh
    """
    from imgbuild import project
    from imgbuild.cli import _selection
    from imgbuild.lock.published import load
    from imgbuild.render import write

    _options.configure(json=json, quiet=quiet, verbose=verbose)
    wish = write.Wish(form=form.value, online=online, registry=registry)
    _refuse(wish, output, check=check, arches=arch or [])
    found = project.find(matrix)
    wanted = _options.wanted(names, target)
    chosen = _selection.choose(found, wanted, everything=everything, arches=arch or [])
    read = load(found.matrix)
    if check:
        write.check(found, read, [item.lock for item in chosen], console)
        current = [item.lock.target for item in chosen]
        _options.answer(current, [f"{name} is current" for name in current], json=json)
        return
    if form is Format.DOCKERFILE and output is None:
        made = write.keep(found, read, [item.lock for item in chosen], console)
    else:
        made = write.render(found, read, [(item.lock, item.arches) for item in chosen], wish)
    if output is not None:
        made = write.leave(made, output)
    lines = [str(one.place) if one.place else one.text for one in made]
    _options.answer(made, lines, json=json)


def _refuse(wish: Wish, output: Path | None, *, check: bool, arches: list[Arch]) -> None:
    """InputError for flags that contradict each other."""
    dockerfile = wish.form == Format.DOCKERFILE.value
    if (wish.online or check) and not dockerfile:
        message = f"--online and --check are of Dockerfiles, not of --format {wish.form}"
        raise InputError(message, hint="leave one of them out")
    if check and (wish.online or output is not None):
        message = "--check looks at what is kept beside the locks, and writes nothing"
        raise InputError(message, hint="leave --online and --output out")
    if wish.online and output is None:
        message = "what --online writes names hosts, so it is not kept beside the lock"
        raise InputError(message, hint="say where it goes: --output FOLDER")
    if wish.registry is not None and not wish.online:
        message = "--registry says where --online finds the base"
        raise InputError(message, hint="add --online, or leave it out")
    if dockerfile and arches and output is None:
        message = "a Dockerfile that is kept beside its lock is of all its architectures"
        raise InputError(message, hint="leave --arch out, or say where it goes: --output FOLDER")
