"""All verbs, in the groups in which `imgbuild --help` shows them."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
import typer.core

import imgbuild
from imgbuild.cli import (
    _array,
    _options,
    audit,
    build,
    cache,
    ci,
    diff,
    digest,
    doctor,
    init,
    load,
    lock,
    precompile,
    pull,
    push,
    registry,
    render,
    resolve,
    run,
    schema,
    show,
    sign,
    slurm,
    smoke,
    verify,
)
from imgbuild.cli import list as listing
from imgbuild.errors import InputError

# typer's own class for a command line that is wrong; not every version gives it a public name.
USAGE_ERRORS: tuple[type[Exception], ...] = typer.BadParameter.__bases__


class Group(typer.core.TyperGroup):
    """All verbs. An interrupt passes through, so that `main` can report it."""

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
        "One reviewed file, **matrix.yaml**, names targets: sets of CUDA, torch, vLLM, trl and"
        " what goes with them. `imgbuild lock` locks every input of a target by hash and records"
        " the digests of its image; `imgbuild build` builds an OCI image with those digests from"
        " the lock, without Docker, root or a GPU.\n\n"
        "Start with `imgbuild list`, then `imgbuild build cu124-vllm`.\n\n"
        "Exit status: 0 done, 1 the work failed, 2 wrong input, 3 nothing selected,"
        " 4 an audit found an error, 5 lock out of date, 6 a program is missing, 7 a download"
        " failed, 8 no solution, 9 a file does not match its hash, 130 interrupted."
    ),
)

COMMON = "Common commands"
IMAGES = "Images"
DISTRIBUTION = "Distribution"
SITES = "Clusters, CI and maintenance"


def _version(value: bool) -> None:
    if value:
        _options.put(f"imgbuild {imgbuild.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Options of the program itself."""


app.command("list", rich_help_panel=COMMON)(listing.list_targets)
app.command("show", rich_help_panel=COMMON)(show.show)
app.command("build", rich_help_panel=COMMON)(_array.offered("build", build.build))
app.command("run", rich_help_panel=COMMON)(run.run)
app.command("init", rich_help_panel=COMMON)(init.init)
app.command("lock", rich_help_panel=COMMON)(lock.lock)
app.command("resolve", rich_help_panel=COMMON)(resolve.resolve)
app.command("audit", rich_help_panel=COMMON)(audit.audit)
app.command("doctor", rich_help_panel=COMMON)(doctor.doctor)
app.command("load", rich_help_panel=IMAGES)(load.load)
app.command("render", rich_help_panel=IMAGES)(render.render)
app.command("smoke", rich_help_panel=IMAGES)(_array.offered("smoke", smoke.smoke))
app.command("diff", rich_help_panel=IMAGES)(diff.diff)
app.command("digest", rich_help_panel=IMAGES)(digest.digest)
app.command("push", rich_help_panel=DISTRIBUTION)(push.push)
app.command("pull", rich_help_panel=DISTRIBUTION)(pull.pull)
app.command("sign", rich_help_panel=DISTRIBUTION)(sign.sign)
app.command("verify", rich_help_panel=DISTRIBUTION)(verify.verify)
app.add_typer(registry.app, name="registry", rich_help_panel=DISTRIBUTION)
app.command("slurm", rich_help_panel=SITES)(slurm.slurm)
app.add_typer(ci.app, name="ci", rich_help_panel=SITES)
app.add_typer(precompile.app, name="precompile", rich_help_panel=SITES)
app.add_typer(cache.app, name="cache", rich_help_panel=SITES)
app.command("schema", hidden=True)(schema.schema)


def _asks_for_help(words: Sequence[str]) -> bool:
    own = list(itertools.takewhile(lambda word: word != "--", words))
    return not own or not {"--help", "-h"}.isdisjoint(own)


def run_verb() -> int:
    """Run the verb that the command line names: the exit status.

    InputError if the command line is wrong; errors of verbs and interrupts pass through.
    """
    try:
        return app(prog_name="imgbuild", standalone_mode=False) or 0
    except Stopped as error:
        raise KeyboardInterrupt from error
    except SystemExit as ended:
        # The reader of the help, such as `head`, has closed the pipe: not an error.
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
