"""Formats the report of `imgbuild outdated` as a table."""

# A separate module: size.
from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from imgbuild.cli._output import GAP, align_columns, fold_lines, format_count
from imgbuild.cves.check import Vulnerability
from imgbuild.system import quoting
from imgbuild.system.amounts import join_first
from imgbuild.update.newer import NewerVersion
from imgbuild.update.newer_targets import NewerTarget
from imgbuild.update.other_updates import BaseUpdates, DebianUpdate, KnownVulnerabilities
from imgbuild.update.solved_version import SolvedVersion
from imgbuild.values import Arch

HEAD = ("package", "has", "allowed", "newest")
UNAUDITED_NOTE = (
    "a version is allowed if METADATA and learned constraints permit it; no code was checked"
)
REASONS = 2  # of a package, in the table
ROWS = 8  # Debian packages and vulnerabilities, in the table
NO_VALUE = "-"
CPYTHON = "CPython"


class OutdatedReport(msgspec.Struct, frozen=True, kw_only=True):
    """Newer versions for the target or the requirements file `name`.

    `packages` lists the packages with a newer version or an error. `looked_up` is the number of
    checked packages, and `unlisted` the number of other packages. `as_of` is the cut-off date of
    the lock. For a file, `as_of` is "", and `base` and `vulnerabilities` are None. For a project or
    a file, `targets` is None.
    """

    name: str
    arch: tuple[Arch, ...]
    python: str
    cuda: str
    as_of: str = ""
    looked_up: int
    unlisted: int = 0
    packages: tuple[NewerVersion, ...]
    base: BaseUpdates | None = None
    vulnerabilities: KnownVulnerabilities | None = None
    solved: tuple[SolvedVersion, ...] = ()
    retired: str = ""
    targets: tuple[NewerTarget, ...] | None = None


def report_lines(report: OutdatedReport, *, whole: bool, files: Sequence[Path] = ()) -> list[str]:
    """Return the report as text.

    With `whole`, all Debian updates and vulnerabilities are listed. `files` are the requirements
    files that a report without a target is on.
    """
    rows = [
        *(_row(each) for each in sorted(report.packages, key=lambda each: not each.required)),
        *_python_rows(report.base),
        *_debian_rows(report.base, whole=whole),
        *_vulnerability_rows(report.vulnerabilities, whole=whole),
    ]
    return [
        *fold_lines([_title(report)]),
        *_table(rows),
        *fold_lines(_date_note(report)),
        *fold_lines(_pin_notes(report.packages)),
        *fold_lines(_unaudited_note(report, files)),
        *fold_lines(_solved_lines(report.solved)),
        *fold_lines(_target_notes(report)),
        *fold_lines(_unlisted_note(report)),
    ]


def _pin_notes(packages: Sequence[NewerVersion]) -> Iterator[str]:
    """Yield the target's notes on pinned packages for which METADATA allows a newer version."""
    notes: dict[str, list[str]] = {}
    for each in packages:
        for note in each.notes if each.pinned and each.allowed else ():
            notes.setdefault(note, []).append(f"{each.package} {each.version}")
    yield from (f"note on {' and '.join(names)}: {note}" for note, names in notes.items())


def _date_note(report: OutdatedReport) -> Iterator[str]:
    if report.as_of and report.packages:
        allowed = any(each.allowed for each in report.packages)
        later = "; a lock with a later as_of can have the allowed versions" if allowed else ""
        yield (
            f"{report.name} has only files that were uploaded before {report.as_of} (its as_of)"
            f"{later}"
        )


def _unlisted_note(report: OutdatedReport) -> Iterator[str]:
    if report.unlisted:
        others = format_count(report.unlisted, "other package")
        yield f"not checked: {others} of {report.name}; to list them, add --packages"


def _unaudited_note(report: OutdatedReport, files: Sequence[Path]) -> Iterator[str]:
    if report.solved or not any(each.allowed for each in report.packages):
        return
    audits = f"imgbuild outdated {report.name} --solve"
    if files:
        words = (f" -r {quoting.quote_word(str(file))}" for file in files)
        audits = f"imgbuild resolve{''.join(words)}"
    yield f"{UNAUDITED_NOTE}; to solve and audit, run: {audits}"


def _target_notes(report: OutdatedReport) -> Iterator[str]:
    if report.base is not None and any(each.security for each in report.base.updates):
        yield (
            "to get Debian's updates, replace `extends` with `like: TARGET` and lock again, or "
            f"in a clone of imgbuild, run: imgbuild update {report.name} --axis base"
        )
    if report.retired:
        yield f"{report.name} is retired: {report.retired}"
    if report.targets == ():
        yield f"newer target: none; no locked target has newer versions of what {report.name} pins"
    for each in report.targets or ():
        versions = ", ".join(f"{name} {version}" for name, version in each.versions.items())
        driver = f", driver {each.driver} or newer" if each.driver else ""
        yield f"newer target: {each.target} has {versions} (CUDA {each.cuda}{driver})"
    if report.targets:
        name = report.targets[-1].target
        yield (
            f"to compare, run: imgbuild diff {report.name} {name}; to move a project to it, run: "
            f"imgbuild update --to {name}"
        )


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    if not rows:
        return []
    head, *upper = align_columns([HEAD, *(row[:-1] for row in rows)], width=sys.maxsize)
    lines = [head]
    for first, (*_, words) in zip(upper, rows, strict=True):
        lines += [first, *fold_lines([f"{GAP}{words}"] if words else [])]
    return lines


def _title(report: OutdatedReport) -> str:
    newer = [each for each in report.packages if not each.error]
    machine = [", ".join(report.arch), f"Python {report.python}"]
    machine += [f"CUDA {report.cuda}"] if report.cuda else []
    allowed = sum(bool(each.allowed) for each in newer)
    words = f"{len(newer)} of {format_count(report.looked_up, 'package')} have newer versions"
    return f"{report.name} ({', '.join(machine)}): {words}, METADATA allows {allowed}"


def _row(each: NewerVersion) -> tuple[str, ...]:
    if each.error:
        return (
            each.package,
            each.version or NO_VALUE,
            NO_VALUE,
            NO_VALUE,
            f"not checked: {each.error}",
        )
    words = [*(["pinned in the matrix"] if each.pinned else []), *each.reasons[:REASONS]]
    if len(each.reasons) > REASONS:
        words.append(f"{len(each.reasons) - REASONS} more")
    if each.allowed and each.moves:
        words.append(f"{each.allowed} also changes {join_first(each.moves, REASONS)}")
    words += [each.elsewhere] if each.elsewhere else []
    if each.allowed and not words:
        words.append("no other package excludes it")
    return (each.package, each.version, each.allowed or NO_VALUE, each.newest, "; ".join(words))


def _python_rows(base: BaseUpdates | None) -> Iterator[tuple[str, ...]]:
    if base is None:
        return
    if base.python_error:
        reason = f"releases are unknown: {base.python_error}"
        yield (CPYTHON, NO_VALUE, NO_VALUE, NO_VALUE, reason)
    elif base.python is not None:
        newest = base.python.newest
        reason = f"standalone build of {base.python.built}"
        yield (CPYTHON, base.python.version, newest, newest, reason)


def _debian_rows(base: BaseUpdates | None, *, whole: bool) -> Iterator[tuple[str, ...]]:
    if base is None:
        return
    if base.error:
        yield (
            f"base {base.base}",
            NO_VALUE,
            NO_VALUE,
            NO_VALUE,
            f"updates are unknown: {base.error}",
        )
        return
    security = [each for each in base.updates if each.security]
    others = [each for each in base.updates if not each.security]
    shown = base.updates if whole else security[:ROWS]
    for each in shown:
        yield _debian_update_row(each, base.date)
    rest = [] if whole else [(len(security) - ROWS, "security update"), (len(others), "other")]
    words = [format_count(number, what) for number, what in rest if number > 0]
    if words:
        yield (
            f"base {base.base}",
            NO_VALUE,
            NO_VALUE,
            NO_VALUE,
            f"and {' and '.join(words)}; to list them, add --packages",
        )


def _debian_update_row(each: DebianUpdate, date: str) -> tuple[str, ...]:
    why = f"security update of Debian ({date})" if each.security else "update of Debian"
    return (each.package, each.version, each.newest, each.newest, why)


def _vulnerability_rows(
    known: KnownVulnerabilities | None, *, whole: bool
) -> Iterator[tuple[str, ...]]:
    """Yield a row for each vulnerability of high severity or, with `whole`, of any severity."""
    if known is None:
        return
    report = known.report
    if report is None:
        reason = f"vulnerabilities are unknown: {known.error}"
        yield ("advisories", NO_VALUE, NO_VALUE, NO_VALUE, reason)
        return
    open_ones = [each for each in report.vulnerabilities if each.accepted is None]
    counted = [each for each in open_ones if f"{each.package}/{each.id}" in report.counted]
    for each in open_ones if whole else counted[:ROWS]:
        yield _vulnerability(each)
    rest = 0 if whole else len(open_ones) - min(len(counted), ROWS)
    if rest:
        yield (
            "advisories",
            NO_VALUE,
            NO_VALUE,
            NO_VALUE,
            f"and {rest} more vulnerabilities; to list them, run: imgbuild cves",
        )


def _vulnerability(each: Vulnerability) -> tuple[str, ...]:
    why = f"{each.id}, {each.severity}" + ("" if each.fixed else ", no fix")
    return (each.package, each.version, each.fixed or NO_VALUE, each.fixed or NO_VALUE, why)


def _solved_lines(solved: Sequence[SolvedVersion]) -> Iterator[str]:
    for each in solved:
        head = f"{each.package} {each.version}"
        if each.reasons:
            yield f"{head}: cannot be solved"
            yield from (f"  {reason}" for reason in each.reasons)
            continue
        changes = [f"{name} {pair}" for name, pair in each.changes.items()]
        with_others = f", with {', '.join(changes)}" if changes else ""
        yield f"{head}: can be solved{with_others}"
        yield f"  audit: {each.audit}"
        yield from (f"  {finding}" for finding in each.findings)
