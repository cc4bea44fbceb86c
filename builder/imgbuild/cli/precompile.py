"""`imgbuild precompile`: kernels and bytecode compiled once, as wheels for variants of targets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from imgbuild.cli._help import VerbGroup, add
from imgbuild.cli._options import GPU, MODULE, OUTPUT_PATH, LayoutFolder, OneArch
from imgbuild.cli._output import answer, count, folded
from imgbuild.cli._selection import at_most_one, one_arch
from imgbuild.cli._targets import OneTarget
from imgbuild.cli._verb import option, verb
from imgbuild.errors import InputError
from imgbuild.system import files
from imgbuild.system.console import console

if TYPE_CHECKING:
    from imgbuild.lock.lock import Lock
    from imgbuild.pipeline.targets import Session
    from imgbuild.precompile.bytecode import Bytecode
    from imgbuild.precompile.pack import Packed

app = typer.Typer(
    no_args_is_help=True,
    cls=VerbGroup,
    help="Compile kernels or bytecode of a target ahead of time.\n\n"
    "The result is a wheel, an input of a variant of the target that starts faster.",
)

ONE_WHEEL = "a wheel is for one architecture"
NAMED = 5  # differences that are printed one by one; --json has all
Caches = Annotated[
    list[Path] | None,
    option(
        "--cache",
        "The cache that a run on a GPU left behind; give it twice, for two runs that started with"
        " empty caches.",
        metavar="FOLDER",
        often=True,
    ),
]
Output = Annotated[Path | None, OUTPUT_PATH("A folder. Default: wheels/ beside the matrix.")]


@verb
def flashinfer(
    one: OneTarget,
    arch: OneArch = None,
    gpu: Annotated[
        list[str] | None,
        GPU("Kernels are compiled for it; repeatable. Default: those of the target."),
    ] = None,
    function: Annotated[
        list[str] | None,
        option(
            "--function",
            "A function of FlashInfer that describes a library; repeatable. Default: those that"
            " vLLM samples with.",
            metavar="MODULE:FUNCTION",
        ),
    ] = None,
    caches: Caches = None,
    layout: LayoutFolder = None,
    output: Output = None,
) -> None:
    """Compile the FlashInfer kernels of a target, so that no start compiles them.

    Needs no GPU: the compiler in the image compiles each kernel twice, and differences are
    reported. With --cache the kernels that two runs on a GPU have compiled are used instead. The
    wheel is an input of a variant of the target; the row to add to matrix.yaml is printed.

    Examples:

        imgbuild precompile flashinfer cu130-vllm --gpu 9.0

        imgbuild precompile flashinfer cu130-vllm --gpu 9.0 --cache first/cache --cache second/cache
    """
    from imgbuild.cache.store import Store
    from imgbuild.pipeline import targets
    from imgbuild.precompile import flashinfer as compiling
    from imgbuild.precompile import machine

    session, target, locked, out = _target(one, output)
    named = at_most_one(arch, ONE_WHEEL)
    if caches:
        _refuse_beside("--cache", {"--function": function, "--layout": layout})
        first, second = _two(caches)
        libraries = compiling.compiled(first).values()
        only = named or machine.arch_of(first, libraries)
        gpus = _gpus(gpu or compiling.capabilities(libraries))
        made = compiling.take(locked, only, (first, second), gpus, out)
    else:
        gpus = _gpus(gpu or locked.settings.labels.get("dev.imgbuild.gpu", "").split())
        built = targets.built_layout(session, target, layout)
        made = compiling.compile_twice(
            locked, built, one_arch(built, arch), _modules(function), gpus,
            store=Store.open(reporter=console), out=out, reporter=console,
        )  # fmt: skip
    for each in made.kernels:
        if each.differs:
            places = ", ".join(each.differs)
            console.warn(f"{each.name}: two compilations differ; bytes by section: {places}")
    _finish(made, session, out)


@verb
def triton(
    one: OneTarget,
    caches: Caches = None,
    arch: OneArch = None,
    output: Output = None,
) -> None:
    """Pack the Triton kernels that two runs of a target on a GPU have compiled.

    Kernels that both runs left in their caches go into the wheel, an input of a variant of the
    target; the row to add to matrix.yaml is printed.

    Example:

        imgbuild precompile triton cu130-vllm --cache first/cache --cache second/cache
    """
    from imgbuild.precompile import machine
    from imgbuild.precompile import triton as compiled

    session, _, locked, out = _target(one, output)
    named = at_most_one(arch, ONE_WHEEL)
    both = _two(caches)
    libraries = compiled.libraries(both[0])
    only = named or machine.arch_of(both[0], libraries)
    made = compiled.take(locked, only, both, out)
    size = sum(kernel.size for kernel in made.kernels)
    sizes = f"{size / 1e6:.1f} MB, {made.size / 1e6:.1f} MB in the wheel"
    console.info(
        f"{made.target}: {count(len(made.kernels), 'kernel')} of Triton {made.triton}"
        f" for {', '.join(made.gpus)}, {sizes}"
    )
    if made.apart:
        console.info(f"{made.apart} kernels that only one run compiled are left out")
    if differ := sum(bool(kernel.differs) for kernel in made.kernels):
        console.info(f"{differ} kernels differ between the runs under one key; --json names them")
    _finish(made, session, out)


def _target(one: OneTarget, output: Path | None) -> tuple[Session, str, Lock, Path]:
    """The session, the one target, its lock, and the folder for the wheel."""
    from imgbuild.lock import lock

    session = one.session()
    target = one.pick(session)
    locked = lock.read_lock(session.project.images, target)
    out = output or session.project.work / "wheels"
    files.require_writable([out], hint=files.OUTPUT_HINT)
    return session, target, locked, out


def _finish(made: Packed, session: Session, out: Path) -> None:
    """Print the wheel, and the row that uses it."""
    from imgbuild.precompile import pack

    row = pack.row(made, session.matrix.targets[made.target])
    console.info(f"to use it, add to matrix.yaml:\n{row}")
    answer(made, folded([f"{out / made.file} sha256:{made.sha256}"]))


def _refuse_beside(given_option: str, given: Mapping[str, object]) -> None:
    """InputError if one of `given` was: `given_option` uses what was compiled already."""
    for name, value in given.items():
        if value:
            message = f"{given_option} and {name} cannot be combined"
            raise InputError(message, hint=f"leave {name} out")


def _two(caches: Sequence[Path] | None) -> tuple[Path, Path]:
    """The caches of two runs; InputError if not two are named."""
    if caches is None or len(caches) != 2:
        message = f"--cache: expected two folders, got {len(caches or ())}"
        raise InputError(message, hint="name the caches of two runs")
    if caches[0].resolve() == caches[1].resolve():
        message = f"--cache {caches[1]}: both caches are the same folder"
        raise InputError(message, hint="name the caches of two runs that started with empty caches")
    return caches[0], caches[1]


def _gpus(given: Sequence[str]) -> list[str]:
    """The compute capabilities, checked; InputError for another form, or none."""
    for each in given:
        if not re.fullmatch(r"\d+\.\d", each):
            message = f"--gpu {each}: not a compute capability"
            raise InputError(message, hint="for example: --gpu 9.0")
    if not given:
        message = "the target names no GPUs"
        raise InputError(message, hint="name compute capabilities with --gpu")
    return list(given)


def _modules(given: Sequence[str] | None) -> Sequence[str]:
    """The functions of FlashInfer, checked; those of the sampler by default."""
    from imgbuild.precompile.flashinfer import SAMPLING

    for each in given or ():
        if not re.fullmatch(r"flashinfer(\.\w+)*:\w+", each):
            message = f"--function {each}: not a function of FlashInfer"
            raise InputError(message, hint=f"for example: {SAMPLING[0]}")
    return tuple(given or SAMPLING)


@verb
def bytecode(
    one: OneTarget,
    arch: OneArch = None,
    module: Annotated[
        list[str] | None,
        MODULE(
            "Compile only the modules that importing it loads. Default: all"
            " modules of the environment and of"
            " the standard library."
        ),
    ] = None,
    layout: LayoutFolder = None,
    output: Output = None,
) -> None:
    """Compile the Python modules of a target, so that no start compiles them.

    Needs no GPU. The image's own Python compiles twice, and differences are reported. Bytecode is
    the same on both architectures, so one wheel is enough. It is an input of a variant of the
    target; the row to add to matrix.yaml is printed.

    Examples:

        imgbuild precompile bytecode cu130-vllm

        imgbuild precompile bytecode cu130-vllm --module vllm.entrypoints.llm
    """
    from imgbuild.cache.store import Store
    from imgbuild.pipeline import targets
    from imgbuild.precompile import bytecode as compiling

    session, target, locked, out = _target(one, output)
    built = targets.built_layout(session, target, layout)
    made = compiling.compile_twice(
        locked,
        built,
        one_arch(built, arch),
        _imports(module or ()),
        store=Store.open(reporter=console),
        out=out,
        reporter=console,
    )
    _report(made)
    _finish(made, session, out)


def _report(made: Bytecode) -> None:
    """What was compiled, what was left out, and what differs."""
    size = f"{made.unpacked / 1e6:.1f} MB, {made.size / 1e6:.1f} MB in the wheel"
    console.info(f"{made.target}: {count(made.modules, 'module')} compiled, {size}")
    if made.left_out:
        first = made.left_out[0]
        number = f"{count(len(made.left_out), 'file')} left out, because of syntax errors"
        console.info(f"{number}, such as {first.path} ({first.reason})")
    for other in made.left_out[1:]:
        console.detail(f"left out: {other.path} ({other.reason})")
    for each in made.differs[:NAMED]:
        console.warn(f"{each.path}: two compilations differ in {each.bytes} bytes")
    if len(made.differs) > NAMED:
        more = len(made.differs) - NAMED
        console.warn(f"{more} more files differ; --json has all")


def _imports(given: Sequence[str]) -> tuple[str, ...]:
    """The modules to import, checked; InputError for an invalid name."""
    for each in given:
        if not all(part.isidentifier() for part in each.split(".")):
            message = f"--module {each}: not a module name"
            raise InputError(message, hint="for example: vllm, or torch.distributed")
    return tuple(given)


add(app, "flashinfer", flashinfer)
add(app, "triton", triton)
add(app, "bytecode", bytecode)
