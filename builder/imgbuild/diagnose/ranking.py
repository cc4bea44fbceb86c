"""Ranks the reasons in a log: the first failure is before its consequences."""

# A separate module: compares the reasons of a whole log.
from __future__ import annotations

from collections.abc import Iterable, Sequence

from imgbuild.diagnose import process_reasons
from imgbuild.diagnose.exceptions import direct_causes
from imgbuild.diagnose.finding import LogFinding, LogFindings, Reason, ShownLine
from imgbuild.diagnose.log import LogEvent, ParsedLog

MOST_FINDINGS = 6
MOST_CONSEQUENCES = 3
LEAST_QUOTED = 30  # characters
SHOWN = 240  # characters of a line
ROLES = {"cause": 0, "consequence": 1, "symptom": 2}
CONFIDENCE = {"high": 0, "medium": 1, "low": 2}
SOURCES = {"rule": 0, "facts": 1, "first": 2}


def rank_reasons(log: ParsedLog, reasons: Iterable[tuple[Reason, LogEvent]]) -> LogFindings:
    """Return the causes in a log, best first, and the failures that they explain."""
    causes: list[tuple[Reason, LogEvent]] = []
    consequences: list[tuple[Reason, LogEvent]] = []
    seen: set[str] = set()
    for reason, event in sorted(reasons, key=lambda pair: _order(*pair)):
        if reason.cause in seen or (reason.source == "first" and causes):
            continue
        seen.add(reason.cause)
        if any(_is_same_text(event.text, other.text) for _, other in (*causes, *consequences)):
            continue
        explained = _is_consequence(log, reason, event, causes)
        group, most = (consequences, MOST_CONSEQUENCES) if explained else (causes, MOST_FINDINGS)
        if len(group) < most:
            group.append((reason, event))
    return LogFindings(
        findings=tuple(_finding(log, *pair) for pair in causes),
        consequences=tuple(_finding(log, *pair) for pair in consequences),
    )


def _finding(log: ParsedLog, reason: Reason, event: LogEvent) -> LogFinding:
    return LogFinding(
        code=reason.code,
        cause=reason.cause,
        lines=_lines(log, event),
        cure=reason.cure,
        confidence=reason.confidence,
    )


def _is_same_text(text: str, other: str) -> bool:
    """Whether two events are the same line, or one quotes the other."""
    short, long = sorted((text, other), key=len)
    return short == long or (len(short) >= LEAST_QUOTED and short in long)


def _is_consequence(
    log: ParsedLog,
    reason: Reason,
    event: LogEvent,
    causes: Sequence[tuple[Reason, LogEvent]],
) -> bool:
    """Whether one of the better `causes` in the log explains an event.

    A timeout of a collective and a warning that the program survived explain only reports of low
    confidence, such as an exit code: what ended a process may have caused the timeout.
    """
    explaining = [
        (each, its_event)
        for each, its_event in causes
        if each.role == "cause" and not each.weak and each.code != process_reasons.TIMEOUT
    ]
    index = event.exception
    if reason.role == "consequence":
        stopped = any(each.confidence != "low" and not each.weak for each, _ in causes)
        return bool(explaining) or (reason.confidence == "low" and stopped)
    raised = {its_event.exception for _, its_event in explaining}
    if index is not None and any(each in raised for each in direct_causes(log.exceptions, index)):
        return True
    return reason.follows and any(its_event.number < event.number for _, its_event in explaining)


def _order(reason: Reason, event: LogEvent) -> tuple[int, ...]:
    return (
        ROLES[reason.role],
        reason.weak,
        CONFIDENCE[reason.confidence],
        SOURCES[reason.source],
        -(reason.priority // 25),
        event.number,
    )


def _lines(log: ParsedLog, event: LogEvent) -> tuple[ShownLine, ...]:
    """Return the line of an event, preceded by the innermost frame outside site-packages."""
    shown = []
    if event.exception is not None:
        frames = reversed(log.exceptions[event.exception].frames)
        frame = next((f for f in frames if not f.package and not f.is_standard), None)
        if frame is not None:
            text = f'File "{frame.file}", line {frame.line}, in {frame.name}'
            shown.append(ShownLine(frame.number, text))
    text = event.text.split("\n", 1)[0]
    shown.append(ShownLine(event.number, text if len(text) <= SHOWN else f"{text[:SHOWN]}…"))
    return tuple(shown)
