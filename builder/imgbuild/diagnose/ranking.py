"""Ranks the reasons in a log: the first failure is before its consequences."""

# A separate module: compares the reasons of whole logs.
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from imgbuild.diagnose import process_reasons
from imgbuild.diagnose.exceptions import LoggedException, direct_causes
from imgbuild.diagnose.finding import LogFinding, LogFindings, Reason, ShownLine
from imgbuild.diagnose.log import LogEvent

MOST_FINDINGS = 6
MOST_CONSEQUENCES = 3
LEAST_QUOTED = 30  # characters
SHOWN = 240  # characters of a line
ROLES = {"cause": 0, "symptom": 1, "consequence": 2}
CONFIDENCE = {"high": 0, "medium": 1, "low": 2}
SOURCES = {"rule": 0, "facts": 1, "first": 2}


class RankedReason(NamedTuple):
    """A reason, with its event and the exceptions of its log, which identify the log.

    The rest of the log is not kept. `file` is the name of the log, if there are several.
    """

    exceptions: list[LoggedException]
    reason: Reason
    event: LogEvent
    file: str = ""


def rank_reasons(reasons: Iterable[RankedReason]) -> LogFindings:
    """Return the causes in logs, best first, and the failures that they explain."""
    causes: list[RankedReason] = []
    consequences: list[RankedReason] = []
    seen: set[str] = set()
    for each in sorted(reasons, key=_order):
        cause = each.reason.cause
        if cause in seen or (each.reason.source == "first" and causes):
            continue
        seen.add(cause)
        others = (*causes, *consequences)
        if any(_is_same_text(each.event.text, other.event.text) for other in others):
            continue
        explained = _is_consequence(each, causes)
        group, most = (consequences, MOST_CONSEQUENCES) if explained else (causes, MOST_FINDINGS)
        if len(group) < most:
            group.append(each)
    return LogFindings(
        findings=tuple(map(_finding, causes)), consequences=tuple(map(_finding, consequences))
    )


def _finding(ranked: RankedReason) -> LogFinding:
    reason = ranked.reason
    return LogFinding(
        code=reason.code,
        cause=reason.cause,
        lines=_lines(ranked),
        cure=reason.cure,
        confidence=reason.confidence,
    )


def _is_same_text(text: str, other: str) -> bool:
    """Whether two events are the same line, or one quotes the other."""
    short, long = sorted((text, other), key=len)
    return short == long or (len(short) >= LEAST_QUOTED and short in long)


def _is_consequence(ranked: RankedReason, causes: Sequence[RankedReason]) -> bool:
    """Whether one of the better `causes` explains an event.

    A timeout of a collective and a warning that the program survived explain only reports of low
    confidence, such as an exit code: what ended a process may have caused the timeout. A timeout is
    explained by a failure in the log of another process.
    """
    exceptions, reason, event = ranked.exceptions, ranked.reason, ranked.event
    explaining = [
        each
        for each in causes
        if each.reason.role == "cause"
        and not each.reason.weak
        and each.reason.code != process_reasons.TIMEOUT
    ]
    index = event.exception
    if reason.role == "consequence":
        stopped = any(each.reason.confidence != "low" and not each.reason.weak for each in causes)
        return bool(explaining) or (reason.confidence == "low" and stopped)
    of_log = [each for each in explaining if each.exceptions is exceptions]
    raised = {each.event.exception for each in of_log}
    if index is not None and any(each in raised for each in direct_causes(exceptions, index)):
        return True
    if _may_follow(ranked) and len(of_log) < len(explaining):
        return True
    return reason.follows and any(each.event.number < event.number for each in of_log)


def _may_follow(ranked: RankedReason) -> bool:
    """Whether a failure in the log of another process may have caused the event."""
    return ranked.reason.follows or ranked.reason.code == process_reasons.TIMEOUT


def _order(ranked: RankedReason) -> tuple[int, ...]:
    reason = ranked.reason
    return (
        ROLES[reason.role],
        reason.weak,
        bool(ranked.file) and _may_follow(ranked),
        CONFIDENCE[reason.confidence],
        SOURCES[reason.source],
        -(reason.priority // 25),
        ranked.event.number,
    )


def _lines(ranked: RankedReason) -> tuple[ShownLine, ...]:
    """Return the line of an event, preceded by the innermost frame outside site-packages."""
    event = ranked.event
    shown = []
    if event.exception is not None:
        frames = reversed(ranked.exceptions[event.exception].frames)
        frame = next((f for f in frames if not f.package and not f.is_standard), None)
        if frame is not None:
            text = f'File "{frame.file}", line {frame.line}, in {frame.name}'
            shown.append(ShownLine(frame.number, text, ranked.file))
    text = event.text.split("\n", 1)[0]
    text = text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
    shown.append(ShownLine(event.number, text, ranked.file))
    return tuple(shown)
