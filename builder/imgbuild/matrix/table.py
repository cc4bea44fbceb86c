"""The matrix as a table: targets, their versions, their architectures.

Comes in: a matrix and selected targets. Goes out: rows as values, and those as text or Markdown.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from imgbuild.matrix.model import Matrix
from imgbuild.matrix.select import Selected
from imgbuild.values import Arch

# The packages that have a column of their own, where any shown target pins them; the rest of the
# pins stand together in the column "also".
COLUMNS = ("torch", "vllm", "trl", "verl", "tensordict")
OWN_PLACE = (*COLUMNS, "flashinfer-python", "flashinfer-cubin")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One target. `pins` maps packages to versions; `exclude` maps architectures to reasons.

    `indexes` maps packages to indexes other than the default. `state` is how far it is (see
    `imgbuild.states`), `reasons` why it is no further; empty where nobody asked.
    """

    target: str
    summary: str
    cuda: str
    python: str
    base: str
    arch: tuple[Arch, ...]
    as_of: str
    flashinfer: str
    gpu: tuple[str, ...]
    pins: dict[str, str]
    indexes: dict[str, str]
    exclude: dict[Arch, str]
    proof: str
    state: str = ""
    reasons: tuple[str, ...] = ()


def rows(matrix: Matrix, selected: Sequence[Selected]) -> tuple[Row, ...]:
    """A row for each selected target, with the architectures that were selected."""
    return tuple(
        Row(
            target=item.name,
            summary=item.target.summary,
            cuda=item.target.cuda,
            python=matrix.bases[item.target.base].python,
            base=item.target.base,
            arch=item.arches,
            as_of=item.target.as_of.isoformat(),
            flashinfer=item.target.flashinfer.mode,
            gpu=item.target.gpu,
            pins=item.target.pins,
            indexes=item.target.indexes,
            exclude=item.target.exclude,
            proof=" ".join(item.target.proof.split()),
        )
        for item in selected
    )


def text(table: Sequence[Row]) -> list[str]:
    """Lines of aligned columns, the first one of them the head."""
    cells = _cells(table)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]


def markdown(table: Sequence[Row]) -> list[str]:
    """Lines of a Markdown table."""
    head, *body = _cells(table)
    lines = [head, ["---"] * len(head), *body]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def _cells(table: Sequence[Row]) -> list[list[str]]:
    packages = [name for name in COLUMNS if any(name in row.pins for row in table)]
    also = ["also"] * any(_also(row) for row in table)
    state = ["state"] * any(row.state for row in table)
    head = ["target", "CUDA", "Python", *packages, *also, "flashinfer", "arch", "as of", *state]
    return [head, *(_line(row, packages, also=bool(also), state=bool(state)) for row in table)]


def _line(row: Row, packages: Sequence[str], *, also: bool, state: bool) -> list[str]:
    versions = (row.pins.get(name, "-") for name in packages)
    mode = row.flashinfer
    if "flashinfer-python" in row.pins:
        mode = f"{row.pins['flashinfer-python']} {mode}"
    others = [_also(row) or "-"] * also
    told = [row.state] * state
    arches = ", ".join(row.arch)
    return [row.target, row.cuda, row.python, *versions, *others, mode, arches, row.as_of, *told]


def _also(row: Row) -> str:
    """The pins that have no column: "sglang 0.5.12, ray 2.58.0"."""
    return ", ".join(f"{name} {pin}" for name, pin in row.pins.items() if name not in OWN_PLACE)
