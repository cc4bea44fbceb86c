"""`imgbuild kernels`: kernels that were compiled once, as a wheel to lock a variant with."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from imgbuild.cli import options
from imgbuild.cli.image import LayoutFolder, one_arch, single
from imgbuild.errors import InputError
from imgbuild.system.console import console

if TYPE_CHECKING:
    from imgbuild.lock.lock import Lock
    from imgbuild.matrix.model import Target
    from imgbuild.values import Arch

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
OfTriton = Annotated[
    bool,
    typer.Option(
        "--triton",
        help="Triton's kernels, not FlashInfer's: those that both runs left in their caches.",
        rich_help_panel=options.WORK,
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
    triton: OfTriton = False,
    layout: LayoutFolder = None,
    output: Output = None,
    matrix: options.MatrixFile = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Compile a target's kernels ahead, FlashInfer's or Triton's, so that no start does.

    FlashInfer's need no GPU: the compiler is in the image, compiles all twice, and what differs is
    named. Triton's, for which only a run on a GPU asks, are taken from what two runs left. The
    wheel is an input of a variant of the target; the row to paste into the matrix is shown.

    Examples:

        imgbuild kernels cu130-vllm --gpu 9.0

        imgbuild kernels cu130-vllm --gpu 9.0 --from first/cache --from second/cache

        imgbuild kernels cu130-vllm --triton --from first/cache --from second/cache
    """
    from imgbuild.cache.store import Store
    from imgbuild.lock import lock
    from imgbuild.pipeline import targets
    from imgbuild.precompile import flashinfer as compiling

    options.configure(json=json, quiet=quiet, verbose=verbose)
    session = targets.open_session(matrix, targets.Options())
    target = single(session.select([name], everything=False, arches=[]))
    locked = lock.read_lock(session.project.images, target)
    out = output or session.project.root / "wheels"
    if len(set(arch or [])) > 1:
        message = f"--arch {' --arch '.join(arch or [])}: a wheel is for one architecture"
        raise InputError(message, hint="name one of them")
    if triton:
        _refuse_beside("--triton", {"--gpu": gpu, "--module": module, "--layout": layout})
        _triton(session.matrix.targets[target], locked, arch, _two(caches), out, json=json)
        return
    if caches:
        _refuse_beside("--from", {"--module": module, "--layout": layout})
        first, second = _two(caches)
        libraries = compiling.compiled(first).values()
        only = arch[0] if arch else compiling.machine(first, libraries)
        gpus = _gpus(gpu or compiling.capabilities(libraries))
        made = compiling.take(locked, only, (first, second), gpus, out)
    else:
        gpus = _gpus(gpu or locked.settings.labels.get("dev.imgbuild.gpu", "").split())
        built = targets.built_layout(session, target, layout)
        made = compiling.compile_twice(
            locked, built, one_arch(built, arch), _modules(module), gpus,
            store=Store.open(), out=out,
        )  # fmt: skip
    for each in made.kernels:
        if each.differs:
            places = ", ".join(each.differs)
            console.warn(f"{each.name}: two compilations differ; bytes by section: {places}")
    shown = compiling.row(made, session.matrix.targets[target])
    console.info(f"to use it, add to matrix.yaml:\n{shown}")
    options.answer(made, [f"{out / made.file} sha256:{made.sha256}"], json=json)


def _triton(
    row: Target,
    locked: Lock,
    arch: Sequence[Arch] | None,
    caches: tuple[Path, Path],
    out: Path,
    *,
    json: bool,
) -> None:
    """The wheel of Triton's kernels."""
    from imgbuild.precompile import triton as compiled

    only = arch[0] if arch else compiled.machine(caches[0])
    made = compiled.take(locked, only, caches, out)
    size = sum(kernel.size for kernel in made.kernels)
    told = f"for {', '.join(made.gpus)}, {size / 1e6:.1f} MB, {made.size / 1e6:.1f} MB in the wheel"
    console.info(f"{made.target}: {len(made.kernels)} kernels of Triton {made.triton} {told}")
    if made.apart:
        console.info(f"{made.apart} kernels that only one run compiled are left out")
    if differ := sum(bool(kernel.differs) for kernel in made.kernels):
        console.info(f"of {differ} the two runs made other bytes, under one key; --json names them")
    console.info(f"to use it, add to matrix.yaml:\n{compiled.row(made, row)}")
    options.answer(made, [f"{out / made.file} sha256:{made.sha256}"], json=json)


def _refuse_beside(option: str, given: Mapping[str, object]) -> None:
    """InputError if one of `given` was: `option` takes what was compiled, as it is."""
    for name, value in given.items():
        if value:
            message = f"{option} is given beside {name}"
            raise InputError(message, hint="leave it out: what the two runs compiled is taken")


def _two(caches: Sequence[Path] | None) -> tuple[Path, Path]:
    """The caches of two runs; InputError if not two are named."""
    if caches is None or len(caches) != 2:
        message = f"--from is given {len(caches or ())} time(s)"
        raise InputError(message, hint="name the caches of two runs")
    if caches[0].resolve() == caches[1].resolve():
        message = f"--from {caches[1]}: both are one folder"
        raise InputError(message, hint="name the caches of two runs, each begun with an empty one")
    return caches[0], caches[1]


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
    from imgbuild.precompile.flashinfer import SAMPLING

    for each in asked or ():
        if not re.fullmatch(r"flashinfer(\.\w+)*:\w+", each):
            message = f"--module {each}: no function of FlashInfer"
            raise InputError(message, hint=f"name one as {SAMPLING[0]}")
    return tuple(asked or SAMPLING)
