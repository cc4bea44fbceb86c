"""Tests parsing header values, and that malformed headers raise no error."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

from hypothesis import given
from hypothesis import strategies as st

from imgbuild.http.headers import content_range, parse_integer, parse_retry_after
from tests.support.rows import each_row


@each_row(
    ("text", "expected"),
    [("0", 0), (" 12 ", 12), ("007", 7), ("", None), ("²", None), ("٣", None), ("-1", None),
     ("1e3", None), ("0x1", None), ("9" * 18, 10**18 - 1), ("9" * 19, None), ("9" * 5000, None)],
)  # fmt: skip
def test_numbers_in_http_headers_are_parsed(text: str, expected: int | None) -> None:
    assert parse_integer(text) == expected


@each_row(
    ("text", "expected"),
    [
        ("bytes 5-9/10", (5, 10)),
        ("bytes 5-9/*", (5, None)),
        ("bytes */10", (None, 10)),
        ("", (None, None)),
        ("bytes ²-9/10", (None, None)),
        ("bytes 0-0/" + "9" * 5000, (0, None)),
    ],
)
def test_content_ranges_are_parsed(text: str, expected: tuple[int | None, int | None]) -> None:
    assert content_range({"Content-Range": text}) == expected


def test_retry_after_header_is_parsed_as_seconds_or_date() -> None:
    assert parse_retry_after({"Retry-After": "7"}) == 7
    later = datetime.now(UTC) + timedelta(seconds=100)
    wait = parse_retry_after({"Retry-After": format_datetime(later, usegmt=True)})
    assert wait is not None
    assert 90 < wait <= 100
    earlier = datetime.now(UTC) - timedelta(days=1)
    assert parse_retry_after({"Retry-After": format_datetime(earlier, usegmt=True)}) == 0
    assert parse_retry_after({}) is None


@each_row(
    "text",
    ["soon", "²", "-1", "1.5", "9" * 5000, "Mon, 99 Jan 2026", "Mon, 01 Jan 0001 00:00:00 +2359"],
)
def test_invalid_value_of_the_retry_after_header_is_ignored(text: str) -> None:
    assert parse_retry_after({"Retry-After": text}) in (None, 0)


@given(st.text())
def test_malformed_http_header_is_not_an_error(text: str) -> None:
    for name in ("Content-Range", "Retry-After"):
        content_range({name: text})
        parse_retry_after({name: text})
    content_range({"Content-Range": f"bytes {text}-{text}/{text}"})
