"""Parses HTTP response headers. Malformed values are returned as None."""

from __future__ import annotations

import datetime
import email.utils
import re
from collections.abc import Mapping


def parse_integer(text: str) -> int | None:
    """Parse an integer of at most 18 digits. Returns None for other texts."""
    match = re.fullmatch(r"\s*([0-9]{1,18})\s*", text)
    return int(match[1]) if match else None


def content_range(headers: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Return the first byte and the total size in Content-Range, or None for missing values."""
    text = headers.get("Content-Range", "")
    match = re.fullmatch(r"\s*bytes\s+(?:([0-9]+)-[0-9]+|\*)/([0-9]+|\*)\s*", text)
    if match is None:
        return None, None
    return parse_integer(match[1] or ""), parse_integer(match[2])


def parse_retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the delay in Retry-After (seconds or a date) in seconds, or None if it is invalid."""
    text = headers.get("Retry-After", "").strip()
    seconds = parse_integer(text)
    if seconds is not None:
        return float(seconds)
    try:
        moment = email.utils.parsedate_to_datetime(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=datetime.UTC)
        return max(0.0, (moment - datetime.datetime.now(datetime.UTC)).total_seconds())
    except (ValueError, OverflowError):
        return None
