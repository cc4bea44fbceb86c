"""`imgbuild list`: the targets of the matrix, as a table."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from imgbuild import codec
from imgbuild.cli._help import command
from imgbuild.cli._list_filters import Filters
from imgbuild.cli._options import FORMAT
from imgbuild.cli._output import aligned, answer, terminal_width
from imgbuild.cli._targets import Selection
from imgbuild.cli._verb import OUTPUT, option, verb
from imgbuild.errors import InputError
from imgbuild.lock import published
from imgbuild.matrix.select import select
from imgbuild.show import status, table
from imgbuild.show.table import TableRow
from imgbuild.system.console import console

ListFormat = Literal["text", "markdown"]
WideOption = Annotated[
    bool,
    option(
        "--wide",
        "All columns: Python, other packages, state, test records. Lines are not folded.",
        panel=OUTPUT,
        often=True,
    ),
]
FormOption = Annotated[
    ListFormat,
    FORMAT("text, or markdown with all columns."),
]
IntoOption = Annotated[
    Path | None,
    option(
        "--into",
        "Write the images as a Markdown table into this file, between its comments `images`"
        " and `/images`.",
        metavar="FILE",
        panel=OUTPUT,
    ),
]


@verb
def list_targets(
    selection: Selection,
    filters: Filters,
    wide: WideOption = False,
    form: FormOption = "text",
    into: IntoOption = None,
) -> None:
    """List the targets: versions, states, tests.

    Without a name all targets are listed, except those that are retired because a newer one takes
    their place; --all lists these too. A target with * is recommended for its stack; these are
    first. The column "tested" has the highest tier of smoke tests that passed for the current
    digest, or the GPU that they ran on. Filters are combined: a target must match all of them.

    A target is locked, stale, not locked, or needs something that the default index does not have:
    another index, or a wheel that you supply. --json has all values of the matrix, the reasons for
    missing architectures, and the test records.

    Examples:

        imgbuild list

        imgbuild list --wide --arch arm64

        imgbuild list --with verl --with 'vllm>=0.11'

        imgbuild list --fits

        imgbuild list --state needs --state stale

        imgbuild list cu130-vllm --json

        imgbuild list --all

        imgbuild list --into README.md
    """
    project = selection.project()
    read = published.load(project.matrix)
    wanted = selection.named
    if into is not None:
        project.require_writable(f"imgbuild list --into {into}")
    if into is not None and (wanted or selection.arches or filters.words()):
        message = f"--into {into} writes all targets, and cannot be combined with a selection"
        raise InputError(message, hint="leave out names, --arch and filters")
    selected = select(
        read, wanted, everything=selection.everything or not wanted, arches=selection.arches
    )
    matches = filters.test(project)
    every = table.ordered(table.rows(read, published.shown(read, selected)))
    whole = selection.everything or bool(wanted) or into is not None
    hidden = [] if whole else [row.target for row in every if row.retired]
    rows = []
    for row in every:
        if row.target in hidden:
            continue
        found = status.state(project, read, row.target)
        if matches(row, found.condition):
            shown = msgspec.structs.replace(row, state=str(found), reasons=found.reasons)
            rows.append(table.shown(project, shown))
    if not rows:
        raise filters.nothing(read, selection.arches)
    if into is not None:
        changed = _write(into, rows)
        console.info(f"wrote {into}" if changed else f"{into} is up to date")
        answer(rows, [])
        return
    if form == "markdown":
        lines = table.markdown(rows)
    elif wide:
        lines = aligned(table.cells(rows), width=sys.maxsize)
    else:
        width = terminal_width()
        lines = aligned(table.narrow(rows, None if width == sys.maxsize else width))
    answer(rows, lines)
    if form == "text" and not wide and not console.json and any(row.recommended for row in rows):
        console.info("* recommended; columns of other packages: imgbuild list --wide")
    if hidden and form == "text" and not console.json:
        console.info(f"retired: {len(hidden)}, listed by: imgbuild list --all")


def _write(path: Path, rows: Sequence[TableRow]) -> bool:
    """Put the images between the comments of the file at `path`; False if they are there."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        message = f"cannot read {path}: {reason}"
        raise InputError(message) from error
    found = table.into(text, rows)
    if found is None:
        message = f"{path} has no comments that mark the place of the table"
        hint = f"add two lines to it: {table.BEGIN} or {table.RECOMMENDED}, and {table.END}"
        raise InputError(message, hint=hint)
    return codec.write_bytes(path, found.encode())


COMMAND = command(list_targets)
