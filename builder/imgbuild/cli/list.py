"""Implements `imgbuild list`, which lists the targets of the matrix."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Literal

import msgspec
from packaging.requirements import Requirement

from imgbuild.attest.sbom import packages
from imgbuild.audit.binaries import gpus
from imgbuild.audit.binaries.gpu_models import GpuModel
from imgbuild.cache.store import Store
from imgbuild.cli import _machine
from imgbuild.cli._help import create_command
from imgbuild.cli._list_filters import ListFilters, locked_versions, parse_filter, parse_pythons
from imgbuild.cli._list_runs import RunsOptions, answer_runs
from imgbuild.cli._options import FORMAT, parse_day
from imgbuild.cli._output import align_columns, print_result, terminal_width
from imgbuild.cli._targets import SelectionOptions
from imgbuild.cli._verb import OUTPUT, create_verb, option
from imgbuild.doctor import targets
from imgbuild.doctor.host import Host, HostGpu, read_host
from imgbuild.doctor.targets import TargetFit, TargetNeeds
from imgbuild.errors import ImgbuildError, InputError
from imgbuild.lock import lock_file, published
from imgbuild.lock.published import ExtendedMatrix
from imgbuild.lock.resolution import installed_wheels
from imgbuild.matrix import project_paths
from imgbuild.matrix.model import Matrix
from imgbuild.matrix.project_paths import Project
from imgbuild.matrix.select import select_targets
from imgbuild.pipeline import locked_packages
from imgbuild.show import status, table
from imgbuild.show.table import TableRow
from imgbuild.smoke.records import RecordedRun
from imgbuild.system import quoting
from imgbuild.system.console import console
from imgbuild.system.syntax import is_within, marker_applies, valid_requirement
from imgbuild.values import Arch, Condition, environment_markers, normalize_package

RELAXED = 3  # targets named that match without one of the filters


class RowMatcher:
    """Tests rows of a project against filters."""

    def __init__(self, filters: ListFilters, project: Project, arches: Sequence[Arch] = ()) -> None:
        """Raise InputError if a filter is invalid."""
        self._filters, self._project, self._arches = filters, project, arches
        for name, text in (("--tested", filters.tested), ("--cuda", filters.cuda)):
            if text is not None and not text.strip():
                message = f"{name}: the value is empty"
                raise InputError(message, hint=f"omit {name}, or specify a value")
        self._needed = [parse_filter(requirement) for requirement in filters.package or ()]
        self._machines = filters.machines(arches)
        self._driver = _machine.parse_driver(filters.driver) if filters.driver is not None else ""
        self._pythons = parse_pythons(filters.python or ())
        self._day = parse_day(filters.as_of)
        self._runs_here = _machine_judge(project) if filters.fits else None
        self._fits: dict[str, list[TargetFit]] = {}

    def matches(self, row: TableRow, condition: Condition | None) -> bool:
        """Whether a row with a state matches. The state can be None if states are not filtered."""
        states = self._filters.state
        return (not states or condition in states) and self.matches_in_any_state(row)

    def matches_in_any_state(self, row: TableRow) -> bool:
        """Whether a row matches all filters except `--state`."""
        tested = self._filters.tested is None or any(run.good for run in self._recorded_runs(row))
        return tested and self._untested_matches(row)

    def _untested_matches(self, row: TableRow) -> bool:
        """Whether a row matches all filters except `--state` and `--tested`."""
        cuda = self._filters.cuda
        return (
            (cuda is None or cuda in (row.cuda, row.cuda.split(".")[0]))
            and (self._day is None or row.as_of <= self._day.isoformat())
            and (not self._pythons or any(each.contains(row.python) for each in self._pythons))
            and (not self._needed or _has_package(self._project, row, self._needed))
            and ((not self._machines and not self._driver) or bool(self._fitting_images(row)))
            and (self._runs_here is None or self._runs_here(row))
        )

    def failed(self, rows: Iterable[TableRow]) -> list[str]:
        """Describe rows that match all filters except that tests failed on the `--tested` GPU."""
        names = [
            row.target + (table.RETIRED_MARK if row.retired else "")
            for row in rows
            if self._filters.tested is not None
            and any(not run.good for run in self._recorded_runs(row))
            and self._untested_matches(row)
        ]
        where = "to show the failures, run: imgbuild show TARGET --tests"
        return [f"failed on {self._filters.tested}: {', '.join(names)}; {where}"] if names else []

    def _recorded_runs(self, row: TableRow) -> list[RecordedRun]:
        """Return the test runs on the GPU of `--tested`."""
        return table.runs_on_gpu(table.add_images(self._project, row), self._filters.tested or "")

    def driver_restrictions(self, rows: Iterable[TableRow]) -> list[str]:
        """List the locked targets of `rows` with restrictions on the driver of `--driver`."""
        if not self._driver:
            return []
        return [
            row.target
            for row in rows
            if row.images
            and not any(fit.complete and not fit.limited for fit in self._fitting_images(row))
        ]

    def too_old(self, rows: Iterable[TableRow]) -> str:
        """Return a message if a GPU of `--gpu` is too old for all `rows`, or ""."""
        able = {
            capability
            for row in rows
            for floors in _image_needs(self._project, row).floors.values()
            for capability in (*floors.gpu, *floors.gpu_ptx)
        }
        lowest = min(able, key=gpus.version_numbers, default="")
        for name, (model, _) in zip(self._filters.gpu or (), self._machines, strict=True):
            if gpus.is_older(model.capability, lowest):
                text = f"GPU {name} has compute capability {model.capability}"
                return f": {text}, but images require at least {lowest}"
        return ""

    def relaxed(self, rows: Sequence[TableRow]) -> list[str]:
        """Describe the rows that match without one of several filters."""
        described = []
        locked = self._project.locked_targets()
        others = [*self._filters.without_one()]
        for words, filters in others if len(others) > 1 else []:
            matcher = RowMatcher(filters, self._project, self._arches)
            names = [row.target for row in rows if matcher.matches_in_any_state(row)]
            names = [name if name in locked else f"{name} (not locked)" for name in names]
            more = [f"{len(names) - RELAXED} more"] if len(names) > RELAXED else []
            if names:
                listed = ", ".join([*names[:RELAXED], *more])
                described.append(f"without {words}, these targets match: {listed}")
        return described

    def tested_gpus(self, rows: Iterable[TableRow]) -> str:
        """Return the GPUs of all passed tests of `rows`, if none was on the GPU of `--tested`."""
        if self._filters.tested is None:
            return ""
        shown = [table.add_images(self._project, row) for row in rows]
        runs = (run for row in shown for image in row.images for run in image.runs)
        labels = sorted({run.gpu_models for run in runs if run.gpu and run.good})
        if any(table.runs_on_gpu(row, self._filters.tested) for row in shown) or not labels:
            return ""
        return f": tests passed only on {', '.join(labels)}"

    def _fitting_images(self, row: TableRow) -> list[TargetFit]:
        """Return the images of the row that run on the GPU and the driver in the filters."""
        if row.target not in self._fits:
            machines: list[tuple[GpuModel | None, Arch | None]] = [*self._machines]
            images = [
                _fitting_images(self._project, row, model, arch, self._driver)
                for model, arch in machines or [(None, None)]
            ]
            self._fits[row.target] = [fit for each in images for fit in each] if all(images) else []
        return self._fits[row.target]


def _has_package(project: Project, row: TableRow, needed: Sequence[Requirement]) -> bool:
    """Whether the pinned versions, or locked versions of other packages, satisfy all of `needed`.

    The requirements of extras must also be satisfied.
    """
    extras = [requirement for requirement in needed if requirement.extras]
    if extras and not _have_extras(project, row.target, extras):
        return False
    versions = dict(row.pins)
    if any(normalize_package(requirement.name) not in versions for requirement in needed):
        for resolution in locked_versions(project, row.target):
            versions = resolution | versions
    return all(
        (version := versions.get(normalize_package(requirement.name))) is not None
        and requirement.specifier.contains(version, prereleases=True)
        for requirement in needed
    )


def _have_extras(project: Project, target: str, needed: Sequence[Requirement]) -> bool:
    """Whether an image of a target satisfies the extras of `needed`, as in `packages.json`."""
    lock = lock_file.find_lock(project.images, target)
    if lock is None:
        return False
    records = packages.recorded_packages([project_paths.catalogue_project().images, project.images])
    for arch, resolution in lock.arch.items():
        marker_values = environment_markers(lock.base.python, arch)
        requires = locked_packages.package_requirements(installed_wheels(resolution), records)
        if all(
            _has_extra(
                requires.get(normalize_package(requirement.name), ()),
                extra, marker_values, resolution.versions,
            )
            for requirement in needed
            for extra in requirement.extras
        ):  # fmt: skip
            return True
    return False


def _has_extra(
    lines: Iterable[str], extra: str, values: Mapping[str, str], versions: Mapping[str, str]
) -> bool:
    """Whether `versions` satisfy the requirements of `extra`. False if there are none."""
    requirements = (valid_requirement(line) for line in lines)
    added = [
        each
        for each in requirements
        if each
        and marker_applies(each.marker, values, [extra])
        and not marker_applies(each.marker, values)
    ]
    return bool(added) and all(
        is_within(versions.get(normalize_package(each.name)), each.specifier) for each in added
    )


def _target_needs(project: Project, target: str) -> TargetNeeds | None:
    lock = lock_file.find_lock(project.images, target)
    return targets.target_needs(project.images, lock) if lock is not None else None


def _image_needs(project: Project, row: TableRow) -> TargetNeeds:
    """Return the requirements of the row's images, or without a lock, estimates from the row."""
    return _target_needs(project, row.target) or targets.planned_needs(
        row.target, row.cuda, row.arch, row.gpu
    )


def _fitting_images(
    project: Project, row: TableRow, model: GpuModel | None, only: Arch | None, driver: str
) -> list[TargetFit]:
    """Return the images of the row that can run on a GPU and a driver, as in `imgbuild doctor`.

    Without a lock, the values of the row are used. If `driver` is "", any driver is accepted.
    """
    offered = _image_needs(project, row)
    card = () if model is None else (HostGpu(name="GPU", capability=model.capability),)
    machines = (
        Host(arch=arch, driver=driver, gpus=card, described=True)
        for arch in row.arch
        if only in (None, arch)
    )
    return [fit for machine in machines if (fit := targets.judge_target(machine, offered)).fits]


def _machine_judge(project: Project) -> Callable[[TableRow], bool]:
    """Return a function that checks whether this machine can run a target, as `imgbuild doctor`."""
    host = read_host()
    if not targets.is_comparable(host):
        console.warn("no GPU or no driver was found: --fits compares only other requirements")

    def _runs_here(row: TableRow) -> bool:
        offered = _target_needs(project, row.target)
        return offered is not None and targets.judge_target(host, offered).fits

    return _runs_here


ListFormat = Literal["text", "markdown"]
WideOption = Annotated[
    bool,
    option(
        "--wide",
        "Show all columns, including Python, other packages, state and test records. If the "
        "terminal is narrower than the table, show each target as a paragraph.",
        panel=OUTPUT,
        often=True,
    ),
]
FormOption = Annotated[ListFormat, FORMAT("Choices: text, or markdown (with all columns).")]


Order = Annotated[
    Literal["recommended", "size"],
    option(
        "--order",
        "The sort order: recommended targets first, or smallest download first.",
        panel=OUTPUT,
    ),
]


@create_verb
def list_targets(
    selection: SelectionOptions,
    filters: ListFilters,
    code: RunsOptions,
    wide: WideOption = False,
    form: FormOption = "text",
    order: Order = "recommended",
) -> None:
    """List the targets in the matrix, with versions, states and test results.

    Without names, lists all targets except retired targets, which were replaced by newer targets.
    --all also lists retired targets. Targets with * are recommended for their stack, and are listed
    first. A target must match all given filters. A narrow terminal omits months. A wide terminal
    shows more columns: the oldest driver, the download size and other packages.

    The column "tested" shows the GPUs and the month of the highest tier of smoke tests that passed,
    such as "2 H200 2026-11", or only the tier if it needs no GPU. It shows "failed" if the latest
    run of a tier without GPUs or on one GPU failed, "-" if the image has no test record, and "not
    locked" (or "plan" on a narrow terminal) if the target has no image. Test runs of images with
    the same configuration are included; --wide shows their digests. Test records for arm64 are
    included with --arch arm64, or if --gpu selects a GPU of an arm64 machine. All failed tiers are
    named below the table. --json includes all values of the matrix, the reasons for missing
    architectures, and the test records.

    Examples:

        imgbuild list

        imgbuild list --wide --arch arm64

        imgbuild list --with verl --with 'vllm>=0.11'

        imgbuild list --fits

        imgbuild list --driver 535 --gpu A100 --python 3.11

        imgbuild list --tested '2 H200'

        imgbuild list --python '>=3.12' --with vllm

        imgbuild list --with ray --order size

        imgbuild list --state needs --state stale

        imgbuild list cu130-vllm --json

        imgbuild list --all

        imgbuild list --runs train.py
    """
    code.check()
    project = selection.project()
    read = published.load_matrix(project.matrix)
    patterns = selection.named_targets
    arches = selection.arches or filters.arches
    selected = select_targets(
        read, patterns, everything=selection.everything or not patterns, arches=arches
    )
    matcher = RowMatcher(filters, project, selection.arches)
    every = table.order_rows(table.create_rows(read, published.shown_targets(read, selected)))
    whole = selection.everything or bool(patterns)
    retired = [] if whole else [row for row in every if row.retired]
    every = [row for row in every if row not in retired]
    # The states of retired targets are not read.
    hidden = [row.target for row in retired if matcher.matches_in_any_state(row)]
    states = {}
    if wide or form == "markdown" or console.json or filters.state:  # the narrow table has none
        states = status.target_states(project, read, [row.target for row in every], _cache())
    rows = []
    for row in every:
        state = states.get(row.target)
        if matcher.matches(row, state.condition if state else None):
            shown = table.add_images(project, row)
            if state:
                shown = msgspec.structs.replace(shown, state=str(state), reasons=state.reasons)
            rows.append(shown)
    if not rows:
        reason = matcher.too_old(every) or matcher.tested_gpus(every)
        raise filters.nothing_selected(read, arches, project, reason, matcher.relaxed(every))
    if order == "size":
        rows.sort(key=lambda row: table.pull_size(row) or sys.maxsize)
    if code.runs:
        answer_runs(selection, [row.target for row in rows], code)
        return
    if form == "markdown":
        lines = table.markdown_lines(rows)
    elif wide:
        lines = _wide_table(rows, terminal_width())
    else:
        width = terminal_width()
        also = [*(["Python"] if filters.python else []), *(["pull"] if order == "size" else [])]
        limit = None if width == sys.maxsize else width
        lines = align_columns(table.narrow_table(rows, limit, also))
    print_result(rows, lines, None if form == "markdown" else _style)
    if form == "text" and not console.json:
        failed = matcher.failed((*every, *retired))
        restricted = matcher.driver_restrictions(rows)
        notes = _notes(rows, hidden, restricted, filters.doctor, wide=wide)
        for note in (*_published_note(read), *notes, *failed):
            console.info(note)


def _wide_table(rows: Sequence[TableRow], width: int) -> list[str]:
    """Format all columns, as a paragraph for each target if the terminal is too narrow."""
    lines = align_columns(table.table_cells(rows), width=sys.maxsize)
    return table.row_paragraphs(rows, width) if max(map(len, lines)) > width else lines


def _published_note(matrix: Matrix) -> Iterator[str]:
    """Yield how to list the published targets, if `matrix` is that of a project based on them."""
    if isinstance(matrix, ExtendedMatrix):
        place = quoting.quote_word(str(project_paths.CATALOGUE / project_paths.MATRIX))
        yield f"to list the published targets, run: imgbuild list --matrix {place}"


def _notes(
    rows: Sequence[TableRow],
    hidden: Sequence[str],
    restricted: Sequence[str],
    doctor: str,
    *,
    wide: bool,
) -> Iterator[str]:
    """Explanations of the marks in the table, and notes on omitted rows."""
    if not wide and any(row.recommended for row in rows):
        yield "* recommended; to show more packages and columns, run: imgbuild list --wide"
    if not wide and not all(row.images for row in rows):
        yield f"not locked ({table.PLANNED_STATE}); to show the reasons, run: imgbuild show TARGET"
    if failed := [text for row in rows if (text := table.failed_tiers(row))]:
        cases = "to show the cases, run: imgbuild show TARGET --tests"
        yield f"failed: {', '.join(failed)}; {cases}"
    if hidden:
        yield f"retired: {len(hidden)}; to list them, add --all"
    if restricted:
        every = len(restricted) == sum(bool(row.images) for row in rows)
        names = "all locked targets" if every else ", ".join(restricted)
        yield f"run with restrictions on this driver (for details, run: {doctor}): {names}"


def _style(line: str) -> list[tuple[str, str]]:
    """Return the style of a line: header, recommended target or failed test."""
    name, gap, rest = line.partition("  ")
    if name in ("name", "target"):
        return [(line, "bold")]
    head = "bold green" if name.endswith(table.MARK) else ""
    cells, last = rest[: rest.rfind("  ") + 2], rest[rest.rfind("  ") + 2 :]
    tail = {"failed": "red", "not locked": "dim", table.PLANNED_STATE: "dim"}.get(last, "")
    return [(name, head), (gap + cells, ""), (last, tail)]


def _cache() -> Store | None:
    """Return the cache, or None if the cache folder cannot be used."""
    try:
        return Store.open()
    except (ImgbuildError, OSError) as error:
        console.detail(f"states of targets could not be stored: {error}")
        return None


COMMAND = create_command(list_targets)
