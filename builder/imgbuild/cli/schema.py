"""`imgbuild schema`: the JSON Schema of matrix.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from imgbuild.cli import _options


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
    json: _options.Json = False,
    quiet: _options.Quiet = False,
    verbose: _options.Verbose = False,
) -> None:
    """Write the JSON Schema of matrix.yaml, by which editors complete and check it.

    matrix.schema.json beside the matrix is this; a test holds it to be current. The schema is JSON
    with and without --json, which with --output says whether the file changed.

    Example:

        imgbuild schema --output matrix.schema.json

        imgbuild schema --extension --output matrix.schema.json
    """
    from imgbuild import codec
    from imgbuild.matrix.schema import published, published_extension
    from imgbuild.system.console import console

    _options.configure(json=json, quiet=quiet, verbose=verbose)
    data = published_extension() if extension else published()
    if output is None:
        _options.put(data.decode())
        return
    changed = codec.write_bytes(output, data)
    console.info(f"wrote {output}" if changed else f"{output} is current")
    _options.answer({"output": output, "changed": changed}, [], json=json)
