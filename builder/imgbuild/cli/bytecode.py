"""`imgbuild bytecode`: compile an image's Python modules once, as a wheel for a variant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from imgbuild.cli import options
from imgbuild.cli.image import LayoutFolder, one_arch, single
from imgbuild.cli.kernels import Output
from imgbuild.errors import InputError
from imgbuild.system.console import console

if TYPE_CHECKING:
    from imgbuild.precompile.bytecode import Bytecode

NAMED = 5  # differences that are told one by one; all of them are in the JSON
Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        help="Take only what importing this module loads; repeatable. By default all modules of"
        " the environment and of the standard library.",
        rich_help_panel=options.WORK,
        show_default=False,
    ),
]


def bytecode(
    name: options.One,
    arch: options.OneArch = None,
    imports: Imports = None,
    layout: LayoutFolder = None,
    output: Output = None,
    matrix: options.MatrixFile = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Compile a target's Python modules ahead, so that no start compiles them.

    Needs no GPU. The image's own Python compiles twice, and what differs is named. Bytecode is the
    same on both architectures, so that one wheel serves both. It is an input of a variant of the
    target; the row to paste into the matrix is shown.

    Examples:

        imgbuild bytecode cu130-vllm

        imgbuild bytecode cu130-vllm --import vllm.entrypoints.llm --import trl.trainer.grpo_trainer
    """
    from imgbuild.cache.store import Store
    from imgbuild.lock import lock
    from imgbuild.pipeline import targets
    from imgbuild.precompile import bytecode as compiling

    options.configure(json=json, quiet=quiet, verbose=verbose)
    session = targets.open_session(matrix, targets.Options())
    target = single(session.select([name], everything=False, arches=[]))
    locked = lock.read_lock(session.project.images, target)
    out = output or session.project.root / "wheels"
    built = targets.built_layout(session, target, layout)
    made = compiling.compile_twice(
        locked, built, one_arch(built, arch), _modules(imports or ()), store=Store.open(), out=out
    )
    _tell(made)
    shown = compiling.row(made, session.matrix.targets[target], locked.settings.prefix)
    console.info(f"to use it, add to matrix.yaml:\n{shown}")
    options.answer(made, [f"{out / made.file} sha256:{made.sha256}"], json=json)


def _tell(made: Bytecode) -> None:
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


def _modules(asked: Sequence[str]) -> tuple[str, ...]:
    """The modules to import, checked; InputError for what is no name of one."""
    for each in asked:
        if not all(part.isidentifier() for part in each.split(".")):
            message = f"--import {each}: no name of a module"
            raise InputError(message, hint="name one as in an import: vllm, or torch.distributed")
    return tuple(asked)
