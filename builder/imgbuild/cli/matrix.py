"""`imgbuild matrix` shows what there is to build; `imgbuild schema` what `matrix.yaml` may say."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from imgbuild.cli import options


def matrix(
    names: options.Names = None,
    target: options.Targets = None,
    everything: options.Everything = False,
    arch: options.Arches = None,
    markdown: Annotated[
        bool,
        typer.Option(
            "--markdown", help="Write the table as Markdown.", rich_help_panel=options.TALK
        ),
    ] = False,
    matrix: options.MatrixFile = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Show the targets: their versions, architectures and cut-off days. Checks the whole matrix.

    Without a name all targets are shown. --json has all that the matrix says of them, with the
    reasons for absent architectures and what is known to have run.

    Examples:

        imgbuild matrix

        imgbuild matrix --arch arm64 --markdown

        imgbuild matrix cu130-vllm --json
    """
    from imgbuild.matrix import table
    from imgbuild.matrix.load import load
    from imgbuild.matrix.select import select
    from imgbuild.project import find

    options.configure(json=json, quiet=quiet, verbose=verbose)
    read = load(find(matrix).matrix)
    wanted = options.wanted(names, target)
    selected = select(read, wanted, everything=everything or not wanted, arches=arch or [])
    rows = table.rows(read, selected)
    lines = table.markdown(rows) if markdown else table.text(rows)
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
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Write the JSON Schema of matrix.yaml, by which editors complete and check it.

    matrix.schema.json beside the matrix is this; a test holds it to be current. The schema is JSON
    with and without --json, which with --output says whether the file changed.

    Example:

        imgbuild schema --output matrix.schema.json
    """
    from imgbuild import codec
    from imgbuild.console import console
    from imgbuild.matrix.schema import published

    options.configure(json=json, quiet=quiet, verbose=verbose)
    if output is None:
        options.put(published().decode())
        return
    changed = codec.write_bytes(output, published())
    console.info(f"wrote {output}" if changed else f"{output} is current")
    options.answer({"output": output, "changed": changed}, [], json=json)
