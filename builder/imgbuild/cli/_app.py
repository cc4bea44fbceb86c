"""All verbs, in the groups in which `imgbuild --help` shows them."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

import imgbuild
from imgbuild.cli import (
    _array,
    audit,
    build,
    cache,
    ci,
    cves,
    diff,
    digest,
    doctor,
    init,
    load,
    lock,
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
    tree,
    verify,
    why,
)
from imgbuild.cli import list as listing
from imgbuild.cli._help import AuditCommand, RunCommand, VerbGroup, add, choices
from imgbuild.cli._output import discard, put
from imgbuild.cli._verb import verb
from imgbuild.errors import InputError

# typer's own class for a command line that is wrong; not every version gives it a public name.
USAGE_ERRORS: tuple[type[Exception], ...] = typer.BadParameter.__bases__

# How typer reports a value that is not one of the choices.
WRONG_CHOICE = re.compile(r"'([^']*)' is not one of ")

# Verbs whose last words are a command of the user.
TAKES_COMMAND = ("imgbuild run", "imgbuild slurm")

# Verbs of earlier versions → what replaced them.
REPLACED = {
    "matrix": "list",
    "plan": "show TARGET --layers",
    "env": "show TARGET --variables",
    "sbom": "show TARGET --sbom cyclonedx",
    "compare": "diff --files",
    "prove": "smoke --import PATH",
    "ls": "registry ls",
    "tag": "registry tag",
    "gc": "registry gc",
    "mirror": "registry mirror",
    "nightly": "ci script",
    "sif": "build TARGET --format sif",
}


class Program(VerbGroup):
    """All verbs. An interrupt is not caught, so that `main` can report it."""

    def invoke(self, ctx: Any) -> Any:
        """Run the verb of `ctx`."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise SignalInterrupt from error


class SignalInterrupt(BaseException):
    """An interrupt that typer does not turn into a silent exit."""


app = typer.Typer(
    name="imgbuild",
    cls=Program,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help"]},
    help=(
        "Reproducible container images for LLM reinforcement learning.\n\n"
        "matrix.yaml names targets: versions of CUDA, torch, vLLM, trl and more that work together."
        " `lock` locks every input of a target by hash; `build` makes an OCI image with a known"
        " digest from the lock, without Docker, root or a GPU."
    ),
)

COMMON = "Common commands"
IMAGES = "Images"
DISTRIBUTION = "Distribution"
SITES = "Clusters, CI and maintenance"


def _version(value: bool) -> None:
    if value:
        put(f"imgbuild {imgbuild.__version__}")
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


add(app, "list", listing.list_targets, rich_help_panel=COMMON)
add(app, "show", show.show, rich_help_panel=COMMON)
add(app, "build", _array.offered("build", build.build), rich_help_panel=COMMON)
add(app, "run", run.run, cls=RunCommand, rich_help_panel=COMMON)
add(app, "init", init.init, rich_help_panel=COMMON)
add(app, "lock", lock.lock, rich_help_panel=COMMON)
add(app, "resolve", resolve.resolve, rich_help_panel=COMMON)
add(app, "audit", audit.audit, cls=AuditCommand, rich_help_panel=COMMON)
add(app, "doctor", doctor.doctor, rich_help_panel=COMMON)
add(app, "cves", cves.cves, rich_help_panel=IMAGES)
add(app, "why", why.why, rich_help_panel=IMAGES)
add(app, "tree", tree.tree, rich_help_panel=IMAGES)
add(app, "load", load.load, rich_help_panel=IMAGES)
add(app, "render", render.render, rich_help_panel=IMAGES)
add(app, "smoke", _array.offered("smoke", smoke.smoke), rich_help_panel=IMAGES)
add(app, "diff", diff.diff, rich_help_panel=IMAGES)
add(app, "digest", digest.digest, rich_help_panel=IMAGES)
add(app, "push", push.push, rich_help_panel=DISTRIBUTION)
add(app, "pull", pull.pull, rich_help_panel=DISTRIBUTION)
add(app, "sign", sign.sign, rich_help_panel=DISTRIBUTION)
add(app, "verify", verify.verify, rich_help_panel=DISTRIBUTION)
app.add_typer(registry.app, name="registry", rich_help_panel=DISTRIBUTION)
add(app, "slurm", slurm.slurm, rich_help_panel=SITES)
app.add_typer(ci.app, name="ci", rich_help_panel=SITES)
app.add_typer(cache.app, name="cache", rich_help_panel=SITES)
add(app, "schema", schema.schema, hidden=True)


@verb
def show_help(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND", help="A command, such as build or `registry ls`."),
    ] = None,
) -> None:
    """Show the long help of a command.

    The same as COMMAND --help; COMMAND -h is short.

    Example:

        imgbuild help build
    """
    app([*(names or []), "--help"], prog_name="imgbuild", standalone_mode=False)


add(app, "help", show_help, hidden=True)


def _asks_for_help(words: Sequence[str]) -> bool:
    given = list(itertools.takewhile(lambda word: word != "--", words))
    return not given or given[0] == "help" or not {"--help", "-h"}.isdisjoint(given)


def _suggestion(error: Exception, text: str) -> str:
    """The choice of an option that is similar to its wrong value, as a question."""
    from imgbuild.matrix.notes import nearest

    parameter = getattr(error, "param", None)
    value = WRONG_CHOICE.search(text)
    near = (
        nearest(value[1].lower(), choices(parameter)) if parameter is not None and value else None
    )
    return f" Did you mean {near}?" if near else ""


def run_verb() -> int:
    """Run the verb that the command line names: the exit status.

    InputError if the command line is wrong; errors of verbs and interrupts are not caught.
    """
    try:
        return app(prog_name="imgbuild", standalone_mode=False) or 0
    except SignalInterrupt as error:
        raise KeyboardInterrupt from error
    except (BrokenPipeError, SystemExit) as ended:
        closed = BrokenPipeError in (type(ended), type(ended.__context__))
        if not closed or not _asks_for_help(sys.argv[1:]):
            raise
        discard()  # the reader of the help, such as `head`, has closed the pipe: not an error
        return 0
    except USAGE_ERRORS as error:
        context = getattr(error, "ctx", None)
        name = context.command_path if context is not None else "imgbuild"
        text = str(getattr(error, "format_message", error.__str__)()).strip()
        if type(error).__name__ == "NoArgsIsHelpError" or not text:
            put(text)
            return InputError.exit_code
        message = f"{name}: {text}{_suggestion(error, text)}"
        hint = f"see: imgbuild help{name.removeprefix('imgbuild')}"
        verbs = [word for word in sys.argv[1:2] if type(error).__name__ == "UsageError"]
        if name == "imgbuild" and verbs and verbs[0] in REPLACED:
            hint = f"its replacement: imgbuild {REPLACED[verbs[0]]}"
        if name in TAKES_COMMAND and type(error).__name__ == "NoSuchOption":
            hint = f"options of the command go after --: {name} TARGET -- COMMAND; {hint}"
        raise InputError(message, hint=hint) from error
