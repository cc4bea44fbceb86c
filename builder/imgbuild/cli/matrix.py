"""`imgbuild matrix` shows what there is to build; `imgbuild schema` what `matrix.yaml` may say."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from imgbuild.cli import options
from imgbuild.errors import NothingSelected
from imgbuild.values import Condition


class Format(enum.StrEnum):
    """How the table is written."""

    TEXT = "text"
    MARKDOWN = "markdown"


def matrix(
    names: options.Names = None,
    target: options.Targets = None,
    everything: options.Everything = False,
    arch: options.Arches = None,
    cuda: Annotated[
        str | None,
        typer.Option(
            "--cuda",
            metavar="RELEASE",
            help="Only targets of this CUDA release: 12.8, or 12 for all of them.",
            rich_help_panel=options.SELECT,
            show_default=False,
        ),
    ] = None,
    state: Annotated[
        list[Condition] | None,
        typer.Option(
            "--state",
            help="Only targets that are so far; repeatable.",
            rich_help_panel=options.SELECT,
            show_default=False,
        ),
    ] = None,
    form: Annotated[
        Format,
        typer.Option("--format", help="How the table is written.", rich_help_panel=options.TALK),
    ] = Format.TEXT,
    matrix: options.MatrixFile = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Show the targets: their versions, architectures, cut-off days and states. Checks the matrix.

    Without a name all targets are shown. A target is locked, stale, not locked, or needs what the
    default index does not have: another index, or a wheel that you bring. --json has all that the
    matrix says of them, with the reasons for absent architectures and what is known to have run.

    Examples:

        imgbuild matrix

        imgbuild matrix --arch arm64 --format markdown

        imgbuild matrix --state needs --state stale

        imgbuild matrix cu130-vllm --json
    """
    from imgbuild import extend, states
    from imgbuild.matrix import table
    from imgbuild.matrix.select import select
    from imgbuild.project import find

    options.configure(json=json, quiet=quiet, verbose=verbose)
    project = find(matrix)
    read = extend.load(project.matrix)
    wanted = options.wanted(names, target)
    selected = select(read, wanted, everything=everything or not wanted, arches=arch or [])
    rows = []
    for row in table.rows(read, extend.shown(read, selected)):
        if cuda is not None and cuda not in (row.cuda, row.cuda.split(".")[0]):
            continue
        found = states.state(project, read, row.target)
        if not state or found.condition in state:
            rows.append(msgspec.structs.replace(row, state=str(found), reasons=found.reasons))
    if not rows:
        message = "no target of the matrix is so"
        raise NothingSelected(message, hint="ask with fewer of --cuda and --state")
    lines = table.markdown(rows) if form is Format.MARKDOWN else table.text(rows)
    options.answer(rows, lines, json=json)


def schema(
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            help="Write to this file instead of stdout.",
            show_default=False,
        ),
    ] = None,
    extension: Annotated[
        bool,
        typer.Option("--extension", help="That of a matrix which extends published targets."),
    ] = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Write the JSON Schema of matrix.yaml, by which editors complete and check it.

    matrix.schema.json beside the matrix is this; a test holds it to be current. The schema is JSON
    with and without --json, which with --output says whether the file changed.

    Example:

        imgbuild schema --output matrix.schema.json

        imgbuild schema --extension --output matrix.schema.json
    """
    from imgbuild import codec
    from imgbuild.console import console
    from imgbuild.matrix.schema import published, published_extension

    options.configure(json=json, quiet=quiet, verbose=verbose)
    data = published_extension() if extension else published()
    if output is None:
        options.put(data.decode())
        return
    changed = codec.write_bytes(output, data)
    console.info(f"wrote {output}" if changed else f"{output} is current")
    options.answer({"output": output, "changed": changed}, [], json=json)
