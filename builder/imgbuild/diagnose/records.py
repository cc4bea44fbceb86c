"""Reads lines that contain other lines.

These are records in JSON and logfmt, as written by Docker or Kubernetes, and tracebacks whose line
ends were lost or escaped.
"""

# A separate module: a format.
from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

TEXTS = ("message", "msg", "log", "textPayload", "event")
TRACES = ("exc_info", "exc_text", "exception", "traceback", "stack_trace", "stack", "error")
LEVELS = ("level", "levelname", "severity", "lvl", "log.level")
TIMES = ("time", "ts", "timestamp", "@timestamp", "asctime", "stream")
FAILURES = ("error", "errors", "detail", "object")  # of a server's response
LOGFMT = re.compile(
    r"(?:(?:time|ts)=\S{1,40} )?level=\"?(?P<level>\w+)\"? (?:\w+=\S{1,80} )?"
    r"msg=(?P<text>\"(?:[^\"\\]|\\.)*\")"
)


# Tracebacks in one line.
HEADER = "Traceback (most recent call last)"
PLACE = r'File "[^"\n]{1,300}", line \d{1,7}, in (?:<?\w{1,80}>?)'
JOINED = re.compile(rf"{PLACE}.{{0,2000}}?{PLACE}")
BREAKS = re.compile(rf"\s+(?={PLACE})|(?<=\S)\s+(?=Traceback \(most recent call last\))")
FRAME = re.compile(rf"(?P<place>{PLACE})\s?(?P<code>.*)")
RAISED = re.compile(
    r"(?:^|\s)(?P<text>(?:[a-z_]\w{0,40}\.){0,6}[A-Z]\w{0,60}(?:Error|Exception)"
    r"(?:\(\w{1,60}\))?: .*)"
)


class LogRecord(msgspec.Struct, frozen=True):
    """The lines of a record, and its level.

    The level is "" if the record has none. A record that contains only data has no lines.
    """

    level: str
    lines: tuple[str, ...]


def unwrap_record(raw: str) -> LogRecord | None:
    """Return the record in a line.

    Return None if the line is not a record. The line is then read unchanged.
    """
    if match := LOGFMT.match(raw):
        return _record(match["level"], [_decode_text(match["text"])])
    if "(most recent call last):\\n" in raw and not raw.startswith("{"):
        return _record("", [raw.replace("\\n", "\n").replace('\\"', '"')])
    if 'File "' in raw and JOINED.search(raw):
        return LogRecord("", tuple(_split_traceback(raw)))
    if not raw.startswith("{") or not raw.rstrip().endswith("}"):
        return None
    value = _decode_text(raw)
    if not isinstance(value, dict):
        return None
    level = next((value[key] for key in LEVELS if key in value), "")
    texts = [value.get(key) for key in (*TEXTS, *TRACES)]
    traced = any(isinstance(text, str) and HEADER in text for text in texts)
    if not level and not traced and not any(key in value for key in TIMES):
        failed = any(key in value for key in FAILURES) or value.get("success") is False
        return None if failed else LogRecord("", ())
    return _record(level, texts) if any(isinstance(text, str) for text in texts) else None


def _split_traceback(raw: str) -> Iterator[str]:
    """Yield the lines of a traceback that is in one line."""
    for part in BREAKS.split(raw):
        frame = FRAME.match(part)
        text = frame["code"] if frame else part
        raised = RAISED.search(text)
        code = text[: raised.start()] if raised else text
        if frame:
            yield f"  {frame['place']}"
        if code.strip():
            yield f"    {code.strip()}" if frame else code.strip()
        if raised:
            yield raised["text"]


def _record(level: Any, texts: list[Any]) -> LogRecord:
    lines = [line for text in texts if isinstance(text, str) for line in text.splitlines()]
    return LogRecord(level.upper() if isinstance(level, str) else "", tuple(lines[:400]))


def _decode_text(text: str) -> Mapping[str, Any] | str | None:
    try:
        value: Mapping[str, Any] | str | None = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value
