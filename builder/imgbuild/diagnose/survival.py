"""Reads what programs print about errors that they survive, and about their success."""

# A separate module: the statements of programs, which parsing does not depend on.
from __future__ import annotations

import bisect
import re

import msgspec

from imgbuild.diagnose.exceptions import HEADER, LIKELY
from imgbuild.diagnose.prefixes import LogLine

NEAR = 6  # lines between an error and a statement about it
REPORT_NEAR = 30  # lines between the announcement of a traceback and its header
MOST_STATEMENTS = 5000
MOST_SHAPES = 20000
MOST_LATER = 500  # lines after a traceback that are compared with those before it
REPEATED_LINES = 3  # after a traceback, such as those of steps, which other numbers distinguish
RECENT = 10  # numbered lines before the end of a program
DIGITS = re.compile(r"\d+(?:\.\d+)?(?:e-?\d+)?")
STEP = re.compile(r"[a-z]\S*\W{1,4}\d", re.IGNORECASE)
# The end of a run, or of a process of it.
ENDED = re.compile(
    r"(?i:exit(?:ed)? ?(?:with|code|status).{0,20}[1-9]\d{0,2}\b)|exitcode ?: ?-?[1-9]|core"
    r" dumped|^\W*Killed\b|^(?:Failed to (?:download|build|fetch|resolve)|No solution found)\b|"
    r"SIG(?:KILL|SEGV|ABRT|BUS)|(?:^|\w\.py )FAILED\b|(?i:non-zero exit|Segmentation fault|"
    r"^error *:|\berror: )|^Aborted\b|"
    r"^aborting job|Fatal error in \w|^no such option: -|^\W{0,4}\u00d7 |make: \*\*\*|"
    r"ELIFECYCLE|HYDRA_FULL_ERROR=1|"
    r"^(?:\S+: )?(?:Test )?NCCL failure |^(?:Current thread|Thread) 0x\w+ "
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
# A line at the end of a log that reports success, if UNSUCCESSFUL does not match it.
SUCCEEDED = re.compile(
    r"(?i)\b(?:(?:exit(?:ed)?|ended|finished|return(?:ed)?|status|code|rc)\b(?: with| code| status|"
    r" is|[ :=_]){0,6}0\b(?![.:]?\d)|success(?:fully)?\b|succeeded\b|"
    r"all (?:[\w-]+ ){1,4}(?:are |is )?(?:good|done|ok|passed|complete|completed|handled|finished|"
    r"downloaded|saved|loaded)\b|"
    r"0 errors\b|(?:\d+|tests) passed\b)|^OK\b|(?:训练|任务|构建|全部|运行)\S{0,6}(?:完成|成功)"
)
UNSUCCESSFUL = re.compile(
    r"(?i)\bnot\b|\bno\b|"
    r"(?<!x)(?<!expected )(?<!0 )(?<!0 tests )fail(?!ed\W{1,3}0\b|ures?\W{1,3}0\b)|"
    r"(?<!0 )error(?!s?\W{1,3}0\b)|unsuccessful|"
    r"\bif\b|\bwhen\b|^\W*Successfully (?:un)?installed\b|失败|错误(?!数?\W0)|未"
)
# The program says that it tries again after an error.
AGAIN = re.compile(
    r"(?i)\b(?:retrying|will (?:retry|be retried)|trying (?:again|a|another|the)|"
    r"restarting|resuming|requeued|running \w+ again)\b|重试|重新尝试"
)
# The program says that it continues without what failed.
CONTINUING = re.compile(
    r"(?i)\b(?:fall(?:s|ing)? back|fallback|checking for \S+ no|ignored\)|"
    r"skip(?:ped|ping)|continuing|ignoring|replaced by|recover(?:ed|ing)|"
    r"using (?:[\w-]+ ){1,4}instead|using (?:the|a) (?:\w+ )?(?:default|copy|cache)|reward 0|"
    r"running eagerly|(?:is|are) \w+ instead|as expected|as planned|on purpose|"
    r"is optional|optional (?:step|module|package)|loading without)|"
    r"改用|跳过|忽略|回退|使用默认|继续"
)
# A server was told to stop. Signals to its processes are then no failures.
STOPPED = re.compile(
    r"(?i)\b(?:application shutdown complete|shutting down|finished server process|"
    r"(?:stopped|stopping|ended|ending) (?:the )?(?:\w+ )?server|"
    r"server (?:was |is )?(?:stopped|ended))\b"
)
KILL = re.compile(r"\b(?:Killed|Terminated|SIGKILL|SIGTERM|signal 9|signal 15)\b")
# Python prints what follows for errors that do not end the program.
REPORTED = re.compile(
    r"Task exception was never retrieved|Exception in thread |Exception ignored in|"
    r"Exception occurred during processing of request|--- Logging error ---"
)


class Statements(msgspec.Struct):
    """The lines in which programs say that they continue after an error, or that they completed.

    `completed` is the last line that reports the end of a run or a started server. `retries`
    announce another attempt, and `continuations` that the program does without what failed.
    `logged` are headers of tracebacks that a logger printed. `stopped` are lines about the end of a
    server.
    """

    completed: int = 0
    retries: set[int] = set()
    continuations: set[int] = set()
    logged: set[int] = set()
    stopped: set[int] = set()
    _repeated: dict[str, list[tuple[int, int]]] = {}  # lines of a source, and the first such lines
    _shapes: dict[tuple[str, str], int] = {}
    _near: int = 0
    _announced: int = -REPORT_NEAR
    _level: str = ""

    def read_line(self, line: LogLine, *, traced: bool) -> None:
        """Read a line. `traced` means that it is part of a traceback."""
        number, text = line.number, line.text[:400]
        if any(map(text.__contains__, COMPLETION)) and COMPLETED.search(text):
            self.completed = number
        if line.hit or traced:
            self._near = number + NEAR
        if STOPPED.search(text):
            self.stopped.add(number)
        if not traced:
            self._read_shape(line)
        level, self._level = self._level, line.level
        if number > self._near or len(self.retries) + len(self.continuations) >= MOST_STATEMENTS:
            return
        if REPORTED.search(text):
            self._announced = number
        if HEADER.search(text):
            self._read_header(number, level or line.level)
        if CONTINUING.search(text):
            self.continuations.add(number)
        elif AGAIN.search(text):
            self.retries.add(number)

    def _read_header(self, number: int, level: str) -> None:
        """Read the header of a traceback, after a line with the log level `level`."""
        if number - self._announced < REPORT_NEAR:
            self.continuations.add(number)
        elif level:
            self.logged.add(number)

    def _read_shape(self, line: LogLine) -> None:
        """Read a line with a number, such as that of a step, which may repeat an earlier one."""
        if len(self._shapes) < MOST_SHAPES and STEP.search(line.text[:400]):
            shape = (line.source, DIGITS.sub("0", line.text[:400]))
            first = self._shapes.setdefault(shape, line.number)
            self._repeated.setdefault(line.source, []).append((line.number, first))

    @property
    def repeats(self) -> bool:
        """Whether processes repeat lines that differ only in numbers."""
        repeated = (first < n for lines in self._repeated.values() for n, first in lines)
        return sum(repeated) >= REPEATED_LINES

    def repeats_after(self, number: int, *sources: str, least: int = REPEATED_LINES) -> bool:
        """Whether processes repeat lines after line `number` that they printed before.

        Without `sources`, all of them are considered.
        """
        count = 0
        for source in sources or self._repeated:
            lines = self._repeated.get(source, [])
            start = bisect.bisect(lines, (number, number))
            later = lines[start : start + MOST_LATER]
            count += sum(first < number for _, first in later)
        return count >= least

    def resumes(self, number: int, *sources: str, recent: int = 1) -> bool:
        """Whether processes print the kinds of lines again that they repeated before a line.

        These are the kinds of the `recent` last repeated lines of each process. Without `sources`,
        all processes are considered.
        """
        before: set[int] = set()
        later: set[int] = set()
        for source in sources or self._repeated:
            lines = self._repeated.get(source, [])
            start = bisect.bisect(lines, (number, number))
            later.update(first for _, first in lines[start : start + MOST_LATER])
            earlier = [first for n, first in lines[max(start - RECENT, 0) : start] if first < n]
            before.update(earlier[-recent:])
        return before <= later and self.repeats_after(number, *sources)

    def announces_retry(self, number: int) -> bool:
        """Whether one of the lines after a line announces another attempt."""
        return any(n in self.retries for n in range(number + 1, number + NEAR))

    def continues(self, first: int, last: int, *, retries: bool = True) -> bool:
        """Whether a program says in one of the lines, or soon after them, that it continues.

        Without `retries`, announced attempts are not sufficient.
        """
        numbers = range(first, last + NEAR + 1)
        return any(n in self.continuations or (retries and n in self.retries) for n in numbers)

    def is_requested_stop(self, number: int, text: str) -> bool:
        """Whether a line reports a signal to a process of a server that was told to stop."""
        near = range(number - NEAR, number + 3)
        return KILL.search(text[:400]) is not None and not self.stopped.isdisjoint(near)

    def is_retry(self, number: int) -> bool:
        """Whether a line announces another attempt."""
        return number in self.retries


def is_success(text: str) -> bool:
    """Whether a line reports success."""
    return SUCCEEDED.search(text[:400]) is not None and UNSUCCESSFUL.search(text[:400]) is None


def is_failure(line: LogLine) -> bool:
    """Whether a line at the end of a log reports a failure."""
    return bool(ENDED.search(line.text) or line.level == "E" or LIKELY.match(line.text))
