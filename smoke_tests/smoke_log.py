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
from typing import NamedTuple

TRACEBACK = "Traceback (most recent call last):"
FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)')
NOWHERE = re.compile(r"^<|/importlib/__init__\.py$")  # frames that say nothing of the cause
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
CHAINED = re.compile(
    r"During handling of the above exception|The above exception was the direct cause"
)
SURVIVED = re.compile(r"\b(?:WARN|WARNING|INFO|DEBUG)\b")
ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
LONGEST = 600


class Found(NamedTuple):
    """A traceback (`start` to `end`, line numbers) or a line that tells of an error."""

    message: str
    start: int
    end: int
    traceback: bool


def first_error(log: str) -> str:
    """The line of `log` that names the cause; its last line if it holds no error; "" if empty."""
    lines = [ESCAPE.sub("", line.rstrip()) for line in log.splitlines()]
    chains = _chains(lines)
    for number, chain in enumerate(chains):
        if not _survived(lines, chain, is_last=number == len(chains) - 1):
            return chain.message[:LONGEST]
    weak = next((line.strip() for line in lines if ERROR_LINE.match(line)), "")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return (weak or (chains[0].message if chains else "") or last)[:LONGEST]


def _chains(lines: list[str]) -> list[Found]:
    """Every chain of tracebacks, by its first, and every compiler's and loader's error."""
    chains: list[Found] = []
    number = 0
    while number < len(lines):
        line = lines[number]
        if TRACEBACK in line:
            found = _traceback(lines, number)
            before = [text for text in lines[:number] if text.strip()][-1:]
            if chains and chains[-1].traceback and before and CHAINED.search(before[0]):
                found = found._replace(message=chains[-1].message, start=chains[-1].start)
                chains.pop()
            chains.append(found)
            number = found.end
        elif COMPILER.match(line) or FATAL.match(line):
            chains.append(Found(line.strip(), number, number, traceback=False))
        number += 1
    return chains


def _survived(lines: list[str], chain: Found, *, is_last: bool) -> bool:
    """Whether somebody logged this traceback as a mere warning and went on."""
    if not chain.traceback or is_last:
        return False
    prefix = lines[chain.start].partition(TRACEBACK)[0]
    before = lines[chain.start - 1] if chain.start else ""
    return bool(SURVIVED.search(prefix or before))


def _traceback(lines: list[str], start: int) -> Found:
    """The traceback at `start`: its exception, with its innermost place."""
    column = lines[start].index(TRACEBACK)
    place = ""
    number = start
    for number in range(start + 1, len(lines)):
        text = lines[number][column:]
        frame = FRAME.match(text)
        if frame and not NOWHERE.search(frame["file"]):
            place = f" ({_short(frame['file'])}:{frame['line']})"
        exception = EXCEPTION.match(text)
        if exception:
            return Found(exception[0] + place, start, number, traceback=True)
    return Found(lines[number][column:].strip() + place, start, number, traceback=True)


def _short(path: str) -> str:
    """`path` without what all packages share."""
    return path.rpartition("/site-packages/")[2]
