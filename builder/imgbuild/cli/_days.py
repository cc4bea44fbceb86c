"""Parses options whose value is a day."""

from __future__ import annotations

import datetime

from imgbuild.errors import InputError


def parse_day(text: str | None) -> datetime.date | None:
    """Parse the value of `--as-of`. Raises InputError if it is not a day."""
    if text is None:
        return None
    try:
        return datetime.date.fromisoformat(text)
    except ValueError as error:
        message = f"invalid date for --as-of: {text} (expected YYYY-MM-DD)"
        raise InputError(message, hint="specify a date such as 2025-06-20") from error
