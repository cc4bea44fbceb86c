"""Runs a function in a fork of this process, which has a copy of all objects."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress


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
        self._reading, writing = os.pipe()
        self._process = os.fork()
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
