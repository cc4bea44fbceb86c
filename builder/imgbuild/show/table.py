"""Builds the tables of `imgbuild list` and of the images in the README.

`create_rows` returns values, `table_cells` and `narrow_table` return text, and `markdown_lines` and
`images` return tables.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence

import msgspec

from imgbuild import codec
from imgbuild.errors import ImgbuildError
from imgbuild.lock import lock_file
from imgbuild.matrix.model import Matrix
from imgbuild.matrix.project_paths import Project
from imgbuild.matrix.select import Selected
from imgbuild.plan import image_digests
from imgbuild.plan.image_digests import ImageDigests
from imgbuild.smoke import recording, records
from imgbuild.smoke.records import NO_RECORD, TIERS, RecordedRun, run_summary
from imgbuild.system import quoting
from imgbuild.system.quoting import QuotedText
from imgbuild.values import Arch, Bytes, Digest

# The packages that have their own column, where any shown target pins them; the other pins are in
# the column "also".
COLUMNS = ("torch", "vllm", "trl", "verl", "tensordict")
MARK = " *"  # after the name of a recommended target
RETIRED_MARK = " (retired)"  # after the name of a retired one
RETIRED_SHORT_MARK = " (ret.)"
PLANNED_STATE = "plan"  # in the narrowest table, of a target without a lock
# The narrow table has one column for the engine, and one for these other stacks.
ENGINES = {"vllm": "vLLM", "sglang": "SGLang"}
STACKS = ("verl", "unsloth", "deepspeed", "ray")
NAMED_PACKAGES = frozenset({*COLUMNS, *ENGINES, *STACKS, "transformers"})  # in lists of versions
ENGINE, STACK = "engine", "with"
OWN_PLACE = (*COLUMNS, "flashinfer-python", "flashinfer-cubin")
LONG_COLUMNS = ("also", "state", "tested")  # columns whose values can be long
DIGITS = 12  # of a digest that a table shows
NO_VALUE = "-"


class TableImage(msgspec.Struct, frozen=True, kw_only=True):
    """A locked image: digest of the manifest, download size in bytes, and test records.

    `driver` is the oldest supported driver, or "" if unknown. `runs` are the latest valid runs of
    each tier on each kind of GPU. `tested` describes these runs, with digests of images that have
    the same configuration, or reports that no test record exists.
    """

    arch: Arch
    digest: Digest
    size: Bytes
    driver: str = ""
    runs: tuple[RecordedRun, ...] = ()
    tested: str = NO_RECORD


class TableRow(msgspec.Struct, frozen=True, kw_only=True):
    """A target. `pins` maps packages to versions. `exclude` maps architectures to reasons.

    `indexes` maps packages to indexes other than the default. `state` is defined in
    `imgbuild.show.status`. `reasons` explains why a lock is missing or out of date. `state` and
    `reasons` are empty unless computed. `images` lists the locked images. `locked` has the locked
    versions of COLUMNS, ENGINES and STACKS on the first architecture.
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
    recommended: str = ""
    retired: str = ""
    state: str = ""
    reasons: tuple[str, ...] = ()
    images: tuple[TableImage, ...] = ()
    locked: dict[str, str] = {}

    @property
    def versions(self) -> dict[str, str]:
        """The pins, and the locked versions of packages with a column."""
        return {**self.locked, **self.pins}


def create_rows(matrix: Matrix, selected: Sequence[Selected]) -> tuple[TableRow, ...]:
    """Return a row for each selected target, with the selected architectures."""
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
            recommended=item.target.recommended,
            retired=" ".join(item.target.retired.split()),
        )
        for item in selected
    )


def order_rows(table: Sequence[TableRow]) -> list[TableRow]:
    """Sort recommended targets first and retired targets last. Keeps the order otherwise."""
    return sorted(table, key=lambda row: (row.retired != "", not row.recommended))


def narrow_table(
    table: Sequence[TableRow], width: int | None, columns_of: Sequence[str] = ()
) -> list[list[str]]:
    """Format a table for `width` characters (at least 80). The first row is the header.

    On a wide terminal, columns of `MORE_COLUMNS` that fit are added to the columns of `columns_of`.
    If the table does not fit, the months of tests are omitted first. Then versions are cut, and
    finally the versions of STACKS and the torch column are omitted. If `width` is None (no
    terminal), the usual columns with full versions are used.
    """
    columns = {
        "name": [_name_with_mark(row, RETIRED_MARK) for row in table],
        "CUDA": [row.cuda for row in table],
        "torch": [row.versions.get("torch", NO_VALUE) for row in table],
        ENGINE: [_engine(row) for row in table],
        "trl": [row.versions.get("trl", NO_VALUE) for row in table],
        STACK: _stacks(table, str, limited=width is not None),
        "tested": [highest_record(row) for row in table],
    }
    for head in columns_of:
        before, cell = MORE_COLUMNS[head]
        columns = _insert_column(columns, before, head, [cell(row) for row in table])
    if width is not None:
        if not _columns_fit(columns, width):
            columns |= {"tested": [highest_record(row, brief=True) for row in table]}
        if not _columns_fit(columns, width):
            columns |= {
                head: [*map(_brief_version, columns[head])] for head in ("torch", ENGINE, "trl")
            }
            columns |= {STACK: _stacks(table, _brief_version)}
        if not _columns_fit(columns, width):
            columns |= {STACK: _stacks(table, lambda _: "")}
            columns |= {"name": [_name_with_mark(row, RETIRED_SHORT_MARK) for row in table]}
        if not _columns_fit(columns, width):
            del columns["torch"]
        for head, (before, cell) in MORE_COLUMNS.items():
            wider = _insert_column(columns, before, head, [cell(row) for row in table])
            columns = wider if head not in columns and _columns_fit(wider, width) else columns
    return [list(columns), *map(list, zip(*columns.values(), strict=True))]


def _name_with_mark(row: TableRow, retired: str) -> str:
    return row.target + (MARK if row.recommended else retired if row.retired else "")


def _engine(row: TableRow) -> str:
    """Return the engine with its version, such as "vLLM 0.26.0"."""
    versions = row.versions
    named = (f"{label} {versions[name]}" for name, label in ENGINES.items() if name in versions)
    return ", ".join(named) or NO_VALUE


def _stacks(
    table: Sequence[TableRow], form: Callable[[str], str], *, limited: bool = True
) -> list[str]:
    """Format the packages of STACKS in each row, such as "verl 0.9.1, ray 2.60.0".

    Locked packages without a pin follow pinned packages. If `limited` is set, locked packages do
    not widen the column, unless a row has only one package.
    """

    def _stack_parts(versions: Mapping[str, str]) -> list[str]:
        return [f"{name} {form(versions[name])}".strip() for name in STACKS if name in versions]

    pinned = [_stack_parts(row.pins) for row in table]
    room = max((len(", ".join(cell)) for cell in pinned), default=0)
    for row, cell in zip(table, pinned, strict=True):
        for part in _stack_parts(
            {name: row.locked[name] for name in row.locked.keys() - row.pins.keys()}
        ):
            if not limited or not cell or len(", ".join((*cell, part))) <= room:
                cell.append(part)
    return [", ".join(cell) or NO_VALUE for cell in pinned]


def _insert_column(
    columns: Mapping[str, list[str]], before: str, head: str, cells: list[str]
) -> dict[str, list[str]]:
    """Insert a column before the column `before` of `columns`."""
    wider: dict[str, list[str]] = {}
    for name, column in columns.items():
        if name == before:
            wider[head] = cells
        wider[name] = column
    return wider


def _columns_fit(columns: Mapping[str, list[str]], width: int) -> bool:
    """Whether the columns, separated by two spaces, fit `width`."""
    widths = [max(len(cell) for cell in (head, *cells)) for head, cells in columns.items()]
    return sum(widths) + 2 * (len(widths) - 1) <= width


def _brief_version(version: str) -> str:
    """Shorten a version by replacing the post-release and local parts with an ellipsis."""
    public = version.partition(".post")[0].partition("+")[0]
    return public if public == version else f"{public}…"


def highest_record(row: TableRow, *, brief: bool = False) -> str:
    """Describe the highest passed tier, such as "H200 2026-11" or "cpu".

    After a failure without a GPU or with one GPU, returns "failed". Without a test record,
    describes whether an image exists, or exists only for arm64.
    """
    runs = [run for image in row.images for run in image.runs]
    if not row.images:
        return PLANNED_STATE if brief else "not locked"
    if not runs:
        return NO_VALUE if brief or Arch.X86_64 in row.arch else f"- ({', '.join(row.arch)})"
    failed = min((TIERS.index(run.tier) for run in runs if not run.good), default=len(TIERS))
    passed = [run for run in runs if TIERS.index(run.tier) < failed]
    if not passed or failed < TIERS.index("multi-gpu"):
        return "failed"
    best = max(passed, key=lambda run: (TIERS.index(run.tier), run.started))
    if not best.gpu:
        return best.tier
    return best.gpu_models if brief else f"{best.gpu_models} {best.started[:7]}"


def failed_tiers(row: TableRow) -> str:
    """Name the tiers that failed, as "cu130-trl (gpu on H200)", or return "" if none failed."""
    runs = [run for image in row.images for run in image.runs if not run.good]
    tiers = (f"{run.tier} on {run.gpu_models}" if run.gpu else run.tier for run in runs)
    failed = dict.fromkeys(tiers)
    return f"{row.target} ({', '.join(failed)})" if failed else ""


def runs_on_gpu(row: TableRow, gpu: str) -> list[RecordedRun]:
    """Return the runs of a row on `gpu`, such as "H200", or "2 H200" for two GPUs."""
    several = re.fullmatch(r"(\d+) (.+)", gpu)
    number, name = several.groups() if several else ("", gpu)
    return [
        run
        for image in row.images
        for run in image.runs
        if number in ("", str(len(run.gpu)))
        and any({*name.casefold().split()} <= {*each.casefold().split()} for each in run.gpu)
    ]


def row_paragraphs(table: Sequence[TableRow], width: int) -> list[str]:
    """A paragraph for each row: headers and values of `table_cells`, up to `width` columns wide.

    Long values, such as test records, are on separate lines.
    """
    head, *body = table_cells(table)
    lines: list[str] = []
    for name, *values in body:
        lines += ["", name] if lines else [name]
        named = [pair for pair in zip(head[1:], values, strict=True) if pair[1] != NO_VALUE]
        short = "; ".join(f"{label} {value}" for label, value in named if label not in LONG_COLUMNS)
        for text in (
            short,
            *(f"{label}: {value}" for label, value in named if label in LONG_COLUMNS),
        ):
            lines += textwrap.wrap(
                text, width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False
            )
    return lines


def markdown_lines(table: Sequence[TableRow]) -> list[str]:
    """Return a Markdown table as lines."""
    return markdown_table(table_cells(table))


def markdown_table(lines: Sequence[Sequence[str]]) -> list[str]:
    """Return a Markdown table. The first row is the header."""
    head, *body = lines
    lines = [head, ["---"] * len(head), *body]
    return [
        "| " + " | ".join(
            cell if isinstance(cell, QuotedText) else quoting.markdown_cell(cell) for cell in line
        ) + " |"
        for line in lines
    ]  # fmt: skip


def table_cells(table: Sequence[TableRow]) -> list[list[str]]:
    """Return the header and a line for each row. Some columns are omitted if no row has a value."""
    columns: dict[str, list[str]] = {
        "target": [row.target + (RETIRED_MARK if row.retired else "") for row in table],
        "recommended": [row.recommended or NO_VALUE for row in table],
        "CUDA": [row.cuda for row in table],
        "Python": [row.python for row in table],
        "base": [row.base for row in table],
    }
    for name in COLUMNS:
        if any(name in row.pins for row in table):
            columns[name] = [row.pins.get(name, NO_VALUE) for row in table]
    if any(other_pins(row) for row in table):
        columns["also"] = [other_pins(row) or NO_VALUE for row in table]
    if not any(row.recommended for row in table):
        del columns["recommended"]
    columns["flashinfer"] = [_flashinfer(row) for row in table]
    columns["arch"] = [", ".join(row.arch) for row in table]
    columns["as of"] = [row.as_of for row in table]
    if any(row.images for row in table):
        columns["pull"] = [_pull_size_text(row) for row in table]
    if any(row.state for row in table):
        columns["state"] = [row.state for row in table]
    if any(row.images for row in table):
        columns["tested"] = [" / ".join(test_runs(row)) or NO_VALUE for row in table]
    return [list(columns), *map(list, zip(*columns.values(), strict=True))]


def pull_size(row: TableRow) -> Bytes:
    """Return the download size for x86_64, or else for arm64. 0 without an image."""
    sizes = {image.arch: image.size for image in row.images}
    return sizes.get(Arch.X86_64) or next(iter(sizes.values()), 0)


def _pull_size_text(row: TableRow) -> str:
    """Return the download size, such as "4.2 GB"."""
    size = pull_size(row)
    return f"{size / 1e9:.1f} GB" if size else NO_VALUE


# Columns that a wide terminal shows, the first first: head → the column after it, and its cells.
MORE_COLUMNS: dict[str, tuple[str, Callable[[TableRow], str]]] = {
    "Python": ("torch", lambda row: row.python),
    "pull": ("tested", _pull_size_text),
    "driver": ("torch", lambda row: next((image.driver for image in row.images), "") or NO_VALUE),
    "arch": ("pull", lambda row: ", ".join(row.arch)),
    "also": ("arch", lambda row: other_pins(row) or NO_VALUE),
    "date": ("tested", lambda row: row.as_of),
    "for": ("CUDA", lambda row: row.recommended or NO_VALUE),
}


def _flashinfer(row: TableRow) -> str:
    version = row.pins.get("flashinfer-python")
    return f"{version} {row.flashinfer}" if version else row.flashinfer


def test_runs(row: TableRow) -> list[str]:
    """List the tests of each image, such as "f0d861e48604: gpu on NVIDIA H200, driver 580.159"."""
    several = len(row.images) > 1
    return [
        f"{f'{image.arch} ' if several else ''}{short_digest(image.digest)}: {image.tested}"
        for image in row.images
    ]


def short_digest(digest: Digest) -> str:
    """Shorten a digest to its first digits, for tables."""
    return digest.partition(":")[2][:DIGITS]


def other_pins(row: TableRow) -> str:
    """Return the pins without a column, such as "sglang 0.5.12, ray 2.58.0"."""
    return ", ".join(f"{name} {pin}" for name, pin in row.pins.items() if name not in OWN_PLACE)


def _driver(image: ImageDigests) -> str:
    return (image.floors.driver or "") if image.floors else ""


def _summary(runs: Sequence[RecordedRun], digest: Digest) -> str:
    """Format runs as text, with the digests of images other than the current image."""
    other = records.other_digests(runs, digest)
    return (
        "; ".join(map(run_summary, runs)) + (f" ({'; '.join(other)})" if other else "") or NO_RECORD
    )


def add_images(project: Project, row: TableRow) -> TableRow:
    """Add the locked images and their test records to `row`."""
    path = image_digests.digests_path(project.images, row.target)
    if not path.exists():
        return row
    target_digests = codec.read_document(
        path,
        image_digests.TargetDigests,
        what="digests",
        hint=lock_file.damaged_lock_remedy(row.target),
    )
    runs = recording.counted_runs(project, target_digests)
    table_images = [
        TableImage(
            arch=arch,
            digest=target_digests.arch[arch].manifest,
            size=target_digests.arch[arch].size,
            driver=_driver(target_digests.arch[arch]),
            runs=runs[arch],
            tested=_summary(runs[arch], target_digests.arch[arch].manifest),
        )
        for arch in row.arch
        if arch in target_digests.arch
    ]
    return msgspec.structs.replace(
        row, images=tuple(table_images), locked=_locked_versions(project, row)
    )


def _locked_versions(project: Project, row: TableRow) -> dict[str, str]:
    """Return the locked versions of packages with a column. Empty without a readable lock."""
    try:
        of_arches = lock_file.locked_versions(project.images, row.target)
    except ImgbuildError:
        return {}
    versions = next((of_arches[arch] for arch in row.arch if arch in of_arches), {})
    return {name: versions[name] for name in (*COLUMNS, *ENGINES, *STACKS) if name in versions}
