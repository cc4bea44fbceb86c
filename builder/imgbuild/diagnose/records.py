"""Reads log records in JSON and logfmt, as written by Docker or Kubernetes (separate: a format)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

TEXTS = ("message", "msg", "log", "textPayload", "event")
TRACES = ("exc_info", "exception", "traceback", "stack_trace", "stack", "error")
LEVELS = ("level", "levelname", "severity", "lvl", "log.level")
TIMES = ("time", "ts", "timestamp", "@timestamp", "asctime", "stream")
FAILURES = ("error", "errors", "detail", "object")  # of a server's response
LOGFMT = re.compile(
    r"(?:(?:time|ts)=\S{1,40} )?level=\"?(?P<level>\w+)\"? (?:\w+=\S{1,80} )?"
    r"msg=(?P<text>\"(?:[^\"\\]|\\.)*\")"
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
    if not raw.startswith("{") or not raw.rstrip().endswith("}"):
        return None
    value = _decode_text(raw)
    if not isinstance(value, dict):
        return None
    level = next((value[key] for key in LEVELS if key in value), "")
    if not level and not any(key in value for key in TIMES):
        failed = any(key in value for key in FAILURES) or value.get("success") is False
        return None if failed else LogRecord("", ())
    texts = [value.get(key) for key in (*TEXTS, *TRACES)]
    return _record(level, texts) if any(isinstance(text, str) for text in texts) else None


def _record(level: Any, texts: list[Any]) -> LogRecord:
    lines = [line for text in texts if isinstance(text, str) for line in text.splitlines()]
    return LogRecord(level.upper() if isinstance(level, str) else "", tuple(lines[:400]))


def _decode_text(text: str) -> Mapping[str, Any] | str | None:
    try:
        value: Mapping[str, Any] | str | None = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value
