"""`imgbuild precompile`: kernels and bytecode compiled once, as wheels for variants of targets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from imgbuild.cli import _options
from imgbuild.cli._options import LayoutFolder
from imgbuild.cli._selection import one_arch, single
from imgbuild.errors import InputError
from imgbuild.system.console import console

if TYPE_CHECKING:
    from imgbuild.lock.lock import Lock
    from imgbuild.pipeline.targets import Session
    from imgbuild.precompile.bytecode import Bytecode
    from imgbuild.precompile.pack import Packed
    from imgbuild.values import Arch

app = typer.Typer(
    no_args_is_help=True,
    help="Compile kernels or bytecode of a target once, as a wheel for a variant of it.",
)

Gpus = Annotated[
    list[str] | None,
    typer.Option(
        "--gpu",
        metavar="N.N",
        help="Compute capability to compile for, as 9.0 for an H200; repeatable. By default all of"
        " the target's.",
        rich_help_panel=_options.WORK,
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
        rich_help_panel=_options.WORK,
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
        rich_help_panel=_options.WORK,
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
        rich_help_panel=_options.WORK,
        show_default=False,
    ),
]

NAMED = 5  # differences that are told one by one; all of them are in the JSON
Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        help="Take only what importing this module loads; repeatable. By default all modules of"
        " the environment and of the standard library.",
        rich_help_panel=_options.WORK,
        show_default=False,
    ),
]


@app.command("flashinfer")
def flashinfer(
    name: _options.One,
    arch: _options.OneArch = None,
    gpu: Gpus = None,
    module: Wanted = None,
    caches: Caches = None,
    layout: LayoutFolder = None,
    output: Output = None,
    matrix: _options.MatrixFile = None,
    json: _options.Json = False,
    quiet: _options.Quiet = False,
    verbose: _options.Verbose = False,
) -> None:
    """Compile the FlashInfer kernels of a target, so that no start compiles them.

    Needs no GPU: the compiler in the image compiles each kernel twice, and differences are
    reported. With --from the kernels that two runs on a GPU have compiled are used instead. The
    wheel is an input of a variant of the target; the row to add to matrix.yaml is printed.

    Examples:

        imgbuild precompile flashinfer cu130-vllm --gpu 9.0

        imgbuild precompile flashinfer cu130-vllm --gpu 9.0 --from first/cache --from second/cache
    """
    from imgbuild.cache.store import Store
    from imgbuild.pipeline import targets
    from imgbuild.precompile import flashinfer as compiling
    from imgbuild.precompile import machine

    _options.configure(json=json, quiet=quiet, verbose=verbose)
    session, target, locked, out = _target(name, matrix, output)
    _one_wheel(arch)
    if caches:
        _refuse_beside("--from", {"--module": module, "--layout": layout})
        first, second = _two(caches)
        libraries = compiling.compiled(first).values()
        only = arch[0] if arch else machine.arch_of(first, libraries)
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
    _finish(made, session, out, json=json)


@app.command("triton")
def triton(
    name: _options.One,
    caches: Caches = None,
    arch: _options.OneArch = None,
    output: Output = None,
    matrix: _options.MatrixFile = None,
    json: _options.Json = False,
    quiet: _options.Quiet = False,
    verbose: _options.Verbose = False,
) -> None:
    """Pack the Triton kernels that two runs of a target on a GPU have compiled.

    Kernels that both runs left in their caches go into the wheel, an input of a variant of the
    target; the row to add to matrix.yaml is printed.

    Example:

        imgbuild precompile triton cu130-vllm --from first/cache --from second/cache
    """
    from imgbuild.precompile import machine
    from imgbuild.precompile import triton as compiled

    _options.configure(json=json, quiet=quiet, verbose=verbose)
    session, _, locked, out = _target(name, matrix, output)
    _one_wheel(arch)
    both = _two(caches)
    libraries = compiled.libraries(both[0])
    only = arch[0] if arch else machine.arch_of(both[0], libraries)
    made = compiled.take(locked, only, both, out)
    size = sum(kernel.size for kernel in made.kernels)
    sizes = f"{size / 1e6:.1f} MB, {made.size / 1e6:.1f} MB in the wheel"
    console.info(
        f"{made.target}: {len(made.kernels)} kernels of Triton {made.triton}"
        f" for {', '.join(made.gpus)}, {sizes}"
    )
    if made.apart:
        console.info(f"{made.apart} kernels that only one run compiled are left out")
    if differ := sum(bool(kernel.differs) for kernel in made.kernels):
        console.info(f"{differ} kernels differ between the runs under one key; --json names them")
    _finish(made, session, out, json=json)


def _target(name: str, matrix: Path | None, output: Path | None) -> tuple[Session, str, Lock, Path]:
    """The session, the one target that `name` means, its lock, and the folder for the wheel."""
    from imgbuild.lock import lock
    from imgbuild.pipeline import targets

    session = targets.open_session(matrix, targets.Options())
    target = single(session.select([name], everything=False, arches=[]))
    locked = lock.read_lock(session.project.images, target)
    return session, target, locked, output or session.project.root / "wheels"


def _one_wheel(arches: Sequence[Arch] | None) -> None:
    """InputError if several architectures are named."""
    if len(set(arches or [])) > 1:
        message = f"--arch {' --arch '.join(arches or [])}: a wheel is for one architecture"
        raise InputError(message, hint="name one of them")


def _finish(made: Packed, session: Session, out: Path, *, json: bool) -> None:
    """Print the wheel, and the row that uses it."""
    from imgbuild.precompile import pack

    row = pack.row(made, session.matrix.targets[made.target])
    console.info(f"to use it, add to matrix.yaml:\n{row}")
    _options.answer(made, [f"{out / made.file} sha256:{made.sha256}"], json=json)


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


@app.command("bytecode")
def bytecode(
    name: _options.One,
    arch: _options.OneArch = None,
    imports: Imports = None,
    layout: LayoutFolder = None,
    output: Output = None,
    matrix: _options.MatrixFile = None,
    json: _options.Json = False,
    quiet: _options.Quiet = False,
    verbose: _options.Verbose = False,
) -> None:
    """Compile the Python modules of a target, so that no start compiles them.

    Needs no GPU. The image's own Python compiles twice, and differences are reported. Bytecode is
    the same on both architectures, so one wheel is enough. It is an input of a variant of the
    target; the row to add to matrix.yaml is printed.

    Examples:

        imgbuild precompile bytecode cu130-vllm

        imgbuild precompile bytecode cu130-vllm --import vllm.entrypoints.llm
    """
    from imgbuild.cache.store import Store
    from imgbuild.pipeline import targets
    from imgbuild.precompile import bytecode as compiling

    _options.configure(json=json, quiet=quiet, verbose=verbose)
    session, target, locked, out = _target(name, matrix, output)
    built = targets.built_layout(session, target, layout)
    made = compiling.compile_twice(
        locked, built, one_arch(built, arch), _imports(imports or ()), store=Store.open(), out=out
    )
    _say(made)
    _finish(made, session, out, json=json)


def _say(made: Bytecode) -> None:
    """What was compiled, what was left out, and what differs."""
    size = f"{made.unpacked / 1e6:.1f} MB, {made.size / 1e6:.1f} MB in the wheel"
    console.info(f"{made.target}: {made.modules} modules compiled, {size}")
    if made.left_out:
        first = made.left_out[0]
        count = f"{len(made.left_out)} files do not compile and are left out"
        console.info(f"{count}, as {first.path} ({first.reason})")
    for other in made.left_out[1:]:
        console.detail(f"left out: {other.path} ({other.reason})")
    for each in made.differs[:NAMED]:
        console.warn(f"{each.path}: two compilations differ in {each.bytes} bytes")
    if len(made.differs) > NAMED:
        more = len(made.differs) - NAMED
        console.warn(f"and {more} more files differ; --json names them all")


def _imports(asked: Sequence[str]) -> tuple[str, ...]:
    """The modules to import, checked; InputError for what is no name of one."""
    for each in asked:
        if not all(part.isidentifier() for part in each.split(".")):
            message = f"--import {each}: no name of a module"
            raise InputError(message, hint="name one as in an import: vllm, or torch.distributed")
    return tuple(asked)
