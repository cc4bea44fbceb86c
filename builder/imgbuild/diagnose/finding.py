"""Defines a finding of a log: its code, cause, lines and cure."""

from __future__ import annotations

from typing import Literal

import msgspec

from imgbuild.diagnose.rules import FindingConfidence, FindingRole


class ShownLine(msgspec.Struct, frozen=True):
    """A line in the log, by its number from 1; for flight-recorder dumps a rank and its state."""

    number: int
    text: str


class LogFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A cause of a failure. `confidence` is high, medium or low."""

    code: str
    cause: str
    lines: tuple[ShownLine, ...]
    cure: str
    confidence: FindingConfidence


class LogFindings(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of a log, the best first."""

    findings: tuple[LogFinding, ...]


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """A cause for one event, before it is ranked.

    `source` is its rule or the facts behind it. With `follows`, the event is often a consequence of
    a failure in another process.
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
