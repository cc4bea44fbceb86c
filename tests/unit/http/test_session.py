"""Tests limits on the rate and duration of responses with a simulated clock."""

from __future__ import annotations

import io
import time

import pytest

from imgbuild.http import session


class Source(io.RawIOBase):
    """A server: each read advances the test's clock by `wait` seconds and returns `size` bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, wait: float, size: int) -> None:
        super().__init__()
        self.now, self.wait, self.size = 0.0, wait, size
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def readinto(self, buffer: object) -> int:
        self.now += self.wait
        return self.size


def waited(source: Source) -> float:
    """The seconds after which an endless response of `source` is aborted, at most two days."""
    reader = session._WatchedStream(source)
    while source.now < 48 * 3600:
        try:
            reader.readinto(bytearray(1))
        except TimeoutError:
            break
    return source.now


def test_download_from_a_fast_server_is_limited_to_six_hours(monkeypatch):
    first_read = 100
    assert waited(Source(monkeypatch, 100, 100 * session.RATE)) == 6 * 3600 + first_read


def test_download_from_a_slow_server_is_limited_to_one_minute(monkeypatch):
    assert waited(Source(monkeypatch, 10, 5 * session.RATE)) == 70
