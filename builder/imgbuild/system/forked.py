"""Runs a function in forked copies of this process, which contain all objects."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def processor_count() -> int:
    """Return the number of processors that this process can use."""
    return len(os.sched_getaffinity(0))


def copy_limit() -> int:
    """Return how many forked processes can compute in parallel, or 1 if forks are unsafe.

    If this process has several threads, forks are unsafe, because locks of other threads would
    remain locked.
    """
    return processor_count() if threading.active_count() == 1 else 1


class ForkedCall:
    """A forked process that computes `function()` and prints nothing."""

    def __init__(self, function: Callable[[], bytes]) -> None:
        """Start the process. Raises OSError if the system's limits prevent it."""
        self._reading, writing = os.pipe()
        try:
            self._process = os.fork()
        except OSError:
            os.close(self._reading)
            os.close(writing)
            raise
        if self._process == 0:
            os.close(self._reading)
            _compute_and_exit(function, writing)
        os.close(writing)

    def result(self) -> bytes | None:
        """Wait for the result. Returns None if `function` raised an exception."""
        with os.fdopen(self._reading, "rb") as file:
            data = file.read()
        _, status = os.waitpid(self._process, 0)
        self._process = 0
        return data if status == 0 else None

    def stop(self) -> None:
        """End the process if the result has not been read."""
        if self._process:
            with suppress(OSError):
                os.close(self._reading)
            os.kill(self._process, signal.SIGKILL)
            os.waitpid(self._process, 0)
            self._process = 0


def split_shares(
    items: Sequence[T], size: Callable[[T], int], processes: int, least: int
) -> list[list[T]]:
    """Divide `items` into shares of neighbours for `compute_shares`.

    The shares become smaller, down to the size `least`, so that all processes end at the same time.
    """
    left = sum(map(size, items))
    shares: list[list[T]] = []
    room = 0
    for item in items:
        if room <= 0:
            shares.append([])
            room = max(left // (2 * processes), least) if processes > 1 else left + 1
        shares[-1].append(item)
        room -= size(item)
        left -= size(item)
    return shares


def compute_shares(
    shares: Sequence[T],
    here: Callable[[Iterable[T]], R],
    copied: Callable[[Iterable[T]], bytes],
    processes: int,
) -> tuple[R, list[bytes | None]]:
    """Compute up to a thousand shares in this process and in copies of it.

    Each process takes the next share when it is ready. Returns the result of `here` for the shares
    of this process, and the result of `copied` from each copy (see `ForkedCall.result`).
    """
    reading, writing = os.pipe()
    os.write(writing, b"".join(number.to_bytes(2) for number in range(len(shares))))
    os.close(writing)

    def _next_shares() -> Iterator[T]:
        while number := os.read(reading, 2):
            yield shares[int.from_bytes(number)]

    copies: list[ForkedCall] = []
    try:
        with suppress(OSError):  # at a limit of processes: with fewer copies
            for _ in range(min(processes, len(shares)) - 1):
                copies.append(ForkedCall(lambda: copied(_next_shares())))  # noqa: PERF401 (to stop them)
        return here(_next_shares()), [copy.result() for copy in copies]
    finally:
        os.close(reading)
        for copy in copies:
            copy.stop()


def _compute_and_exit(function: Callable[[], bytes], writing: int) -> None:
    status = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        with os.fdopen(writing, "wb") as file:
            file.write(function())
        status = 0
    finally:
        os._exit(status)
