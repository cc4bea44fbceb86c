"""Writes audit findings as SARIF 2.1.0 for code scanning, and as GitHub annotations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import imgbuild
from imgbuild import codec
from imgbuild.audit.code import kinds
from imgbuild.audit.code.model import CodeFinding
from imgbuild.report import Finding, Report, Severity
from imgbuild.system.control_characters import escape_control

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}
# What GitHub reads in messages, and in properties, as part of the command.
_MESSAGE = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_PROPERTY = {**_MESSAGE, ":": "%3A", ",": "%2C"}


def findings_text(reports: Sequence[Report], form: str, *, notes: bool) -> str:
    """Write findings in the format `form`, "sarif" or "github", with notes if `notes` is set."""
    if form == "sarif":
        return codec.encode(sarif_document(reports, notes=notes)).decode()
    return escape_control("\n".join(workflow_commands(reports, notes=notes)))


def _shown_findings(reports: Iterable[Report], *, notes: bool) -> Iterator[tuple[Report, Finding]]:
    for report in reports:
        for finding in report.findings:
            if notes or finding.severity is not Severity.NOTE:
                yield report, finding


def _words(report: Report, finding: Finding) -> str:
    remedy = f": {finding.remedy}" if finding.remedy else ""
    place = ""
    if isinstance(finding, CodeFinding) and finding.cell:
        place = f"cell {finding.cell}:{finding.line}:{finding.column}: "
    return f"{place}{finding.message}{remedy} [{report.target} {report.arch}]"


def _position(finding: CodeFinding) -> tuple[int, int]:
    """Return the line and column in the file.

    In a notebook lines count within cells, so the position is the start of the file.
    """
    return (1, 1) if finding.cell else (finding.line, finding.column)


def workflow_commands(reports: Iterable[Report], *, notes: bool) -> Iterator[str]:
    """Yield a workflow command of GitHub Actions for each finding."""
    for report, finding in _shown_findings(reports, notes=notes):
        properties = {"title": finding.check}
        if isinstance(finding, CodeFinding):
            line, column = _position(finding)
            properties = {
                "file": finding.file,
                "line": str(line),
                "col": str(column),
                "title": finding.code,
            }
        shown = ",".join(
            f"{key}={_escape_value(value, _PROPERTY)}" for key, value in properties.items()
        )
        words = _escape_value(_words(report, finding), _MESSAGE)
        yield f"::{_COMMANDS[finding.severity]} {shown}::{words}"


def _escape_value(value: str, table: Mapping[str, str]) -> str:
    return "".join(table.get(character, character) for character in value)


def sarif_document(reports: Iterable[Report], *, notes: bool) -> dict[str, Any]:
    """Return a SARIF 2.1.0 run with all findings. A finding in a wheel has no location."""
    results = [
        _result(report, finding) for report, finding in _shown_findings(reports, notes=notes)
    ]
    listed = kinds.load_finding_kinds()
    rules = [
        {
            "id": rule,
            **(
                {
                    "shortDescription": {"text": listed[rule].title},
                    "fullDescription": {"text": listed[rule].text.strip()},
                    "help": {"text": listed[rule].cure.strip() or listed[rule].text.strip()},
                }
                if rule in listed
                else {}
            ),
        }
        for rule in sorted({result["ruleId"] for result in results})
    ]
    driver = {
        "name": "imgbuild",
        "version": imgbuild.__version__,
        "rules": rules,
    }
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _result(report: Report, finding: Finding) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.check,
        "level": str(finding.severity),
        "message": {"text": _words(report, finding)},
    }
    if isinstance(finding, CodeFinding):
        line, column = _position(finding)
        physical = {
            "artifactLocation": {"uri": quote(finding.file)},
            "region": {"startLine": line, "startColumn": column},
        }
        result["ruleId"] = finding.code
        result["locations"] = [{"physicalLocation": physical}]
    return result
