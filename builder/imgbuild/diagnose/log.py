"""Parses a log: events in order, facts, reports of watchdogs and last lines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from imgbuild.diagnose.exceptions import LIKELY, ExceptionReader, LoggedException, TraceFrame
from imgbuild.diagnose.facts import LogFacts
from imgbuild.diagnose.paragraphs import MessageParagraph
from imgbuild.diagnose.prefixes import LogLine
from imgbuild.diagnose.watchdog import WatchdogReports

MOST_EVENTS = 8000
MOST_FACTS = 6000  # lines in which versions are looked for
# The end of a run, or of a process of it.
ENDED = re.compile(
    r"(?i:exit(?:ed)? ?(?:with|code|status).{0,20}[1-9]\d{0,2}\b)|exitcode ?: ?-?[1-9]|core"
    r" dumped|^\W*Killed\b|^(?:Failed to (?:download|build|fetch|resolve)|No solution found)\b|"
    r"SIG(?:KILL|SEGV|ABRT|BUS)|(?:^|\w\.py )FAILED\b|(?i:non-zero exit|Segmentation fault|"
    r"^error *:|\berror: )|^Aborted\b|"
    r"^aborting job|Fatal error in \w|^no such option: -|^\W{0,4}\u00d7 |make: \*\*\*|"
    r"ELIFECYCLE|HYDRA_FULL_ERROR=1|"
    r"^(?:\S+: )?(?:Test )?NCCL failure "
)
# The end of a run, or the start of a server, that earlier errors did not prevent.
COMPLETED = re.compile(
    r"'train_runtime': ?\d|(?i:\bjob \S{1,60} succeeded\b|"
    r"(?<!when )(?<!after )(?<!until )(?<!before )(?<!once )"
    r"\btraining (?:is |has )?(?:done|finished|completed?)\b(?! with)|"
    r"\bapplication startup complete\b|\bfinished successfully\b|\bState: COMPLETED\b|"
    r"\bserver is fired up and ready\b)"
)
# Each match of COMPLETED contains one of these.
COMPLETION = (
    *("train_runtime", "ucce", "UCCE", "raining", "RAINING", "omplete", "COMPLETE"),
    *("fired up", "FIRED UP"),
)
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


class ParsedLog(msgspec.Struct, kw_only=True):
    """A parsed log.

    `lines` is the number of lines that were read, and `number` the number of the last line.
    `cut_frames` are those of a traceback whose exception is not in the log. `note` means that the
    log consists of a few lines without log levels, such as a description that quotes an error.
    `completed` is the number of the last line that reports the end of a run or a started server.
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
    completed: int = 0

    @property
    def event_texts(self) -> list[str]:
        """The texts of all events, and the files of tracebacks."""
        files = {frame.file for exception in self.exceptions for frame in exception.frames}
        return [*(event.text for event in self.events), *sorted(files)]

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
        """Whether the log continues for long after a line, and does not end with a failure."""
        if self.number - number < LINES_AFTERWARDS:
            return False
        if self.cut is not None and self.number - self.cut.number < SHORT_LOG:
            return False
        return not any(
            ENDED.search(line.text) or line.level == "E" or LIKELY.match(line.text)
            for line in self.last
        )

    def is_survived(self, number: int, exception: LoggedException | None) -> bool:
        """Whether the program completed its work, or the server started, after a line.

        A traceback may be that of another process, so it is not survived.
        """
        return number < self.completed and not (exception is not None and exception.frames)

    @property
    def failed(self) -> bool:
        """Whether a traceback, a log level or the end of the log shows that a process failed."""
        return (
            any(
                exception.traced
                and not exception.is_warning
                and not self.is_handled(exception.number)
                for exception in self.exceptions
            )
            or any(event.level == "E" for event in self.events)
            or (self.cut is not None and self.number - self.cut.number < SHORT_LOG)
            or any(ENDED.search(line.text) for line in self.last if line.level not in ("I", "W"))
        )


def parse_log(lines: Iterable[LogLine]) -> ParsedLog:
    """Parse the log `lines`."""
    reader, facts = ExceptionReader(), LogFacts()
    watchdogs, paragraph = WatchdogReports(), MessageParagraph()
    events: list[LogEvent] = []
    shapes: Counter[str] = Counter()
    last: list[LogLine] = []
    count = number = fact_lines = completed = 0
    levels = False
    for line in _bounded_lines(lines):
        count, number = count + 1, line.number
        levels = levels or bool(line.level)
        completed = number if _is_completion(line.text) else completed
        before = len(reader.exceptions)
        traced = reader.read_line(line)
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
        note=_is_note(events, number, levels=levels),
        completed=completed,
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


def _is_completion(text: str) -> bool:
    """Whether a line reports the end of a run or a started server."""
    return any(map(text.__contains__, COMPLETION)) and COMPLETED.search(text[:400]) is not None


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
