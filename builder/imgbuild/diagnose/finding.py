"""Defines a finding in a log: its code, cause, lines and cure."""

from __future__ import annotations

from typing import Literal

import msgspec

from imgbuild.diagnose.rules import FindingConfidence, FindingRole


class ShownLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line in a log, with its number from 1.

    For flight-recorder dumps, it is a rank and its state. `file` is the log, if there are several.
    """

    number: int
    text: str
    file: str = ""


class LogFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A failure with its cause. `confidence` is "high", "medium" or "low"."""

    code: str
    cause: str
    lines: tuple[ShownLine, ...]
    cure: str
    confidence: FindingConfidence


class LogFindings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The causes in a log, best first, and failures that they caused.

    If the log contains only consequences, they are in `findings`.
    """

    findings: tuple[LogFinding, ...]
    consequences: tuple[LogFinding, ...] = ()


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
