"""Sorts findings, and creates the findings of the checks `imports` and `calls`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args

import msgspec

from imgbuild.audit.names import releases
from imgbuild.audit.packages.protocols import ImportablePackages
from imgbuild.audit.source import stdlib
from imgbuild.audit.source.facts import ModuleFacts
from imgbuild.matrix.fields import Check
from imgbuild.report import ConflictRelation, Evidence, Finding, Severity
from imgbuild.values import normalize_package

_CHECKS: tuple[str, ...] = get_args(Check)
SEVERITY_ORDER = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.NOTE: 2}


class FindingPlace(msgspec.Struct, frozen=True):
    """The location of a finding: package, file, and the entry point that reaches it, if any."""

    package: str
    version: str
    file: str
    line: int = 0
    entry: str = ""

    def __str__(self) -> str:
        line = f":{self.line}" if self.line else ""
        return f"{self.package} {self.version} {self.file}{line}".strip()


def finding_place(
    package_set: ImportablePackages, facts: ModuleFacts, line: int, entry: str = ""
) -> FindingPlace | None:
    """Return the location of a line in a module, or None if the module belongs to no package."""
    package = package_set.owner(facts.module)
    version = package_set.version(package) if package is not None else None
    if package is None or version is None:
        return None
    return FindingPlace(package, version, facts.file, line, entry)


def finding_at(
    place: FindingPlace,
    check: str,
    severity: Severity,
    message: str,
    *,
    relation: ConflictRelation,
    remedy: str,
    subject: str,
    **more: Any,
) -> Finding:
    """Return a finding with evidence. `more` contains other fields of `Evidence`."""
    return Finding(
        check=check,
        severity=severity,
        message=message,
        where=str(place),
        remedy=remedy,
        evidence=Evidence(
            relation=relation,
            package=place.package,
            version=place.version,
            file=place.file,
            line=place.line,
            subject=subject,
            **more,
        ),
    )


def create_finding(
    package_set: ImportablePackages,
    check: str,
    place: FindingPlace,
    *,
    relation: ConflictRelation,
    other: str,
    subject: str,
    text: str,
    error: bool,
    preferred: tuple[tuple[str, ...], ...] = (),
) -> Finding:
    """Return a finding at `place` with the message `text`.

    `other` is the package that the finding concerns. It is "" for a package that is not installed,
    and for the standard library. For `preferred`, see `Evidence`.
    """
    version = (package_set.version(other) or "") if other else ""
    message = f"{place.package} {place.version} {text}"
    if error and place.entry:
        message += f" (used by {place.entry})"
    return finding_at(
        place,
        check,
        Severity.ERROR if error else Severity.NOTE,
        message,
        relation=relation,
        remedy=_remedy(relation, place, other, subject),
        subject=subject,
        other=other if version else "",
        other_version=version,
        preferred=preferred,
    )


def _remedy(relation: ConflictRelation, place: FindingPlace, other: str, subject: str) -> str:
    if relation is ConflictRelation.PACKAGE:
        return f"{missing_package_remedy(subject)} to the target's requirements"
    if not other:
        return f"choose another version of {place.package}, or a base with a different Python"
    return f"choose versions of {place.package} and {other} released at about the same time"


def missing_package_remedy(module: str) -> str:
    """Return the remedy for an import of a top-level module that no package provides."""
    package = releases.package_name(module)
    known = package != normalize_package(module.partition(".")[0])
    add = f"add {package} (it provides {module})" if known else ""
    add = add or f"add the package that provides {module}"
    having = stdlib.pythons_with_module(module)
    return f"use {having}, whose standard library has {module}, or {add}" if having else add


def sort_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings sorted by severity, check, place and message, without duplicates."""
    unique = {
        (finding.check, finding.severity, finding.where, finding.message): finding
        for finding in findings
    }

    def _key(finding: Finding) -> tuple[object, ...]:
        evidence = finding.evidence
        place = (evidence.package, evidence.file, evidence.line) if evidence else ("", "", 0)
        check = _CHECKS.index(finding.check) if finding.check in _CHECKS else len(_CHECKS)
        return (SEVERITY_ORDER[finding.severity], check, *place, finding.where, finding.message)

    return sorted(unique.values(), key=_key)
