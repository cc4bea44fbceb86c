"""`imgbuild list` shows what there is to build; `imgbuild schema` what `matrix.yaml` may say."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from imgbuild.cli import _options
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
        rich_help_panel=_options.SELECT,
        show_default=False,
    ),
]
States = Annotated[
    list[Condition] | None,
    typer.Option(
        "--state",
        help="Only targets that are so far; repeatable.",
        rich_help_panel=_options.SELECT,
        show_default=False,
    ),
]
Form = Annotated[
    Format,
    typer.Option("--format", help="How the table is written.", rich_help_panel=_options.TALK),
]
Into = Annotated[
    Path | None,
    typer.Option(
        "--into",
        metavar="FILE",
        help="Write the images, with sizes and proofs, as a Markdown table into this file,"
        " between its comments `images` and `/images`.",
        rich_help_panel=_options.TALK,
        show_default=False,
    ),
]


def list_targets(
    names: _options.Names = None,
    target: _options.Targets = None,
    everything: _options.Everything = False,
    arch: _options.Arches = None,
    cuda: Cuda = None,
    state: States = None,
    form: Form = Format.TEXT,
    into: Into = None,
    matrix: _options.MatrixFile = None,
    json: _options.Json = False,
    quiet: _options.Quiet = False,
    verbose: _options.Verbose = False,
) -> None:
    """Show the targets: versions, architectures, states, proofs. Checks the matrix.

    Without a name all targets are shown. A target is locked, stale, not locked, or needs what the
    default index does not have: another index, or a wheel that you bring. --json has all that the
    matrix says of them, with the reasons for absent architectures and what is known to have run.

    Of a locked target it says which digest was proven where: the latest run of each tier of smoke
    tests on each kind of GPU, from images/TARGET/smoke.json. A digest without a run says so.

    Examples:

        imgbuild list

        imgbuild list --arch arm64 --format markdown

        imgbuild list --state needs --state stale

        imgbuild list cu130-vllm --json

        imgbuild list --into README.md
    """
    from imgbuild.lock import published
    from imgbuild.matrix.select import left_out, select
    from imgbuild.project import find
    from imgbuild.show import status, table
    from imgbuild.system.console import console

    _options.configure(json=json, quiet=quiet, verbose=verbose)
    project = find(matrix)
    read = published.load(project.matrix)
    wanted = _options.wanted(names, target)
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
    if into is not None:
        changed = _write(into, table.images(rows))
        console.info(f"wrote {into}" if changed else f"{into} is current")
        _options.answer(rows, [], json=json)
        return
    lines = table.markdown(rows) if form is Format.MARKDOWN else table.text(rows)
    _options.answer(rows, lines, json=json)


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
