"""`imgbuild schema`: the JSON Schema of matrix.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from imgbuild import codec
from imgbuild.cli._help import command
from imgbuild.cli._options import OUTPUT_PATH
from imgbuild.cli._output import answer, put
from imgbuild.cli._verb import option, verb
from imgbuild.matrix.schema import published, published_extension
from imgbuild.system.console import console


@verb
def schema(
    output: Annotated[Path | None, OUTPUT_PATH("Default: stdout.")] = None,
    extension: Annotated[
        bool, option("--extension", "The schema of a matrix that extends published targets.")
    ] = False,
) -> None:
    """Write the JSON Schema of matrix.yaml, for editors to complete and check.

    A test compares matrix.schema.json with it. The schema is always JSON; with --output, --json
    reports whether the file changed.

    Examples:

        imgbuild schema --output matrix.schema.json

        imgbuild schema --extension --output matrix.schema.json
    """
    data = published_extension() if extension else published()
    if output is None:
        put(data.decode())
        return
    changed = codec.write_bytes(output, data)
    console.info(f"wrote {output}" if changed else f"{output} is up to date")
    answer({"output": output, "changed": changed}, [])


COMMAND = command(schema)
