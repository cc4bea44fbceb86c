"""`imgbuild matrix` shows what there is to build; `imgbuild schema` what `matrix.yaml` may say."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from imgbuild.cli import options
from imgbuild.errors import InputError, NothingSelected
from imgbuild.values import Condition


class Format(enum.StrEnum):
    """How the table is written."""

    TEXT = "text"
    MARKDOWN = "markdown"


Cuda = Annotated[
    str | None,
    typer.Option(
        "--cuda",
        metavar="RELEASE",
        help="Only targets of this CUDA release: 12.8, or 12 for all of them.",
        rich_help_panel=options.SELECT,
        show_default=False,
    ),
]
States = Annotated[
    list[Condition] | None,
    typer.Option(
        "--state",
        help="Only targets that are so far; repeatable.",
        rich_help_panel=options.SELECT,
        show_default=False,
    ),
]
Form = Annotated[
    Format,
    typer.Option("--format", help="How the table is written.", rich_help_panel=options.TALK),
]
Into = Annotated[
    Path | None,
    typer.Option(
        "--into",
        metavar="FILE",
        help="Write the images, with sizes and proofs, as a Markdown table into this file,"
        " between its comments `images` and `/images`.",
        rich_help_panel=options.TALK,
        show_default=False,
    ),
]


def matrix(
    names: options.Names = None,
    target: options.Targets = None,
    everything: options.Everything = False,
    arch: options.Arches = None,
    cuda: Cuda = None,
    state: States = None,
    form: Form = Format.TEXT,
    into: Into = None,
    matrix: options.MatrixFile = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Show the targets: versions, architectures, states, proofs. Checks the matrix.

    Without a name all targets are shown. A target is locked, stale, not locked, or needs what the
    default index does not have: another index, or a wheel that you bring. --json has all that the
    matrix says of them, with the reasons for absent architectures and what is known to have run.

    Of a locked target it says which digest was proven where: the latest run of each tier of smoke
    tests on each kind of GPU, from images/TARGET/smoke.json. A digest without a run says so.

    Examples:

        imgbuild matrix

        imgbuild matrix --arch arm64 --format markdown

        imgbuild matrix --state needs --state stale

        imgbuild matrix cu130-vllm --json

        imgbuild matrix --into README.md
    """
    from imgbuild.lock import published
    from imgbuild.matrix.select import left_out, select
    from imgbuild.project import find
    from imgbuild.show import status, table
    from imgbuild.system.console import console

    options.configure(json=json, quiet=quiet, verbose=verbose)
    project = find(matrix)
    read = published.load(project.matrix)
    wanted = options.wanted(names, target)
    if into is not None and (wanted or arch or cuda or state):
        message = f"--into {into}: its table has all targets, and some were asked for"
        raise InputError(message, hint="leave names, --arch, --cuda and --state out")
    every, arches = everything or not wanted, arch or []
    selected = select(read, wanted, everything=every, arches=arches)
    for text in left_out(read, wanted, everything=every, arches=arches):
        console.info(text)
    rows = []
    for row in table.rows(read, published.shown(read, selected)):
        if cuda is not None and cuda not in (row.cuda, row.cuda.split(".")[0]):
            continue
        found = status.state(project, read, row.target)
        if not state or found.condition in state:
            said = msgspec.structs.replace(row, state=str(found), reasons=found.reasons)
            rows.append(table.shown(project, said))
    if not rows:
        message = "no target of the matrix is so"
        raise NothingSelected(message, hint="ask with fewer of --cuda and --state")
    for row in rows:
        for line in row.contradictions:
            console.warn(f"{row.target}: {line}")
    if into is not None:
        changed = _write(into, table.images(rows))
        console.info(f"wrote {into}" if changed else f"{into} is current")
        options.answer(rows, [], json=json)
        return
    lines = table.markdown(rows) if form is Format.MARKDOWN else table.text(rows)
    options.answer(rows, lines, json=json)


def _write(path: Path, lines: Sequence[str]) -> bool:
    """Put `lines` between the marks of the file at `path`; False if they stood there."""
    from imgbuild import codec
    from imgbuild.show import table

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        message = f"cannot read {path}: {error}"
        raise InputError(message) from error
    found = table.into(text, lines)
    if found is None:
        message = f"{path} has no place for the table"
        hint = f"put two lines where it is to stand: {table.BEGIN} and {table.END}"
        raise InputError(message, hint=hint)
    return codec.write_bytes(path, found.encode())


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
    from imgbuild.matrix.schema import published, published_extension
    from imgbuild.system.console import console

    options.configure(json=json, quiet=quiet, verbose=verbose)
    data = published_extension() if extension else published()
    if output is None:
        options.put(data.decode())
        return
    changed = codec.write_bytes(output, data)
    console.info(f"wrote {output}" if changed else f"{output} is current")
    options.answer({"output": output, "changed": changed}, [], json=json)
