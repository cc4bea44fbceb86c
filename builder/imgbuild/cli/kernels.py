"""`imgbuild kernels`: compile FlashInfer's kernels once, as a wheel to lock a variant with."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from imgbuild.cli import options
from imgbuild.cli.image import LayoutFolder, one_arch, single
from imgbuild.console import console
from imgbuild.errors import InputError

Gpus = Annotated[
    list[str] | None,
    typer.Option(
        "--gpu",
        metavar="N.N",
        help="Compute capability to compile for, as 9.0 for an H200; repeatable. By default all of"
        " the target's.",
        rich_help_panel=options.WORK,
        show_default=False,
    ),
]
Wanted = Annotated[
    list[str] | None,
    typer.Option(
        "--module",
        metavar="MODULE:FUNCTION",
        help="A function of FlashInfer that describes a library; repeatable. By default what vLLM"
        " samples with.",
        rich_help_panel=options.WORK,
        show_default=False,
    ),
]
Caches = Annotated[
    list[Path] | None,
    typer.Option(
        "--from",
        metavar="FOLDER",
        help="Compile nothing: take what a run on a GPU left in its cache. Given twice, for two"
        " runs that began with empty caches.",
        rich_help_panel=options.WORK,
        show_default=False,
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FOLDER",
        help="Where the wheel goes; by default wheels/ beside the matrix.",
        rich_help_panel=options.WORK,
        show_default=False,
    ),
]


def kernels(
    name: options.One,
    arch: options.OneArch = None,
    gpu: Gpus = None,
    module: Wanted = None,
    caches: Caches = None,
    layout: LayoutFolder = None,
    output: Output = None,
    matrix: options.MatrixFile = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Compile a target's FlashInfer kernels ahead, so that no start compiles them.

    Needs no GPU: the compiler is in the image. All is compiled twice, and what differs is named.
    The wheel is an input of a variant of the target; the row to paste into the matrix is shown.

    Examples:

        imgbuild kernels cu130-vllm --gpu 9.0

        imgbuild kernels cu130-vllm --gpu 9.0 --from first/cache --from second/cache
    """
    from imgbuild import kernels as compiling
    from imgbuild import lock, pipeline
    from imgbuild.store import Store

    options.configure(json=json, quiet=quiet, verbose=verbose)
    session = pipeline.open_session(matrix, pipeline.Options())
    target = single(session.select([name], everything=False, arches=[]))
    locked = lock.read_lock(session.project.images, target)
    out = output or session.project.root / "wheels"
    gpus = _gpus(gpu or locked.settings.labels.get("dev.imgbuild.gpu", "").split())
    if caches:
        if len(caches) != 2 or module:
            message = f"--from is given {len(caches)} time(s){' beside --module' if module else ''}"
            raise InputError(message, hint="name the caches of two runs, and no --module")
        only = arch[0] if arch else compiling.machine(caches[0])
        made = compiling.take(locked, only, (caches[0], caches[1]), gpus, out)
    else:
        built = pipeline.built_layout(session, target, layout)
        made = compiling.compile_twice(
            locked, built, one_arch(built, arch), _modules(module), gpus,
            store=Store.open(), out=out,
        )  # fmt: skip
    for each in made.kernels:
        if each.differs:
            places = ", ".join(each.differs)
            console.warn(f"{each.name}: two compilations differ; bytes by section: {places}")
    pins = session.matrix.targets[target].pins
    console.info(f"to use it, add to matrix.yaml:\n{compiling.row(made, pins)}")
    options.answer(made, [f"{out / made.file} sha256:{made.sha256}"], json=json)


def _gpus(asked: Sequence[str]) -> list[str]:
    """The compute capabilities, checked; InputError for another form, or none."""
    for each in asked:
        if not re.fullmatch(r"\d+\.\d", each):
            message = f"--gpu {each}: no compute capability"
            raise InputError(message, hint="give two numbers, as 9.0")
    if not asked:
        message = "the target names no GPUs"
        raise InputError(message, hint="name compute capabilities with --gpu")
    return list(asked)


def _modules(asked: Sequence[str] | None) -> Sequence[str]:
    """The functions of FlashInfer, checked; those of the sampler by default."""
    from imgbuild.kernels import SAMPLING

    for each in asked or ():
        if not re.fullmatch(r"flashinfer(\.\w+)*:\w+", each):
            message = f"--module {each}: no function of FlashInfer"
            raise InputError(message, hint=f"name one as {SAMPLING[0]}")
    return tuple(asked or SAMPLING)
