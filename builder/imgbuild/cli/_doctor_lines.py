"""Formats the output of `imgbuild doctor` as lines."""

# A separate module: size.
from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence

from packaging.version import Version

from imgbuild.audit.binaries import gpu_models
from imgbuild.cli._output import GAP, align_columns, format_count, terminal_width
from imgbuild.doctor.host import Host
from imgbuild.doctor.targets import HostDiagnosis, TargetFit, is_comparable, shared_remarks
from imgbuild.show import table
from imgbuild.show.table import TableRow
from imgbuild.smoke.records import RecordedRun

FRAMEWORKS = ("vllm", "sglang", "verl", "unsloth", "deepspeed", "trl")
HEAD = ("target", "as of", "Python", "has", "tested")
FULL_DRIVER = "full driver"  # the column of targets that run with a restriction
COLUMN = f'the column "{FULL_DRIVER}"'
# The forms of the table, widest first: whether months are left out, the number of columns that are
# left out after the first (date, Python), and the number of frameworks of a target.
FORMS = ((False, 0, 2), (True, 0, 2), (True, 1, 2), (True, 2, 2), (True, 2, 1))
ORDER = (
    "in order of preference: fewest restrictions, recommended, general, newest CUDA release, "
    "latest date"
)

RowsByTarget = Mapping[str, TableRow]
TargetGroups = dict[tuple[str, tuple[str, ...]], list[str]]


def doctor_lines(diagnosis: HostDiagnosis, rows: RowsByTarget) -> Iterator[str]:
    """Yield groups of targets with reasons, the test records, and the recommended target."""
    fitting = [fit.target for fit in diagnosis.verdicts if fit.fits and not fit.retired]
    full = {fit.target: fit.unrestricted for fit in diagnosis.verdicts}
    head, *below = _target_table(fitting, rows, full) if fitting else [""]
    by_target = dict(zip(fitting, below, strict=True)) if len(below) == len(fitting) else {}
    for (judged, texts), names in _group_targets(diagnosis).items():
        shown = [name for name in names if name in by_target]
        others = [name for name in names if name not in by_target]
        more = f" (and {len(others)} retired)" if others else ""
        yield (
            f"{judged}: {format_count(len(shown), 'target')}{more}"
            if shown
            else f"{judged}: {', '.join(names)}"
        )
        yield from (f"{GAP}{text}" for text in texts)
        if shown:
            yield head
            yield from (by_target[name] for name in shown)
            yield from [f"{GAP}retired: {', '.join(others)}"] if others else []
    yield ""
    retired = [verdict for verdict in diagnosis.verdicts if verdict.fits and verdict.retired]
    yield from (f"{verdict.target} is retired: {verdict.retired}" for verdict in retired)
    yield from [""] if retired else []
    yield from _tested_machine_lines(
        diagnosis.host, [rows[name] for name in fitting if name in rows]
    )
    yield from _recommendation_lines(diagnosis, [rows[name] for name in fitting if name in rows])


def _group_targets(diagnosis: HostDiagnosis) -> TargetGroups:
    fits = "fits" if is_comparable(diagnosis.host) else "unknown"
    groups: TargetGroups = {}
    for verdict in diagnosis.verdicts:
        judged = fits if verdict.fits else "does not fit"
        texts = (*verdict.reasons, *shared_remarks(diagnosis.host, verdict, COLUMN))
        groups.setdefault((judged, texts), []).append(_name(verdict))
    return groups


def _target_table(names: Sequence[str], rows: RowsByTarget, full: Mapping[str, str]) -> list[str]:
    lines: list[str] = []
    for brief, dropped, frameworks in FORMS:
        cells = [_cells(name, rows.get(name), frameworks, brief=brief) for name in names]
        heads = [HEAD, *cells]
        if any(full[name] for name in names):
            column = [FULL_DRIVER, *(full[name] or table.NO_VALUE for name in names)]
            heads = [(*cell, more) for cell, more in zip(heads, column, strict=True)]
        lines = align_columns(
            [(cell[0], *cell[1 + dropped :]) for cell in heads], width=sys.maxsize
        )
        if max(map(len, lines)) + len(GAP) <= terminal_width():
            break
    return [f"{GAP}{line}" for line in lines]


def _name(verdict: TargetFit) -> str:
    marked = verdict.retired and not verdict.fits
    return verdict.target + (table.RETIRED_MARK if marked else "")


def _cells(name: str, row: TableRow | None, frameworks: int, *, brief: bool) -> tuple[str, ...]:
    if row is None:
        return (name, *[table.NO_VALUE] * (len(HEAD) - 1))
    named = [f"{each} {row.pins[each]}" for each in FRAMEWORKS if each in row.pins]
    has = ", ".join(named[:frameworks]) or table.NO_VALUE
    return (name, row.as_of, row.python, has, _record(row, brief=brief))


def _record(row: TableRow, *, brief: bool) -> str:
    return (
        table.highest_record(row, brief=brief)
        if any(image.runs for image in row.images)
        else table.NO_VALUE
    )


def _tested_machine_lines(host: Host, fitting: Sequence[TableRow]) -> Iterator[str]:
    runs = [run for row in fitting for image in row.images for run in image.runs if run.gpu]
    if not fitting or not is_comparable(host):
        return
    if not runs:
        yield f"none of these targets has a GPU test record for {host.arch}"
        yield ""
        return
    models = sorted({name.removeprefix("NVIDIA ") for run in runs for name in run.gpu})
    drivers = sorted({run.driver for run in runs if run.driver})
    yield f"tested on: {', '.join(models)}; driver {', '.join(drivers)}"
    lacking = [
        f"compute capability {gpu.capability} ({gpu.name})"
        for gpu in dict.fromkeys(host.gpus)
        if gpu.capability and gpu.capability not in _capabilities(runs)
    ]
    branch = host.driver.partition(".")[0]
    if branch and all(driver.partition(".")[0] != branch for driver in drivers):
        lacking.append(f"a driver of branch {branch}")
    if lacking:
        yield (
            f"no test record has {' or '.join(lacking)}: compatibility is derived from the GPU "
            "code in the files of the targets"
        )
    yield ""


def _capabilities(runs: Sequence[RecordedRun]) -> set[str]:
    found = (gpu_models.find_gpu_model(name) for run in runs for name in run.gpu)
    return {model.capability for model in found if model is not None}


def _recommendation_lines(diagnosis: HostDiagnosis, fitting: Sequence[TableRow]) -> Iterator[str]:
    judged = {verdict.target for verdict in diagnosis.verdicts}
    if diagnosis.best and diagnosis.best not in judged:
        if not any(verdict.fits for verdict in diagnosis.verdicts):
            yield f"use {diagnosis.best} instead ({ORDER})"
    elif diagnosis.best:
        yield f"use: {diagnosis.best} ({ORDER})"
        newest = [
            each for each in (_newest_framework(name, fitting) for name in FRAMEWORKS) if each
        ]
        if {target for _, target in newest} - {diagnosis.best}:
            yield "the newest compatible version of each framework:"
            yield from (f"{GAP}{line}" for line in align_columns(newest))
    elif not is_comparable(diagnosis.host):
        yield "no target is recommended, because no GPU with a driver was found"
    else:
        yield f"no target is compatible with {diagnosis.host.host_phrase}"


def _newest_framework(framework: str, fitting: Sequence[TableRow]) -> tuple[str, str] | None:
    having = [row for row in fitting if framework in row.pins]
    if not having:
        return None
    best = max(
        having,
        key=lambda row: (
            Version(row.pins[framework]),
            any(image.runs for image in row.images),
            -len(row.pins.keys() & set(FRAMEWORKS)),
        ),
    )
    return f"{framework} {best.pins[framework]}", best.target
