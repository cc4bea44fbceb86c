"""`imgbuild diff`: how two images differ, by packages or by files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from imgbuild.cli import _diff_files, _options
from imgbuild.errors import InputError
from imgbuild.system.console import console

Images = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="A B | TARGET...",
        help="Two images: a target, TARGET@REVISION of git, a lock.json or its folder, or an image"
        " in a registry. With --files: OCI layouts and archives, also those of docker save. With"
        " --builders: targets.",
        autocompletion=_options.complete_target,
        show_default=False,
    ),
]
Files = Annotated[
    bool,
    typer.Option(
        "--files",
        help="Compare files and configuration instead of packages; exit status 1 if they differ.",
        rich_help_panel=_options.WORK,
    ),
]
Builders = Annotated[
    _diff_files.Pair | None,
    typer.Option(
        "--builders",
        metavar="A,B",
        parser=_diff_files.pair,
        help="Compare the files of what two builders make of each target: embedded, docker, podman,"
        " buildah. What is not built yet is built.",
        rich_help_panel=_options.WORK,
        show_default=False,
    ),
]
Accept = Annotated[
    list[Path] | None,
    typer.Option(
        "--accept",
        metavar="FILE",
        help="With --files: a list of accepted differences, each with path, field and reason;"
        " repeatable. With --builders, imgbuild's own list is used too.",
        rich_help_panel=_options.WORK,
        show_default=False,
    ),
]


def diff(
    names: Images = None,
    target: _options.Targets = None,
    everything: _options.Everything = False,
    arch: _options.Arches = None,
    files: Files = False,
    builders: Builders = None,
    accept: Accept = None,
    plain_http: _options.PlainHttp = None,
    jobs: _options.Jobs = 0,
    offline: _options.Offline = False,
    matrix: _options.MatrixFile = None,
    json: _options.Json = False,
    quiet: _options.Quiet = False,
    verbose: _options.Verbose = False,
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

        imgbuild diff --builders embedded,docker cu124-vllm
    """
    from imgbuild.pipeline.targets import Options
    from imgbuild.registry.client import Client
    from imgbuild.show import diff as diffs
    from imgbuild.show import diff_sides

    _options.configure(json=json, quiet=quiet, verbose=verbose)
    wanted = _options.wanted(names, target)
    if builders is None and (len(wanted) != 2 or everything):
        message = f"{len(wanted)} images are named, and two are compared"
        raise InputError(message, hint="name two images, or targets and --builders")
    if files or builders is not None:
        work = Options(jobs=_options.processes(jobs), offline=offline)
        _diff_files.compare(
            wanted, arch or [], builders, accept or [], work, matrix,
            everything=everything, json=json,
        )  # fmt: skip
        return
    if accept or arch:
        message = "--accept and --arch need --files or --builders"
        raise InputError(message, hint="add --files, or leave them out")
    client = Client(plain_http=plain_http or (), reporter=console)
    old, new = (diff_sides.side(name, client, matrix) for name in wanted)
    found = diffs.between(old, new)
    _options.answer(found, diffs.words(found), json=json)
