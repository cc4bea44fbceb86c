"""`imgbuild list`: the targets of the matrix, as a table."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import msgspec

from imgbuild.cli._help import command
from imgbuild.cli._list_filters import Filters
from imgbuild.cli._options import FORMAT
from imgbuild.cli._output import aligned, answer, terminal_width
from imgbuild.cli._targets import Selection
from imgbuild.cli._verb import OUTPUT, option, verb
from imgbuild.lock import published
from imgbuild.matrix.select import select
from imgbuild.show import status, table
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


@verb
def list_targets(
    selection: Selection,
    filters: Filters,
    wide: WideOption = False,
    form: FormOption = "text",
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
    """
    project = selection.project()
    read = published.load(project.matrix)
    wanted = selection.named
    selected = select(
        read, wanted, everything=selection.everything or not wanted, arches=selection.arches
    )
    matches = filters.test(project)
    every = table.ordered(table.rows(read, published.shown(read, selected)))
    whole = selection.everything or bool(wanted)
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


COMMAND = command(list_targets)
