"""All verbs in the order in which one meets them."""

from __future__ import annotations

from typing import Annotated

import typer

import imgbuild
from imgbuild.cli import build, cache, image, lock, matrix
from imgbuild.console import console

app = typer.Typer(
    name="imgbuild",
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
        "Exit status: 0 done, 1 the work failed, 2 wrong input, 3 nothing selected, 4 audit"
        " findings, 5 lock out of date, 6 a program is missing, 7 a download failed, 8 an"
        " impossible world, 9 a file is not what its hash says, 130 interrupted."
    ),
)

MAKE = "Make images"
LOOK = "Look"
USE = "Use images"
KEEP = "Housekeeping"


def _version(value: bool) -> None:
    if value:
        console.data(f"imgbuild {imgbuild.__version__}")
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


app.command("build", rich_help_panel=MAKE)(build.build)
app.command("lock", rich_help_panel=MAKE)(lock.lock)
app.command("matrix", rich_help_panel=LOOK)(matrix.matrix)
app.command("plan", rich_help_panel=LOOK)(build.plan)
app.command("digest", rich_help_panel=LOOK)(build.digest)
app.command("schema", rich_help_panel=LOOK)(matrix.schema)
app.command("load", rich_help_panel=USE)(image.load)
app.command("run", rich_help_panel=USE)(image.run)
app.command("smoke", rich_help_panel=USE)(image.smoke)
app.add_typer(cache.app, name="cache", rich_help_panel=KEEP)
