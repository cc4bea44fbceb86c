"""Writes the changes of an update as Markdown for a pull request.

Names, versions and reasons are written as code spans, because GitHub ignores mentions, links and
markup in code spans.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from imgbuild.matrix.tried_updates import RefusedVersion
from imgbuild.show.image_diff import ArchDiff, PackageChange
from imgbuild.show.table import markdown_table
from imgbuild.system.amounts import format_count, size_text
from imgbuild.system.quoting import code_span
from imgbuild.update.run import RowUpdate
from imgbuild.values import Arch

NO_UPDATE_TEXT = "No newer version could be used."
LIMIT = 60_000  # letters; GitHub takes 65,536
OMISSION_NOTE = "\n\nThe rest is omitted because the text is too long.\n"


def changes_markdown(updates: Sequence[RowUpdate]) -> str:
    """Format the changes of all rows: versions, bytes to pull, and rejections with reasons."""
    lines: list[str] = []
    for item in updates:
        if item.row:
            lines += [*_new_row(item), ""]
    if not lines:
        lines = [NO_UPDATE_TEXT, ""]
    refused = [item for item in updates if item.refused]
    if refused:
        lines += ["## Refused", ""]
        for item in refused:
            lines += [f"### {code_span(item.source)}", "", *_refusals(item.refused), ""]
    text = "\n".join(lines)
    if len(text) <= LIMIT:
        return text
    return text[:LIMIT].rpartition("\n")[0] + OMISSION_NOTE


def _new_row(item: RowUpdate) -> Iterator[str]:
    yield f"## {code_span(item.row)}"
    yield ""
    yield f"Derived from {code_span(item.source)}, which is unchanged. The new image was not run."
    yield ""
    yield from _table(
        ("package", "before", "after", "fixes"),
        ((move.package, move.before, move.after, ", ".join(move.fixes)) for move in item.moves),
    )
    for entry in item.unwritten:
        yield ""
        yield f"Not written, because a lock violates this constraint: {code_span(str(entry))}"
    if item.diff is None:
        return
    for arch, part in item.diff.arch.items():
        yield ""
        yield from _arch(arch, part)


def _arch(arch: Arch, part: ArchDiff) -> Iterator[str]:
    yield (
        f"<details><summary>{arch}: {format_count(len(part.changes), 'package')} changed,"
        f" {size_text(part.pull)} of {size_text(part.total)} to pull</summary>"
    )
    yield ""
    yield from _table(("package", "before", "after"), map(_cells, part.changes))
    yield ""
    yield "</details>"


def _cells(change: PackageChange) -> tuple[str, str, str]:
    package = f"{change.package} (Debian)" if change.kind == "deb" else change.package
    return package, change.before, change.after


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield from markdown_table(
        [head, *([code_span(cell) if cell else "" for cell in row] for row in rows)]
    )


def _refusals(refused: Sequence[RefusedVersion]) -> Iterator[str]:
    for refusal in refused:
        yield f"- {code_span(f'{refusal.package} {refusal.version}')}"
        yield from (f"  - {code_span(reason)}" for reason in refusal.reasons)
