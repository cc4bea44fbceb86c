"""Findings: one shape for audit, smoke and diagnose."""

from __future__ import annotations

import enum

import msgspec


class Severity(enum.StrEnum):
    """How bad a finding is: an error fails the verb, a warning and a note do not."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One result: what was found, where, how bad it is, what to do."""

    check: str
    severity: Severity
    message: str
    where: str = ""
    remedy: str = ""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One test of a tier: how it ended and how long it took (seconds)."""

    name: str
    outcome: str  # "passed", "failed" or "skipped"
    seconds: float
    message: str = ""
    log: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All that a verb found out about one target on one architecture."""

    target: str
    arch: str
    tier: str = ""
    findings: tuple[Finding, ...] = ()
    cases: tuple[Case, ...] = ()

    @property
    def ok(self) -> bool:
        """No error among the findings, no failed case, and something was checked."""
        return not any(finding.severity is Severity.ERROR for finding in self.findings) and not any(
            case.outcome == "failed" for case in self.cases
        )
