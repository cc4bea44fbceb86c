"""Finds the first error in a log, because it is the cause and later errors are consequences.

The rules are derived from real logs:
- Python prints a chain of exceptions with the cause first, so a chain's first traceback counts.
- A worker's traceback, printed after a prefix such as `(EngineCore pid=7) ERROR … [core.py:1]`,
  comes before the "see root cause above" of the process that waited for it.
- A traceback logged as a warning is not the cause, unless there is no other: the process continued
  after it.
- A compiler's `error:` comes before the CalledProcessError of the Python code that called it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

TRACEBACK = "Traceback (most recent call last):"
FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)')
NOWHERE = re.compile(r"^<|/importlib/__init__\.py$")  # frames that do not help
EXCEPTION = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?::(?: (?P<text>.*))?)?$")
# torchrun's message for a failed child, which has reported its error itself.
WRAPPER = re.compile(r"(?:^|\.)ChildFailedError\b")
COMPILER = re.compile(
    r"^(?:\S+?:\d+(?::\d+)?: (?:fatal )?error: "  # gcc, clang
    r"|(?:\S*/)?(?:[\w-]+-)?(?:ld|collect2|gcc|cc|g\+\+|c\+\+|nvcc|ptxas|as)(?:[.-][\w.]+)?: .*"
    r"(?:error|cannot find|undefined reference|fatal)"
    r"|(?:nvcc|ptxas) (?:error|fatal) *: "
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
SURVIVED = re.compile(r"\b(?:WARN|WARNING|INFO|DEBUG)\b")  # before a traceback, on its line
WARNED = re.compile(r"\bWARN(?:ING)?\b")  # on the line before a traceback without a prefix
GROUP = "Exception Group Traceback"  # its exceptions follow, each with a traceback of its own
OPEN = re.compile(r":$|\b\d+ validation errors? for \S+$")  # the message is on the next line
FIELD = re.compile(r"[\w.\[\]]+")  # pydantic names a field on a line of its own
FOLLOWING = 4  # lines
ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
LONGEST = 600
# A package reports that it continues without an optional part.
LEFT_OUT = re.compile(r"\b(?:skipping|incompatible|falling back|not compiled)\b", re.IGNORECASE)
# The process and the time before a line, which differ in each run.
PREFIX = re.compile(
    r"^(?:\([^()]* pid=\d+[^()]*\) *)?(?:[A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d *"
    r"|\[?\d{4}-\d\d-\d\d[ T][\d:.,]+\]? *)?"
)
NOTES = 10  # lines of one log
NOTE = 200  # characters


class Found(NamedTuple):
    """A traceback (`start` to `end`, line numbers) or a line with an error."""

    message: str
    start: int
    end: int
    traceback: bool


def first_error(log: str) -> str:
    """Return the line of `log` with the cause, or else the last line, or "" if it is empty."""
    lines = _lines(log)
    survived = next((chain.message for chain in _chains(lines)), "")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return cause(log) or (survived or last)[:LONGEST]


def cause(log: str) -> str:
    """Return the line of `log` with the cause, or "" if the program continued after every error."""
    lines = _lines(log)
    chains = _chains(lines)
    survived = [chain for chain in chains if _survived(lines, chain)]
    others = [chain for chain in chains if chain not in survived]
    for chain in others:
        if not WRAPPER.search(chain.message):
            return chain.message[:LONGEST]
    weak = next((line.strip() for line in lines if ERROR_LINE.match(line)), "")
    # An error in a child may follow an unrelated warning.
    messages = [chain.message for chain in (*survived[-1:], *others)] if others else [""]
    return (weak or messages[0])[:LONGEST]


def _lines(log: str) -> list[str]:
    return [ESCAPE.sub("", line.rstrip()) for line in log.splitlines()]


def _chains(lines: list[str]) -> list[Found]:
    """Return the first traceback of every chain, and every error of a compiler or loader."""
    chains: list[Found] = []
    number = 0
    while number < len(lines):
        line = lines[number]
        if TRACEBACK in line and GROUP not in line:
            chain = _traceback(lines, number)
            before = [text for text in lines[:number] if text.strip()][-1:]
            if chains and chains[-1].traceback and before and CHAINED.search(before[0]):
                chain = chain._replace(message=chains[-1].message, start=chains[-1].start)
                chains.pop()
            chains.append(chain)
            number = chain.end
        elif GROUP in line and not any(TRACEBACK in text for text in lines[number + 1 :]):
            chains.append(_group(lines, number))
        elif COMPILER.match(line) or FATAL.match(line):
            chains.append(Found(line.strip(), number, number, traceback=False))
        number += 1
    return chains


def _survived(lines: list[str], chain: Found) -> bool:
    if not chain.traceback or not any(line.strip() for line in lines[chain.end + 1 :]):
        return False
    prefix = lines[chain.start].partition(TRACEBACK)[0]
    if prefix.strip():
        return bool(SURVIVED.search(prefix))
    return chain.start > 0 and bool(WARNED.search(lines[chain.start - 1]))


def _traceback(lines: list[str], start: int) -> Found:
    """Return the exception and innermost location of the traceback at `start`."""
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
            message, end = _message(lines, number, column, exception)
            return Found(message + place, start, end, traceback=True)
    return Found(lines[number][column:].strip() + place, start, number, traceback=True)


def _group(lines: list[str], start: int) -> Found:
    """Return the last exception of a group whose exceptions have no tracebacks."""
    texts = [text.strip(" |+-") for text in lines[start + 1 :]]
    messages = [text for text in texts if (match := EXCEPTION.match(text)) and match["text"]]
    return Found((messages or ["an exception group"])[-1], start, len(lines), traceback=False)


def _message(
    lines: list[str], number: int, column: int, exception: re.Match[str]
) -> tuple[str, int]:
    """Return the message of an exception, which can continue on next lines, and its last line."""
    message, end = exception[0], number
    indented = bool(exception["text"]) and not message[-1:].isalnum()
    for after in range(number + 1, min(number + FOLLOWING, len(lines))):
        text = lines[after][column:]
        field = end > number and FIELD.fullmatch(lines[end][column:])
        if not (field or (end == number and OPEN.search(message))) or TRACEBACK in text:
            break
        if not re.search(r"\w", text):  # a ruler
            continue
        if indented and not text[:1].isspace():
            break
        message, end = f"{message} {text.strip()}", after
    return message, end


def _short(path: str) -> str:
    return path.rpartition("/site-packages/")[2]


def notes(log: str) -> list[str]:
    """Return the distinct lines about packages that skip, replace or lack features."""
    rows = (PREFIX.sub("", ESCAPE.sub("", row.strip())) for row in log.splitlines())
    return list(dict.fromkeys(row[:NOTE] for row in rows if LEFT_OUT.search(row)))[:NOTES]
