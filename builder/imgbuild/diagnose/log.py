"""Parses a log: events in order, facts, reports of watchdogs and last lines."""

from __future__ import annotations

import bisect
import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from imgbuild.diagnose import survival
from imgbuild.diagnose.exceptions import (
    ExceptionReader,
    LoggedException,
    TraceFrame,
    root_causes,
)
from imgbuild.diagnose.facts import LogFacts
from imgbuild.diagnose.paragraphs import MessageParagraph
from imgbuild.diagnose.prefixes import LogLine
from imgbuild.diagnose.survival import Statements
from imgbuild.diagnose.watchdog import WatchdogReports

MOST_EVENTS = 8000
MOST_FACTS = 6000  # lines in which versions are looked for
LINES_AFTERWARDS = 150  # lines after an exception without another failure: it was handled
LONG_TEXT = 600  # characters; `MOST_LONG` longer lines are examined whole, then their ends only
MOST_LONG = 500
LONGEST_MESSAGE = 2  # lines
# A line of a script, a Dockerfile or a YAML file.
SETTING = re.compile(
    r"(?:export|ENV|FROM|RUN|docker run|vllm serve) |#|- [\w'\"-]|os\.environ\[|"
    r"VLLM_[A-Z0-9_]+[=:]|"
    r"(?!\w*(?:error|exception|warning|cause|hint))[a-z_][\w-]{0,40}:(?: |$)"
)
SHORT_LOG = 30  # lines
DETAILS = 3  # lines after an error that may describe it
SHAPE = re.compile(r"\d+")
# A source line below a frame with an unformatted message; the exception has the formatted one.
UNFILLED = re.compile(r"(?:raise|assert|warnings\.warn|logger\.\w+)\b|.{0,80}\bf?['\"].*\{")


class LogEvent(msgspec.Struct, kw_only=True):
    """A line or an exception that is matched against rules."""

    number: int
    source: str
    text: str
    level: str = ""
    exception: int | None = None


class ParsedLog(msgspec.Struct, kw_only=True, dict=True):
    """A parsed log.

    `lines` is the number of lines that were read, and `number` the number of the last line.
    `cut_frames` are those of a traceback whose exception is not in the log. `note` means that the
    log consists of a few lines without log levels, such as a description that quotes an error.
    """

    events: list[LogEvent]
    exceptions: list[LoggedException]
    facts: LogFacts
    watchdogs: WatchdogReports
    last: list[LogLine]
    lines: int
    number: int
    cut_frames: list[TraceFrame] = []
    note: bool = False
    statements: Statements

    @property
    def event_texts(self) -> list[str]:
        """The texts of all events, and the files of tracebacks."""
        files = {frame.file for exception in self.exceptions for frame in exception.frames}
        return [*(event.text for event in self.events), *sorted(files)]

    @functools.cached_property
    def _uncaught(self) -> frozenset[int]:
        """The lines of exceptions that ended a program which was not started again."""
        return frozenset(
            each.number
            for each in self.exceptions
            if each.is_uncaught and not self._is_restarted(each)
        )

    def _is_restarted(self, exception: LoggedException) -> bool:
        """Whether a program is started again after an exception that ended it."""
        last = exception.number + exception.message.count("\n")
        if self.statements.resumes(last, exception.source, recent=survival.RECENT):
            return True
        return last < max((self.statements.completed, *self._successes)) and (
            self.statements.announces_retry(last) or self.statements.repeats_after(last, least=2)
        )

    @property
    def cut(self) -> TraceFrame | None:
        """The innermost frame of a traceback whose exception is not in the log."""
        return self.cut_frames[-1] if self.cut_frames else None

    @property
    def last_lines(self) -> list[str]:
        """The texts of the last three lines."""
        return [line.text for line in self.last[-3:]]

    @property
    def script(self) -> bool:
        """Whether the text is a script or configuration, according to most of its lines."""
        lines = [line.text.lstrip() for line in self.last if line.text.strip()]
        return 2 * sum(SETTING.match(line) is not None for line in lines) >= len(lines)

    @property
    def is_excerpt(self) -> bool:
        """Whether the log is an excerpt that shows only its failure."""
        return self.number <= SHORT_LOG

    @property
    def is_single_message(self) -> bool:
        """Whether the log is only one message."""
        return self.number <= LONGEST_MESSAGE

    def is_handled(self, number: int) -> bool:
        """Whether the log continues for long after a line, and does not end with a failure.

        Unlike `is_survived`, this depends only on the length and the end of the log, and on whether
        the exception ended the main function of a program.
        """
        if self.number - number < LINES_AFTERWARDS or number in self._uncaught:
            return False
        if self.cut is not None and self.number - self.cut.number < SHORT_LOG:
            return False
        return not any(map(survival.is_failure, self.last))

    def is_harmless(self, event: LogEvent) -> bool:
        """Whether the program continued after an event, or was told to stop."""
        exception = None if event.exception is None else self.exceptions[event.exception]
        return self.is_survived(event.number, exception, event.level) or (
            exception is None and self.statements.is_requested_stop(event.number, event.text)
        )

    def is_survived(self, number: int, exception: LoggedException | None, level: str = "") -> bool:
        """Whether the program completed its work, or the server started, after a line.

        A traceback may be that of another process, so it is survived only if the program says so,
        or repeats lines that it printed before. `level` is that of the line.
        """
        if exception is not None and exception.frames:
            return self._survived_tracebacks[exception.number]
        if number < max(self.statements.completed, self.succeeded):
            return True
        ranges = self._survived_ranges
        start = bisect.bisect(ranges, (number, self.number))
        if any(number <= last + DETAILS for _, last in ranges[max(start - 3, 0) : start]):
            return True
        minor = level in ("I", "W") or (exception is not None and not exception.traced)
        return self._ends_without_failure and (
            (number < self.number and self.statements.continues(number - 1, number, retries=False))
            or self.statements.resumes(number)
            or (
                minor
                and not self.note
                and not self.statements.is_retry(number)
                and self.number - number >= DETAILS
            )
        )

    @functools.cached_property
    def _survived_tracebacks(self) -> dict[int, bool]:
        """Whether the program continues after each traceback, by the line of its exception."""
        return self._survival[0]

    @functools.cached_property
    def _survived_ranges(self) -> list[tuple[int, int]]:
        """The first and last lines of the tracebacks after which the program continues."""
        return [
            (each.frames[0].number, each.number)
            for each in self.exceptions
            if each.frames and self._survived_tracebacks[each.number]
        ]

    @functools.cached_property
    def _survival(self) -> tuple[dict[int, bool], list[int]]:
        """Return which tracebacks are survived, and the lines of failures at the end."""
        failures = self._last_failures
        survived: dict[int, bool] = {}
        following: set[int | None] = set()
        after = None  # the exception that follows
        for index in range(len(self.exceptions) - 1, -1, -1):
            each = self.exceptions[index]
            if not each.frames:
                continue
            first = each.frames[0].number
            last = each.number + each.message.count("\n")
            wraps = after is not None and 0 <= after.frames[0].number - last <= survival.NEAR
            value = (
                index in following
                or (wraps and after is not None and survived[after.number])
                or (
                    all(number <= last for number in failures)
                    and last < self.number
                    and self._continues_after(index, first, last)
                )
            )
            survived[each.number] = value
            if value:
                following |= {each.cause, each.context}
                failures = [n for n in failures if not first - survival.NEAR <= n <= last]
            after = each
        return survived, failures

    def _continues_after(self, index: int, first: int, last: int) -> bool:
        """Whether the lines around a traceback show that the program continues after it."""
        if self.exceptions[index].is_uncaught:
            return self._is_restarted(self.exceptions[index])
        chain = (index, *root_causes(self.exceptions, index))
        headers = [self.exceptions[each].frames[:1] for each in chain]
        logged = any(
            frame.number - 1 in self.statements.logged for frames in headers for frame in frames
        )
        return (
            self.statements.continues(first - 2, first - survival.NEAR)
            or self.statements.continues(last, last)
            or self.statements.repeats_after(last, self.exceptions[index].source)
            or (
                last < max((self.statements.completed, *self._successes))
                and (logged or self.statements.repeats_after(last, least=2))
            )
        )

    @functools.cached_property
    def _successes(self) -> list[int]:
        """The last lines that report success."""
        return [line.number for line in self.last if survival.is_success(line.text)]

    @functools.cached_property
    def _last_failures(self) -> list[int]:
        """The last lines that report failures, after the last line that reports success."""
        if self.last and self.statements.is_retry(self.last[-1].number):
            return [self.number + 1]
        failures = []
        for line in reversed(self.last):
            number = line.number
            if number in (self.statements.completed, *self._successes):
                break
            if self.statements.continues(number, number - survival.NEAR):
                break
            if survival.is_failure(line) and not (
                self.statements.is_requested_stop(number, line.text)
                or self.statements.resumes(number)
            ):
                failures.append(number)
        return failures

    @functools.cached_property
    def succeeded(self) -> int:
        """The number of the line at the end of the log that reports success, or 0."""
        return max(self._successes, default=0) if self._ends_without_failure else 0

    @property
    def _ends_without_failure(self) -> bool:
        """Whether the log ends neither with a failure nor with an announced attempt."""
        return not self._survival[1]

    @property
    def failed(self) -> bool:
        """Whether a traceback, a log level or the end of the log shows that a process failed."""
        return (
            any(
                exception.traced
                and not exception.is_warning
                and not self.is_handled(exception.number)
                and not self.is_survived(exception.number, exception)
                for exception in self.exceptions
            )
            or any(
                event.level == "E" and not self.is_survived(event.number, None)
                for event in self.events
            )
            or (self.cut is not None and self.number - self.cut.number < SHORT_LOG)
            or any(
                survival.ENDED.search(line.text)
                and not self.is_survived(line.number, None)
                and not self.statements.is_requested_stop(line.number, line.text)
                for line in self.last
                if line.level not in ("I", "W")
            )
        )


def parse_log(lines: Iterable[LogLine]) -> ParsedLog:
    """Parse the log `lines`."""
    reader, facts, statements = ExceptionReader(), LogFacts(), Statements()
    watchdogs, paragraph = WatchdogReports(), MessageParagraph()
    events: list[LogEvent] = []
    shapes: Counter[str] = Counter()
    last: list[LogLine] = []
    count = number = fact_lines = 0
    levels = False
    for line in _bounded_lines(lines):
        count, number = count + 1, line.number
        levels = levels or bool(line.level)
        before = len(reader.exceptions)
        traced = reader.read_line(line)
        statements.read_line(line, traced=traced)
        if line.text.strip():
            last.append(line)
            del last[:-25]
        if paragraph.continues(line.text, len(events[-1].text) if events else 0):
            events[-1].text += f" {line.text.strip()}"
            continue
        if (line.hit or count < 3000) and fact_lines < MOST_FACTS:
            fact_lines += 1
            facts.read_line(line)
        if (line.hit or watchdogs.waiting is not None) and not traced:
            watchdogs.read_line(line)
        if len(reader.exceptions) > before:
            exception = reader.exceptions[-1]
            events.append(
                LogEvent(
                    number=line.number,
                    source=line.source,
                    text="",
                    level=exception.level,
                    exception=before,
                )
            )
        code = reader.open(line) and UNFILLED.match(line.text.strip())
        if line.hit and not traced and not code:
            shape = SHAPE.sub("0", line.text)
            shapes[shape] += 1
            if shapes[shape] <= 3 and len(events) < MOST_EVENTS:
                events.append(
                    LogEvent(
                        number=line.number, source=line.source, text=line.text, level=line.level
                    )
                )
                paragraph.starts(line.text)
    _complete_events(events, reader)
    return ParsedLog(
        events=events,
        exceptions=reader.exceptions,
        facts=facts,
        watchdogs=watchdogs,
        last=last,
        lines=count,
        number=number,
        cut_frames=reader.cut_frames,
        note=_is_note(events, number, levels=levels or statements.repeats),
        statements=statements,
    )


def _bounded_lines(lines: Iterable[LogLine]) -> Iterator[LogLine]:
    """Yield `lines`, those after many long lines with only the start and the end of their texts."""
    count = 0
    for line in lines:
        count += len(line.text) > LONG_TEXT
        if len(line.text) <= LONG_TEXT or count <= MOST_LONG:
            yield line
        else:
            text = f"{line.text[: LONG_TEXT // 2]} … {line.text[-LONG_TEXT // 2 :]}"
            yield msgspec.structs.replace(line, text=text)


def _is_note(events: list[LogEvent], number: int, *, levels: bool) -> bool:
    """Whether the log is a note, whose errors have no level.

    `levels` means that the lines have log levels.
    """
    if number > SHORT_LOG or levels:
        return False
    for event in events:
        event.level = ""
    return True


def _complete_events(events: list[LogEvent], reader: ExceptionReader) -> None:
    """Add exceptions that the end of the log truncates, and the texts of all exceptions."""
    before = len(reader.exceptions)
    reader.close()
    for index in range(before, len(reader.exceptions)):
        cut = reader.exceptions[index]
        events.append(LogEvent(number=cut.number, source=cut.source, text="", exception=index))
    for event in events:
        if event.exception is not None:
            event.text = reader.exceptions[event.exception].text
