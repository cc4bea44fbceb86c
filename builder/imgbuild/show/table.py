"""The matrix as a table: targets, their versions, their architectures, where they were tested.

Input: a matrix and selected targets. Output: rows as values, and those as text or Markdown.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from imgbuild import codec
from imgbuild.lock import lock as locks
from imgbuild.matrix.model import Matrix
from imgbuild.matrix.select import Selected
from imgbuild.plan import seal as seals
from imgbuild.project import Project
from imgbuild.smoke import recording
from imgbuild.smoke.records import NO_RECORD, TIERS, RecordedRun, words
from imgbuild.values import Arch, Bytes, Digest

# The packages that have a column of their own, where any shown target pins them; the rest of the
# pins stand together in the column "also".
COLUMNS = ("torch", "vllm", "trl", "verl", "tensordict")
# The columns of the narrow table, with their heads.
SHORT = {"torch": "torch", "vllm": "vLLM", "trl": "trl", "verl": "verl"}
TESTED = {"static": "static", "cpu": "CPU", "gpu": "GPU", "multi-gpu": "2+ GPUs"}
OWN_PLACE = (*COLUMNS, "flashinfer-python", "flashinfer-cubin")
DIGITS = 12  # of a digest that a table shows
NONE = "-"

# What `imgbuild list --into` writes between these lines; the first one names the command.
BEGIN, END = "<!-- images -->", "<!-- /images -->"
MADE = "<!-- made from locks and test records by: imgbuild list --into README.md -->"


class TableImage(msgspec.Struct, frozen=True, kw_only=True):
    """A sealed image: its manifest's digest, what a pull moves in bytes, what proves it.

    `runs` are those that count, of each tier on each kind of GPU the latest; `tested` says the same
    in words, or that there is not a test record.
    """

    arch: Arch
    digest: Digest
    size: Bytes
    runs: tuple[RecordedRun, ...] = ()
    tested: str = NO_RECORD


class TableRow(msgspec.Struct, frozen=True, kw_only=True):
    """One target. `pins` maps packages to versions; `exclude` maps architectures to reasons.

    `indexes` maps packages to indexes other than the default. `state` is how far it is (see
    `imgbuild.show.status`), `reasons` why it is no further; empty where nobody asked. `images` are
    those of its seal.
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
    tested: str
    state: str = ""
    reasons: tuple[str, ...] = ()
    images: tuple[TableImage, ...] = ()


def picture(arch: Arch, digest: Digest, size: Bytes, runs: Sequence[RecordedRun]) -> TableImage:
    """An image and the runs that count for it."""
    told = "; ".join(words(run) for run in runs)
    return TableImage(
        arch=arch, digest=digest, size=size, runs=tuple(runs), tested=told or NO_RECORD
    )


def rows(matrix: Matrix, selected: Sequence[Selected]) -> tuple[TableRow, ...]:
    """A row for each selected target, with the architectures that were selected."""
    return tuple(
        TableRow(
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
            tested=" ".join(item.target.tested.split()),
        )
        for item in selected
    )


def text(table: Sequence[TableRow]) -> list[str]:
    """Lines of aligned columns, the first one of them the head."""
    return _aligned(_cells(table))


def _aligned(cells: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]


def narrow(table: Sequence[TableRow]) -> list[str]:
    """Lines of aligned columns that fit 80 characters; the first line is the head."""
    cells = [["name", "CUDA", *SHORT.values(), "tested"]]
    cells += [
        [row.target, row.cuda, *(row.pins.get(name, NONE) for name in SHORT), _tested(row)]
        for row in table
    ]
    return _aligned(cells)


def _tested(row: TableRow) -> str:
    """The highest tier that passed for an image of the row, or that a tier failed."""
    runs = [run for image in row.images for run in image.runs]
    passed = [run.tier for run in runs if run.good]
    failed = [run.tier for run in runs if not run.good]
    if failed:
        return "failed"
    return TESTED[max(passed, key=TIERS.index)] if passed else NONE


def markdown(table: Sequence[TableRow]) -> list[str]:
    """Lines of a Markdown table."""
    head, *body = _cells(table)
    lines = [head, ["---"] * len(head), *body]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def _cells(table: Sequence[TableRow]) -> list[list[str]]:
    packages = [name for name in COLUMNS if any(name in row.pins for row in table)]
    also = ["also"] * any(_also(row) for row in table)
    state = ["state"] * any(row.state for row in table)
    tested = ["tested"] * any(row.images for row in table)
    told = [*state, *tested]
    head = ["target", "CUDA", "Python", *packages, *also, "flashinfer", "arch", "as of", *told]
    lines = (_line(row, packages, also=bool(also), state=bool(state)) for row in table)
    ends = ([" / ".join(_records(row)) or NONE for _ in tested] for row in table)
    return [head, *([*line, *end] for line, end in zip(lines, ends, strict=True))]


def images(table: Sequence[TableRow]) -> list[str]:
    """A Markdown table of the images: what a pull of each moves, and its test records."""
    own = ("torch", "vllm", "trl", "verl")
    sealed = [row for row in table if row.images]
    head = ["target", "CUDA", "torch", "vLLM", "TRL", "verl", "also", "to pull", "tested"]
    body = [
        [
            f"`{row.target}`",
            row.cuda,
            *(row.pins.get(name, NONE) for name in own),
            _also(row) or NONE,
            "<br>".join(f"{one.arch} {one.size / 1e9:.1f} GB" for one in row.images),
            "<br>".join(_records(row)),
        ]
        for row in sealed
    ]
    lines = [head, ["---"] * len(head), *body]
    return [BEGIN, MADE, "", *("| " + " | ".join(line) + " |" for line in lines), "", END]


def into(text: str, lines: Sequence[str]) -> str | None:
    """`text` with `lines` in the place of what stands from BEGIN to END; None if they do not."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    return before + "\n".join(lines) + after if begin and end else None


def _records(row: TableRow) -> list[str]:
    """Of each image, where it was tested: "f0d861e48604: gpu on NVIDIA H200, driver 580.159, …"."""
    several = len(row.images) > 1
    return [
        f"{f'{found.arch} ' if several else ''}{short(found.digest)}: {found.tested}"
        for found in row.images
    ]


def short(digest: Digest) -> str:
    """The first digits of a digest, as tables have it."""
    return digest.partition(":")[2][:DIGITS]


def _line(row: TableRow, packages: Sequence[str], *, also: bool, state: bool) -> list[str]:
    versions = (row.pins.get(name, NONE) for name in packages)
    mode = row.flashinfer
    if "flashinfer-python" in row.pins:
        mode = f"{row.pins['flashinfer-python']} {mode}"
    others = [_also(row) or NONE] * also
    told = [row.state] * state
    arches = ", ".join(row.arch)
    return [row.target, row.cuda, row.python, *versions, *others, mode, arches, row.as_of, *told]


def _also(row: TableRow) -> str:
    """The pins that have no column: "sglang 0.5.12, ray 2.58.0"."""
    return ", ".join(f"{name} {pin}" for name, pin in row.pins.items() if name not in OWN_PLACE)


def shown(project: Project, row: TableRow) -> TableRow:
    """`row` with the images of its seal as it lies there, if it has one, and what proves them."""
    path = seals.seal_path(project.images, row.target)
    if not path.exists():
        return row
    sealed = codec.read(path, seals.Seal, what="seal", hint=locks.damaged(row.target))
    runs = recording.counting(project, sealed)
    found = [
        picture(arch, sealed.arch[arch].manifest, sealed.arch[arch].size, runs[arch])
        for arch in row.arch
        if arch in sealed.arch
    ]
    return msgspec.structs.replace(row, images=tuple(found))
