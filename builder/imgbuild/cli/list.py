"""`imgbuild list`: the targets of the matrix, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from imgbuild.cli._options import CUDA
from imgbuild.cli._output import aligned, answer
from imgbuild.cli._targets import Selection
from imgbuild.cli._verb import OUTPUT, SELECT, Definition, option, verb
from imgbuild.errors import InputError, NothingSelected
from imgbuild.system.console import console
from imgbuild.values import Condition

ListFormat = Literal["text", "markdown"]
CudaOption = Annotated[
    str | None, CUDA("Only targets of this release; '12' selects all of CUDA 12.")
]
StateOption = Annotated[
    list[Condition] | None,
    option("--state", "Only targets in this state; repeatable.", panel=SELECT, often=True),
]
WideOption = Annotated[
    bool,
    option(
        "--wide",
        "More columns: Python, other packages, state, test records.",
        panel=OUTPUT,
        often=True,
    ),
]
FormOption = Annotated[
    ListFormat,
    Definition(
        "--format",
        "How the table is written. markdown has all columns.",
        panel=OUTPUT,
        reused="each verb has formats of its own",
    )(),
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
    cuda: CudaOption = None,
    state: StateOption = None,
    wide: WideOption = False,
    form: FormOption = "text",
    into: IntoOption = None,
) -> None:
    """List the targets: versions, states, tests.

    Reads and checks the matrix. Without a name all targets are listed. The column "tested" has the
    highest tier of smoke tests that passed for the current digest. A target is locked, stale, not
    locked, or needs something that the default index does not have: another index, or a wheel that
    you supply. --json has all values of the matrix, the reasons for missing architectures, and the
    test records.

    Examples:

        imgbuild list

        imgbuild list --wide --arch arm64

        imgbuild list --state needs --state stale

        imgbuild list cu130-vllm --json

        imgbuild list --into README.md
    """
    from imgbuild.lock import published
    from imgbuild.matrix.select import select
    from imgbuild.show import status, table

    project = selection.project()
    read = published.load(project.matrix)
    wanted = selection.named
    if into is not None:
        project.require_writable(f"imgbuild list --into {into}")
    if into is not None and (wanted or selection.arches or cuda or state):
        message = f"--into {into} writes all targets, and cannot be combined with a selection"
        raise InputError(message, hint="leave out names, --arch, --cuda and --state")
    selected = select(
        read, wanted, everything=selection.everything or not wanted, arches=selection.arches
    )
    rows = []
    for row in table.rows(read, published.shown(read, selected)):
        if cuda is not None and cuda not in (row.cuda, row.cuda.split(".")[0]):
            continue
        found = status.state(project, read, row.target)
        if not state or found.condition in state:
            shown = msgspec.structs.replace(row, state=str(found), reasons=found.reasons)
            rows.append(table.shown(project, shown))
    if not rows:
        message = "no target matches these filters"
        raise NothingSelected(message, hint="leave out --cuda or --state")
    if into is not None:
        changed = _write(into, table.images(rows))
        console.info(f"wrote {into}" if changed else f"{into} is up to date")
        answer(rows, [])
        return
    if form == "markdown":
        lines = table.markdown(rows)
    else:
        lines = aligned(table.cells(rows) if wide else table.narrow(rows))
    answer(rows, lines)


def _write(path: Path, lines: Sequence[str]) -> bool:
    """Put `lines` between the comments of the file at `path`; False if it had them already."""
    from imgbuild import codec
    from imgbuild.show import table

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        message = f"cannot read {path}: {reason}"
        raise InputError(message) from error
    found = table.into(text, lines)
    if found is None:
        message = f"{path} has no comments that mark the place of the table"
        hint = f"add two lines to it: {table.BEGIN} and {table.END}"
        raise InputError(message, hint=hint)
    return codec.write_bytes(path, found.encode())
