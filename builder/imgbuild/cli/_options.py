"""Options that several verbs share, declared once."""

from __future__ import annotations

import enum
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from imgbuild import codec
from imgbuild.system.console import console, visible
from imgbuild.values import Arch

SELECT = "Which targets"
TALK = "How it speaks"
WORK = "How it works"
REGISTRY = "Registries"


def _arch(text: str) -> Arch:
    try:
        return Arch.parse(text)
    except ValueError as error:
        names = ", ".join(arch.value for arch in Arch)
        message = f"{text!r} is no architecture; known are {names}"
        raise typer.BadParameter(message) from error


def _jobs(value: object) -> int:
    text = str(value)  # typer hands the default over too
    if not text.isdecimal():
        message = f"{text!r} is no number of processes; 0 means one for each core"
        raise typer.BadParameter(message)
    return int(text)


def complete_target(incomplete: str) -> list[str]:
    """The locked targets whose names begin so."""
    from imgbuild.errors import ImgbuildError
    from imgbuild.project import find

    try:
        return [name for name in find(None).sealed() if name.startswith(incomplete)]
    except ImgbuildError:
        return []


Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TARGET]...",
        help="Targets of the matrix; shell patterns such as 'cu130-*' select several.",
        autocompletion=complete_target,
        show_default=False,
    ),
]
One = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="One target of the matrix; a command takes no more.",
        autocompletion=complete_target,
    ),
]
Targets = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        "-t",
        metavar="NAME",
        help="The same as a positional target; repeatable.",
        rich_help_panel=SELECT,
        autocompletion=complete_target,
        show_default=False,
    ),
]
Everything = Annotated[
    bool, typer.Option("--all", help="Every target of the matrix.", rich_help_panel=SELECT)
]
Arches = Annotated[
    list[Arch] | None,
    typer.Option(
        "--arch",
        metavar="ARCH",
        parser=_arch,
        help="Only this architecture: x86_64 (amd64) or arm64 (aarch64); repeatable.",
        rich_help_panel=SELECT,
        show_default=False,
    ),
]
OneArch = Annotated[
    list[Arch] | None,
    typer.Option(
        "--arch",
        metavar="ARCH",
        parser=_arch,
        help="The one architecture to use: x86_64 (amd64) or arm64 (aarch64). By default this"
        " machine's, or the only one of the image.",
        rich_help_panel=SELECT,
        show_default=False,
    ),
]
MatrixFile = Annotated[
    Path | None,
    typer.Option(
        "--matrix",
        metavar="FILE",
        help="The matrix; by default the nearest matrix.yaml here or above.",
        rich_help_panel=SELECT,
        show_default=False,
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Write the result to stdout as JSON.", rich_help_panel=TALK)
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Say only warnings and errors.", rich_help_panel=TALK)
]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose",
        "-v",
        help="Say each command and each thing found in the cache.",
        rich_help_panel=TALK,
    ),
]
Jobs = Annotated[
    int,
    typer.Option(
        "--jobs",
        "-j",
        metavar="N",
        parser=_jobs,
        help="Processes that assemble layers; the bytes do not depend on it. 0: one for each core.",
        rich_help_panel=WORK,
    ),
]
Offline = Annotated[
    bool,
    typer.Option(
        "--offline", help="Use the cache alone; fail where it lacks a file.", rich_help_panel=WORK
    ),
]
PlainHttp = Annotated[
    list[str] | None,
    typer.Option(
        "--plain-http",
        metavar="HOST[:PORT]",
        help="Speak to this registry without TLS, as to those of this machine; repeatable.",
        rich_help_panel=REGISTRY,
        show_default=False,
    ),
]
Mirror = Annotated[
    str | None,
    typer.Option(
        "--mirror",
        metavar="HOST/REPOSITORY",
        help="Take inputs from this mirror before any index is asked, or `off`. Default:"
        " $IMGBUILD_MIRROR, else what `imgbuild registry mirror use` has set.",
        rich_help_panel=REGISTRY,
        show_default=False,
    ),
]
MirrorOnly = Annotated[
    bool,
    typer.Option(
        "--mirror-only",
        help="Ask no other server for what the mirror lacks.",
        rich_help_panel=REGISTRY,
    ),
]


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
        rich_help_panel=WORK,
        show_default=False,
    ),
]
RunThrough = Annotated[
    Through | None,
    typer.Option(
        "--through",
        help="By default the engine that answers, else a root folder, which needs no engine.",
        rich_help_panel=WORK,
        show_default=False,
    ),
]


def configure(*, json: bool, quiet: bool, verbose: bool) -> None:
    """Set up the console for a verb."""
    console.configure(verbosity=-1 if quiet else int(verbose), json=json)


def processes(jobs: int) -> int:
    """How many processes `--jobs` means."""
    return jobs or os.cpu_count() or 1


def wanted(names: list[str] | None, targets: list[str] | None) -> list[str]:
    """Positional names and `--target` are the same thing."""
    return [*(names or []), *(targets or [])]


def answer(value: Any, lines: Sequence[str], *, json: bool) -> None:
    """The verb's data on stdout: canonical JSON of `value`, or `lines` for people and shells."""
    if json:
        put(codec.encode(value).decode())
    elif lines:
        put("\n".join(lines))


def put(text: str) -> None:
    """Write data to stdout. A reader that has gone, such as `head`, has had enough: no error."""
    try:
        console.data(text)
    except BrokenPipeError:
        with Path(os.devnull).open("wb") as nothing:  # where the flush at the end may go
            os.dup2(nothing.fileno(), sys.stdout.fileno())


def aligned(rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset()) -> list[str]:
    """Lines of columns as wide as their widest cell; the columns `right` are numbers.

    No cell makes a line of its own, whoever wrote it.
    """
    rows = [[visible(cell).replace("\n", "\\n") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
