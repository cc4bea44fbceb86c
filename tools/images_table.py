#!/usr/bin/env python3
"""Writes the table of images, from locks and test records, into README.md and docs/targets.md.

tools/images_table.py            write the tables
    tools/images_table.py --check    exit with status 5 if the tables are out of date

The table of all images is between the comments `images` and `/images`, and the table of recommended
targets between `images: recommended` and `/images`. The table of recommended targets contains only
the download size for x86_64 and the newest test, and links to pages.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from imgbuild.lock import published
from imgbuild.matrix.project_paths import find_project
from imgbuild.matrix.select import select_targets
from imgbuild.show import status, table
from imgbuild.show.table import TableRow
from imgbuild.system import quoting
from imgbuild.system.quoting import QuotedText
from imgbuild.values import Arch

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/targets.md")
STALE = 5  # the exit status that imgbuild itself has for it
BEGIN, RECOMMENDED, END = "<!-- images -->", "<!-- images: recommended -->", "<!-- /images -->"
NOTE = "<!-- made from locks and test records by tools/images_table.py -->"


def all_rows(root: Path) -> list[TableRow]:
    """Return the rows of `imgbuild list --all` for the matrix in `root`."""
    project = find_project(root)
    matrix = published.load_matrix(project.matrix)
    rows = table.create_rows(
        matrix,
        published.shown_targets(matrix, select_targets(matrix, [], everything=True, arches=[])),
    )
    states = {row.target: status.target_state(project, matrix, row.target) for row in rows}
    return [
        table.add_images(
            project,
            msgspec.structs.replace(
                row, state=str(states[row.target]), reasons=states[row.target].reasons
            ),
        )
        for row in table.order_rows(rows)
    ]


# The columns of packages, with their heads; the other pins are in the column "also".
PINS = {"torch": "torch", "vllm": "vLLM", "trl": "TRL", "verl": "verl"}


def image_table(rows: Sequence[TableRow], *, pages: bool) -> list[str]:
    """Return a Markdown table of the images with download sizes and test records.

    With `pages`, names are links to the pages of the targets, and only x86_64 sizes and the newest
    tests are shown.
    """
    size = "download (x86_64)" if pages else "to pull"
    head = ["target", "CUDA", *PINS.values(), "also", size, "tested"]
    body = [
        [
            QuotedText(f"{_name(row, link=pages)}{_name_mark(row)}"),
            row.cuda,
            *(row.pins.get(name, table.NO_VALUE) for name in PINS),
            table.other_pins(row) or table.NO_VALUE,
            QuotedText("<br>".join(_download_sizes(row, x86_64_alone=pages))),
            QuotedText("<br>".join(map(quoting.markdown_cell, _tested_text(row, brief=pages)))),
        ]
        for row in rows
        if row.images
    ]
    return table.markdown_table([head, *body])


def _name(row: TableRow, *, link: bool) -> str:
    name = quoting.code_span(row.target)
    return f"[{name}](docs/images/{row.target}.md)" if link else name


def _download_sizes(row: TableRow, *, x86_64_alone: bool) -> list[str]:
    sizes = {image.arch: f"{image.size / 1e9:.1f} GB" for image in row.images}
    if x86_64_alone and Arch.X86_64 in sizes:
        return [sizes[Arch.X86_64]]
    return [f"{arch} {size}" for arch, size in sizes.items()]


def _tested_text(row: TableRow, *, brief: bool) -> list[str]:
    return [table.highest_record(row)] if brief else table.test_runs(row)


def _name_mark(row: TableRow) -> str:
    if row.recommended:
        return f"<br>**{quoting.markdown_cell(row.recommended)}**"
    return "<br>retired" if row.retired else ""


def replace_table(text: str, rows: Sequence[TableRow]) -> str | None:
    """Replace the table after BEGIN or RECOMMENDED in `text`. Returns None if both are missing."""
    begin = RECOMMENDED if RECOMMENDED in text else BEGIN
    chosen = [row for row in rows if row.recommended or begin == BEGIN]
    before, marker, rest = text.partition(begin)
    _, end, after = rest.partition(END)
    if not marker or not end:
        return None
    return (
        before
        + "\n".join([begin, NOTE, "", *image_table(chosen, pages=begin == RECOMMENDED), "", END])
        + after
    )


def main(words: Sequence[str] | None = None) -> int:
    """Write or compare the tables, and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="only compare the tables")
    options = parser.parse_args(words)
    rows, stale = all_rows(ROOT), []
    for name in PAGES:
        before = (ROOT / name).read_text(encoding="utf-8")
        after = replace_table(before, rows)
        if after is None:
            print(f"{name} has no comments around the table of images", file=sys.stderr)
            return 2
        if after != before:
            stale.append(name)
            if not options.check:
                (ROOT / name).write_text(after, encoding="utf-8")
    if stale and options.check:
        print(f"stale: {', '.join(stale)}; run tools/images_table.py", file=sys.stderr)
        return STALE
    return 0


if __name__ == "__main__":
    sys.exit(main())
