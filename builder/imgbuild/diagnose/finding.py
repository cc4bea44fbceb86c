"""Defines a finding in a log: its code, cause, lines and cure."""

from __future__ import annotations

from typing import Literal

import msgspec

from imgbuild.diagnose.rules import FindingConfidence, FindingRole


class ShownLine(msgspec.Struct, frozen=True):
    """A line in a log, with its number from 1.

    For flight-recorder dumps, it is a rank and its state.
    """

    number: int
    text: str


class LogFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A cause of a failure. `confidence` is "high", "medium" or "low".

    The `role` of a failure that another one caused is "consequence".
    """

    code: str
    cause: str
    lines: tuple[ShownLine, ...]
    cure: str
    confidence: FindingConfidence
    role: FindingRole = "cause"


class LogFindings(msgspec.Struct, frozen=True, kw_only=True):
    """The findings in a log, best first."""

    findings: tuple[LogFinding, ...]


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """A cause of one event, before it is ranked.

    `source` is the rule of the cause, or the facts from which it was derived. `follows` means that
    the event is often a consequence of a failure in another process.
    """

    code: str
    cause: str
    cure: str
    confidence: FindingConfidence = "medium"
    role: FindingRole = "cause"
    source: Literal["rule", "facts", "first"] = "facts"
    failed: bool = False
    priority: int = 0
    follows: bool = False
    weak: bool = False  # from a warning that the program survived
