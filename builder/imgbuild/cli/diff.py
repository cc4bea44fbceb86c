"""`imgbuild diff`: how two images differ, by packages or by files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from imgbuild.cli import _diff_files
from imgbuild.cli._help import command
from imgbuild.cli._options import (
    BUILDER,
    Builder,
    Jobs,
    Offline,
    PlainHttp,
    complete_target,
    processes,
)
from imgbuild.cli._output import answer, folded
from imgbuild.cli._targets import Filter
from imgbuild.cli._verb import option, verb
from imgbuild.errors import InputError
from imgbuild.pipeline.session import Options
from imgbuild.registry.client import Client
from imgbuild.show import diff as diffs
from imgbuild.show import diff_sides
from imgbuild.system.console import console

NamesOption = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="A B | TARGET...",
        help="Two images: a target, TARGET@REVISION of git, a lock.json or its folder, or an"
        " image in a registry. With --files: OCI layouts and archives, also those of docker"
        " save. With --builder docker: targets.",
        autocompletion=complete_target,
        show_default=False,
    ),
]
FilesOption = Annotated[
    bool,
    option(
        "--files",
        "Compare files and configuration instead of packages; exit status 1 if they differ.",
        often=True,
    ),
]
BuilderOption = Annotated[
    Builder,
    BUILDER(
        "docker: compare the files of each target's image with those of the image that Docker"
        " builds from the Dockerfile. Both are built."
    ),
]
AcceptOption = Annotated[
    list[Path] | None,
    option(
        "--accept",
        "With --files: a list of accepted differences, each with path, field and reason;"
        " repeatable. With --builder docker, the list of imgbuild is used too.",
        metavar="FILE",
    ),
]


@verb
def diff(
    selection: Filter,
    names: NamesOption = None,
    files: FilesOption = False,
    builder: BuilderOption = Builder.EMBEDDED,
    accept: AcceptOption = None,
    plain_http: PlainHttp = None,
    jobs: Jobs = 0,
    offline: Offline = False,
) -> None:
    """Compare two images, by packages or by files.

    By default: the wheels and Debian packages that image B adds, removes or changes for each
    architecture, and the bytes of layers that a pull downloads. An image in a registry is read
    with the lock that is attached to it; no layer is fetched.

    With --files: paths, types, modes, owners, link targets, attributes, content and configuration
    must be equal; times and the division into layers may differ. Nothing is unpacked to disk.

    Examples:

        imgbuild diff cu124-vllm@main cu124-vllm

        imgbuild diff registry.example/rl:cu124-vllm-20261114 registry.example/rl:cu124-vllm

        imgbuild diff --files build/cu124-vllm image.tar --json

        imgbuild diff --builder docker cu124-vllm
    """
    docker = builder is Builder.DOCKER
    wanted = [*(names or []), *selection.named]
    if not docker and (len(wanted) != 2 or selection.everything):
        message = f"expected two images, got {len(wanted)}"
        raise InputError(message, hint="name two images, or targets and --builder docker")
    if files or docker:
        work = Options(jobs=processes(jobs), offline=offline)
        _diff_files.compare(wanted, selection, accept or [], work, docker=docker)
        return
    if accept or selection.arches:
        message = "--accept and --arch need --files or --builder docker"
        raise InputError(message, hint="add --files, or leave them out")
    client = Client(plain_http=plain_http or (), reporter=console)
    old, new = (diff_sides.side(name, client, selection.matrix, console) for name in wanted)
    found = diffs.between(old, new)
    answer(found, folded(diffs.words(found)))


COMMAND = command(diff)
