"""All verbs in the order in which one meets them."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
import typer.core

import imgbuild
from imgbuild.cli import (
    audit,
    build,
    bytecode,
    cache,
    ci,
    compare,
    difference,
    doctor,
    env,
    gc,
    image,
    init,
    kernels,
    listing,
    lock,
    matrix,
    mirror,
    nightly,
    on_slurm,
    options,
    prove,
    pull,
    push,
    render,
    resolve,
    sbom,
    sif,
    slurm,
    smoke,
    verify,
)
from imgbuild.errors import InputError

# typer's own class for a command line that is wrong; not every version gives it a public name.
USAGE_ERRORS: tuple[type[Exception], ...] = typer.BadParameter.__bases__


class Group(typer.core.TyperGroup):
    """All verbs. An interrupt passes through, so that what it means can be said."""

    def invoke(self, ctx: Any) -> Any:
        """Run the verb of `ctx`."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise Stopped from error


class Stopped(BaseException):
    """An interrupt that typer does not turn into a silent exit."""


app = typer.Typer(
    name="imgbuild",
    cls=Group,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help=(
        "Container images for LLM reinforcement learning whose parts work together.\n\n"
        "One reviewed file, **matrix.yaml**, names targets: worlds of CUDA, torch, vLLM, trl and"
        " what goes with them. `imgbuild lock` turns a target into a lock of every input by hash,"
        " and seals its digests; `imgbuild build` turns a lock into an OCI image with those"
        " digests, without Docker, root or a GPU.\n\n"
        "Start with `imgbuild matrix`, then `imgbuild build --target cu124-vllm`.\n\n"
        "Exit status: 0 done, 1 the work failed, 2 wrong input, 3 nothing selected,"
        " 4 an audit found an error, 5 lock out of date, 6 a program is missing, 7 a download"
        " failed, 8 an impossible world, 9 a file is not what its hash says, 130 interrupted."
    ),
)

MAKE = "Make images"
LOOK = "Look"
USE = "Use images"
SHARE = "Registries"
KEEP = "Housekeeping"


def _version(value: bool) -> None:
    if value:
        options.put(f"imgbuild {imgbuild.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the version and end."
        ),
    ] = False,
) -> None:
    """Options of the program itself."""


app.command("build", rich_help_panel=MAKE)(on_slurm.offered("build", build.build))
app.command("lock", rich_help_panel=MAKE)(lock.lock)
app.command("render", rich_help_panel=MAKE)(render.render)
app.command("init", rich_help_panel=MAKE)(init.init)
app.command("kernels", rich_help_panel=MAKE)(kernels.kernels)
app.command("bytecode", rich_help_panel=MAKE)(bytecode.bytecode)
app.command("audit", rich_help_panel=LOOK)(audit.audit)
app.command("matrix", rich_help_panel=LOOK)(matrix.matrix)
app.command("resolve", rich_help_panel=LOOK)(resolve.resolve)
app.command("plan", rich_help_panel=LOOK)(build.plan)
app.command("digest", rich_help_panel=LOOK)(build.digest)
app.command("sbom", rich_help_panel=LOOK)(sbom.sbom)
app.command("compare", rich_help_panel=LOOK)(compare.compare)
app.command("env", rich_help_panel=LOOK)(env.env)
app.command("schema", rich_help_panel=LOOK)(matrix.schema)
app.command("doctor", rich_help_panel=USE)(doctor.doctor)
app.command("load", rich_help_panel=USE)(image.load)
app.command("run", rich_help_panel=USE)(image.run)
app.command("sif", rich_help_panel=USE)(sif.sif)
app.command("slurm", rich_help_panel=USE)(slurm.slurm)
app.command("smoke", rich_help_panel=USE)(on_slurm.offered("smoke", smoke.smoke))
app.command("prove", rich_help_panel=USE)(prove.prove)
app.command("push", rich_help_panel=SHARE)(push.push)
app.command("tag", rich_help_panel=SHARE)(push.tag)
app.command("pull", rich_help_panel=SHARE)(pull.pull)
app.command("ls", rich_help_panel=SHARE)(listing.ls)
app.command("diff", rich_help_panel=SHARE)(difference.diff)
app.command("sign", rich_help_panel=SHARE)(verify.sign)
app.command("verify", rich_help_panel=SHARE)(verify.verify)
app.add_typer(cache.app, name="cache", rich_help_panel=KEEP)
app.add_typer(ci.app, name="ci", rich_help_panel=KEEP)
app.command("nightly", rich_help_panel=KEEP)(nightly.nightly)
app.add_typer(mirror.app, name="mirror", rich_help_panel=KEEP)
app.command("gc", rich_help_panel=KEEP)(gc.gc)


def _asks_for_help(words: Sequence[str]) -> bool:
    own = list(itertools.takewhile(lambda word: word != "--", words))
    return not own or not {"--help", "-h"}.isdisjoint(own)


def run() -> int:
    """Run the verb that the command line names: the exit status.

    InputError if the command line is wrong; errors of verbs and interrupts pass through.
    """
    try:
        return app(prog_name="imgbuild", standalone_mode=False) or 0
    except Stopped as error:
        raise KeyboardInterrupt from error
    except SystemExit as ended:
        # A reader of the help that has gone, such as `head`, has had enough: no error.
        if _asks_for_help(sys.argv[1:]) and isinstance(ended.__context__, BrokenPipeError):
            return 0
        raise
    except USAGE_ERRORS as error:
        context = getattr(error, "ctx", None)
        verb = context.command_path if context is not None else "imgbuild"
        text = str(getattr(error, "format_message", error.__str__)()).strip()
        if not text:  # no verb was given, and the help has been shown
            return InputError.exit_code
        message = f"{verb}: {text.replace('Value error, ', '')}"
        raise InputError(message, hint=f"see: {verb} --help") from error
