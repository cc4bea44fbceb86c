"""Formats findings of `imgbuild audit`, and defines options for auditing code."""

# A separate module: size.
from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from imgbuild.audit.code.model import CodeReport
from imgbuild.cache.context import Context
from imgbuild.cli._output import format_count
from imgbuild.cli._targets import SelectionOptions
from imgbuild.cli._verb import OUTPUT, TARGETS_PANEL, option
from imgbuild.errors import InputError, NothingSelected
from imgbuild.pipeline import audit_code
from imgbuild.pipeline.audit_code import UserCode
from imgbuild.report import ConflictRelation, Finding, Report, Severity, UncheckedPart
from imgbuild.system.console import console

INDENT = "    "
MOST_ABSENT, NAMED = 10, 5  # findings of absent packages that are printed separately; names


class FindingFormat(enum.StrEnum):
    """The output format of findings."""

    TEXT = "text"
    JSON = "json"
    SARIF = "sarif"
    GITHUB = "github"


CODE_SUFFIXES = (".py", ".ipynb", ".sh")
CodePaths = Annotated[
    list[Path] | None,
    option(
        "--code",
        "Check whether the code at this path works with the packages. Reads Python files, "
        "notebooks, shell scripts, YAML, JSON and Dockerfiles. Can be repeated.",
        metavar="PATH",
        panel=TARGETS_PANEL,
        often=True,
    ),
]
Replace = Annotated[
    list[str] | None,
    option(
        "--replace",
        "Replace one of the packages with a fork, and audit the fork's code. FORK is the path "
        "of a checkout, or git+URL@REV. Can be repeated.",
        metavar="NAME=FORK",
        panel=TARGETS_PANEL,
    ),
]
OutputFormat = Annotated[
    FindingFormat | None,
    option(
        "--output-format",
        "The output format: text, json (equivalent to --json), sarif (SARIF 2.1.0, for code "
        "scanning) or github (workflow annotations). Default: text.",
        panel=OUTPUT,
    ),
]


def unread_line(entry: UncheckedPart) -> str:
    return f"{'not read' if entry.required else 'not checked'}: {entry.what}: {entry.why}"


def code_lines(report: CodeReport, *, notes: bool) -> Iterator[str]:
    """Yield one line for each finding in a user's code, and then the parts that were not read."""
    for finding in report.findings:
        if notes or finding.severity is not Severity.NOTE:
            kind = "" if finding.severity is Severity.ERROR else f" {finding.severity}:"
            remedy = f": {finding.remedy}" if finding.remedy else ""
            yield f"{finding.where}: {finding.code}{kind} {finding.message}{remedy}"
    yield from map(unread_line, report.unread)


def refuse_paths(selection: SelectionOptions) -> None:
    """Raise InputError if a selected name is a file of code instead of a target."""
    for name in selection.named_targets:
        is_pin = "@" in name or "==" in name
        if not is_pin and ("/" in name or Path(name).suffix in CODE_SUFFIXES):
            message = f"{name} is not a target"
            hint = f"to audit code, run: imgbuild audit TARGET --code {name}"
            raise (
                InputError(message, hint=hint)
                if Path(name).exists()
                else NothingSelected(f"no target matches {name}", hint=hint)
            )


def read_code(
    paths: Sequence[Path] | None, replaced: Sequence[str] | None, *, again: bool, offline: bool
) -> UserCode | None:
    """Read the code of `--code` and the forks of `--replace`.

    Returns None without these options.
    """
    if not paths and not replaced:
        return None
    context = Context.open(console, offline=offline)
    forks = [audit_code.read_fork(text, context) for text in replaced or ()]
    code = audit_code.read_code(paths or (), again=again, forks=forks)
    if paths and not code.texts:
        console.warn(f"no code was found in {', '.join(map(str, paths))}")
    return code


def audit_lines(reports: Sequence[Report], *, notes: bool) -> Iterator[str]:
    """Yield reports as text: errors, warnings, unread parts and, with `notes`, notes.

    Findings with the same subject are shown as one line. Many absent packages are listed in at most
    two lines. The counts of findings follow a single report, and precede each of several reports.
    """
    for report in reports:
        if len(reports) > 1:
            yield _counts(report)
        if isinstance(report, CodeReport):
            yield from code_lines(report, notes=notes)
            if len(reports) == 1:
                yield _counts(report)
            continue
        groups: dict[tuple[str, ...], list[Finding]] = {}
        for finding in report.findings:
            if notes or finding.severity is not Severity.NOTE:
                groups.setdefault(_finding_key(finding), []).append(finding)
        absent = {key: group for key, group in groups.items() if is_absent(group[0])}
        if len(absent) <= MOST_ABSENT:
            absent = {}
        for key, group in groups.items():
            yield from _group_line(group) if key not in absent else ()
        yield from _absent_package_lines([group[0] for group in absent.values()])
        for entry in report.unread:
            yield unread_line(entry)
        if len(reports) == 1:
            yield _counts(report)


def _counts(report: Report) -> str:
    counts = ", ".join(
        format_count(sum(finding.severity is severity for finding in report.findings), severity)
        for severity in Severity
    )
    read = (
        f" in {format_count(report.files, 'file')} of code"
        if isinstance(report, CodeReport)
        else ""
    )
    return f"{report.target} {report.arch}: {counts}{read}"


def _finding_key(finding: Finding) -> tuple[str, ...]:
    """Return a key that is equal for all findings about the same problem."""
    evidence = finding.evidence
    if evidence is None or not evidence.subject:
        return (finding.severity, finding.check, finding.message, finding.where)
    return (
        finding.severity,
        finding.check,
        evidence.relation,
        evidence.package,
        evidence.other,
        evidence.subject,
    )


def is_absent(finding: Finding) -> bool:
    """Return whether the finding is an error about a package that the package set lacks."""
    evidence = finding.evidence
    return (
        finding.severity is Severity.ERROR
        and evidence is not None
        and (
            evidence.relation is ConflictRelation.PACKAGE
            or (evidence.relation is ConflictRelation.REQUIREMENT and not evidence.other_version)
        )
    )


def _absent_package_lines(findings: Sequence[Finding]) -> Iterator[str]:
    required: dict[str, None] = {}
    imported: dict[str, None] = {}
    for finding in findings:
        evidence = finding.evidence
        if evidence is not None and evidence.relation is ConflictRelation.REQUIREMENT:
            required[evidence.other or re.split(r"[^\w.-]", evidence.subject)[0]] = None
        elif evidence is not None:
            imported[evidence.subject.partition(".")[0]] = None
    for names, text, check in (
        (required, "required, but not in this package set", "metadata"),
        (imported, "imported, but not provided by any package in this package set", "imports"),
    ):
        if names:
            more = (
                f" and {len(names) - NAMED} more; to list them, add --json"
                if len(names) > NAMED
                else ""
            )
            what = format_count(len(names), "package" if names is required else "module")
            are = "is" if len(names) == 1 else "are"
            yield f"error: {what} {are} {text}: {', '.join([*names][:NAMED])}{more} [{check}]"


def _group_line(group: Sequence[Finding]) -> Iterator[str]:
    finding, *more = group
    yield f"{finding.severity}: {finding.message} [{finding.check}]"
    if finding.where:
        also = (
            f" and {format_count(len(more), 'more place')}; to list them, add --json"
            if more
            else ""
        )
        yield f"{INDENT}at {finding.where}{also}"
    if finding.remedy:
        yield f"{INDENT}{finding.remedy}"
