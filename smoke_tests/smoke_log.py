"""Finds the first real error of a log: the cause, not the last line that complains about it.

Comes in: what a case wrote to stdout and stderr. Goes out: one line that names the cause.

Rules, each from logs of these stacks:
- Python prints a chain of exceptions with the cause first, so a chain's first traceback counts.
- A worker's traceback, printed behind a prefix such as `(EngineCore pid=7) ERROR … [core.py:1]`,
  stands before the "see root cause above" of the process that waited for it.
- A traceback that somebody logged as a warning and survived is no cause, unless nothing else is.
- A compiler's `error:` stands before the CalledProcessError of the Python code that called it.
"""

from __future__ import annotations

import re

TRACEBACK = "Traceback (most recent call last):"
FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)')
EXCEPTION = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: (?P<text>.*))?$")
COMPILER = re.compile(
    r"^(?:\S+?:\d+(?::\d+)?: (?:fatal )?error: "  # gcc, clang
    r"|\S*(?:ld|collect2|gcc|cc|g\+\+|c\+\+|nvcc|ptxas|as)(?:\.\w+)?: .*"
    r"(?:error|cannot find|undefined reference|fatal)"
    r"|\S+\(\d+\): (?:catastrophic )?error\b"  # nvcc's front end
    r"|.*: undefined reference to )"
)
FATAL = re.compile(
    r"^(?:Fatal Python error: |.*\bSegmentation fault\b|.*\bBus error\b|.*\bIllegal instruction\b"
    r"|.*: symbol lookup error: |.*: error while loading shared libraries: |terminate called )"
)
ERROR_LINE = re.compile(r"^(?:\S+: )?(?:error|ERROR|Error)\b[: ]")
SURVIVED = re.compile(r"\b(?:WARN|WARNING|INFO|DEBUG)\b")
ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
LONGEST = 600


def first_error(log: str) -> str:
    """The line of `log` that names the cause; its last line if it holds no error; "" if empty."""
    lines = [ESCAPE.sub("", line.rstrip()) for line in log.splitlines()]
    survived = ""
    weak = ""
    number = 0
    while number < len(lines):
        line = lines[number]
        if TRACEBACK in line:
            message, end = _traceback(lines, number)
            prefix = line[: line.index(TRACEBACK)]
            before = lines[number - 1] if number else ""
            if not (SURVIVED.search(prefix) or (not prefix.strip() and SURVIVED.search(before))):
                return message[:LONGEST]
            survived = survived or message
            number = end
        elif COMPILER.match(line) or FATAL.match(line):
            return line.strip()[:LONGEST]
        elif not weak and ERROR_LINE.match(line):
            weak = line.strip()
        number += 1
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return (weak or survived or last)[:LONGEST]


def _traceback(lines: list[str], start: int) -> tuple[str, int]:
    """The exception of the traceback at `start`, with its innermost place, and its last line."""
    column = lines[start].index(TRACEBACK)
    place = ""
    number = start
    for number in range(start + 1, len(lines)):
        text = lines[number][column:]
        frame = FRAME.match(text)
        if frame and not frame["file"].startswith("<"):  # <string> and <frozen …> say nothing
            place = f" ({_short(frame['file'])}:{frame['line']})"
        exception = EXCEPTION.match(text)
        if exception:
            return exception[0] + place, number
    return lines[number][column:].strip() + place, number


def _short(path: str) -> str:
    """`path` without what all packages share."""
    return path.rpartition("/site-packages/")[2]
