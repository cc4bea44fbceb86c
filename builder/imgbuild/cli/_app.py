"""Defines the program: its commands, `--version`, unknown commands and shell completion."""

from __future__ import annotations

import importlib
import itertools
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec
import typer
from typer.core import TyperCommand, TyperGroup

import imgbuild
from imgbuild.cli._help import HELP, VerbGroup, parameter_choices
from imgbuild.cli._output import discard_stdout, write_stdout
from imgbuild.errors import InputError
from imgbuild.matrix.notes import nearest_choice

# typer's class for an invalid command line; not every version exports it under a public name.
USAGE_ERRORS: tuple[type[Exception], ...] = typer.BadParameter.__bases__

# typer's message for a value that is not one of the choices.
WRONG_CHOICE = re.compile(r"'([^']*)' is not one of ")

# Verbs whose last words are a command of the user.
TAKES_COMMAND = ("imgbuild run", "imgbuild slurm")

COMMON = "Common commands"
IMAGES = "Images"
DISTRIBUTION = "Distribution"
CURRENT = "Staying current"
SITES = "Clusters and CI"


class VerbRow(msgspec.Struct, frozen=True):
    """A command in the help of imgbuild, defined as `COMMAND` in the module `cli/NAME.py`."""

    panel: str
    summary: str
    hidden: bool = False


VERBS = {
    "list": VerbRow(
        COMMON, "List the targets in the matrix, with versions, states and test results"
    ),
    "show": VerbRow(COMMON, "Show the versions, digest, size and tests of a target"),
    "init": VerbRow(COMMON, "Create an image for a project from the best matching target"),
    "add": VerbRow(COMMON, "Add packages to the image of a project"),
    "remove": VerbRow(COMMON, "Remove packages that were added to the image of a project"),
    "lock": VerbRow(COMMON, "Lock all inputs of targets by hash"),
    "build": VerbRow(COMMON, "Build images from their locks"),
    "run": VerbRow(COMMON, "Run a command in the image of a target"),
    "shell": VerbRow(COMMON, "Open a shell in the image of a target"),
    "resolve": VerbRow(COMMON, "Find targets that satisfy requirements, or solve for new versions"),
    "audit": VerbRow(COMMON, "Check that targets, versions or installed packages work together"),
    "diagnose": VerbRow(COMMON, "Find the first failure in a log, with its cause and fix"),
    "doctor": VerbRow(COMMON, "Show which targets this machine can run, and why"),
    "load": VerbRow(IMAGES, "Load images into Docker or podman, and build missing images"),
    "render": VerbRow(IMAGES, "Write locks as Dockerfiles, Kubernetes jobs and other formats"),
    "smoke": VerbRow(IMAGES, "Run smoke tests in built images, without network access"),
    "diff": VerbRow(IMAGES, "Compare two images: packages and bytes to download, or files"),
    "digest": VerbRow(IMAGES, "Compute the digest of an image from its lock"),
    "why": VerbRow(IMAGES, "Show why a target contains a package, and what limits its version"),
    "tree": VerbRow(IMAGES, "Show the dependency tree of a target"),
    "push": VerbRow(DISTRIBUTION, "Push images to a registry"),
    "pull": VerbRow(DISTRIBUTION, "Pull an image from a registry into an OCI layout"),
    "sign": VerbRow(DISTRIBUTION, "Sign an image in a registry, and its provenance and SBOMs"),
    "verify": VerbRow(DISTRIBUTION, "Verify the signatures, the lock and the contents of an image"),
    "registry": VerbRow(DISTRIBUTION, "List, tag, clean up or mirror images in a registry"),
    "cves": VerbRow(DISTRIBUTION, "List known vulnerabilities of locked targets"),
    "outdated": VerbRow(
        CURRENT, "List newer versions of the packages in a target, a project or a file"
    ),
    "update": VerbRow(CURRENT, "Update a project, or try newer versions in a matrix"),
    "slurm": VerbRow(SITES, "Write a Slurm job script for a target"),
    "ci": VerbRow(SITES, "List CI jobs, write them as a shell script, and report their results"),
    "site": VerbRow(SITES, "Generate a static website for the targets in the matrix"),
    "explain": VerbRow(SITES, "Explain a code from the output of diagnose or audit"),
    "cache": VerbRow(SITES, "Show, clean up or verify the cache of downloads and layers"),
    "help": VerbRow(SITES, "Show the help of a command", hidden=True),
}

# Removed verbs → their replacements; CHANGELOG.md lists them.
REMOVED = {
    "cache path": "cache info",
    "ci nightly": "ci script",
    "ci run": "ci script",
}


class LazyCommands(Mapping[str, TyperCommand | VerbGroup]):
    """Maps names to commands, which are imported when they are looked up."""

    def __getitem__(self, name: str) -> TyperCommand | VerbGroup:
        verb = VERBS[name]
        command: TyperCommand | VerbGroup = importlib.import_module(f"{__package__}.{name}").COMMAND
        command.name, command.hidden, command.rich_help_panel = name, verb.hidden, verb.panel
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(VERBS)

    def __len__(self) -> int:
        return len(VERBS)


class ProgramGroup(VerbGroup):
    """The group of all commands. Interrupts are raised, so that the caller can report them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands: Any = LazyCommands()

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """Yield the panel, name and summary of each listed command, without importing it."""
        return ((verb.panel, name, verb.summary) for name, verb in VERBS.items() if not verb.hidden)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Return the commands or options that begin with `incomplete`. Imports no command."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        verbs = TyperGroup(
            commands={name: TyperCommand(name, help=text) for _, name, text in self.rows()}
        )
        return verbs.shell_complete(type(ctx)(verbs), incomplete)

    def invoke(self, ctx: Any) -> Any:
        """Run the command in `ctx`."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise SignalInterrupt from error


class SignalInterrupt(BaseException):
    """An interrupt that typer does not convert to an exit without an error message."""


app = typer.Typer(
    name="imgbuild",
    cls=ProgramGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=HELP,
    help=(
        "Reproducible container images for LLM reinforcement learning.\n\nmatrix.yaml defines"
        " targets: compatible versions of CUDA, torch, vLLM, TRL and other packages. `lock` locks"
        " every input of a target by hash. `build` creates an OCI image with a known digest from"
        " the lock, without Docker, root or a GPU."
    ),
)


def _version(value: bool) -> None:
    if value:
        write_stdout(f"imgbuild {imgbuild.__version__}")
        raise typer.Exit


@app.callback()
def program_options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Define the options that precede a command, such as --version."""


def _requests_help(words: Sequence[str]) -> bool:
    given = list(itertools.takewhile(lambda word: word != "--", words))
    return not given or given[0] == "help" or not {"--help", "-h"}.isdisjoint(given)


def _replacement_hint(group: str) -> str | None:
    words = sys.argv[1 : 2 + group.count(" ")]
    replacement = REMOVED.get(" ".join(words))
    return f"use imgbuild {replacement} instead" if replacement else None


def _suggested_choice(error: Exception, text: str) -> str:
    parameter = getattr(error, "param", None)
    value = WRONG_CHOICE.search(text)
    near = (
        nearest_choice(value[1].lower(), parameter_choices(parameter))
        if parameter is not None and value
        else None
    )
    return f" Did you mean {near}?" if near else ""


def run_verb() -> int:
    """Run the command on the command line, and return the exit status.

    Raises InputError if the command line is invalid. Interrupts and errors from the command are not
    caught.
    """
    try:
        return app(prog_name="imgbuild", standalone_mode=False) or 0
    except SignalInterrupt as error:
        raise KeyboardInterrupt from error
    except (BrokenPipeError, SystemExit) as ended:
        closed = BrokenPipeError in (type(ended), type(ended.__context__))
        if not closed or not _requests_help(sys.argv[1:]):
            raise
        # the reader of the help, such as `head`, has closed the pipe: not an error
        discard_stdout()
        return 0
    except USAGE_ERRORS as error:
        context = getattr(error, "ctx", None)
        name = context.command_path if context is not None else "imgbuild"
        text = str(getattr(error, "format_message", error.__str__)()).strip()
        if type(error).__name__ == "NoArgsIsHelpError" or not text:
            write_stdout(text)
            return InputError.exit_code
        message = f"{name}: {text}{_suggested_choice(error, text)}"
        hint = f"run imgbuild help{name.removeprefix('imgbuild')}"
        if type(error).__name__ == "UsageError":
            hint = _replacement_hint(name) or hint
        if name in TAKES_COMMAND and type(error).__name__ == "NoSuchOption":
            hint = f"to pass options to the command, run {name} TARGET -- COMMAND; for help, {hint}"
        raise InputError(message, hint=hint) from error
