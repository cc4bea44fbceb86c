"""A copy of this process that computes a part of a result, with all data of this one.

Unlike `workers`, which need little data and much time. The copy has none of this process's peers:
its connections and pipes are replaced, so that no answer to the one reaches the other.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import stat
import time
from collections.abc import Callable
from pathlib import Path

_PEERS = (stat.S_IFSOCK, stat.S_IFIFO)
_FACTOR, _MORE = 4, 60  # of the time of this process's own part: the most that a copy may take


class Fork:
    """A copy of this process, which calls one function and ends."""

    def __init__(self, function: Callable[[], bytes]) -> None:
        """Start the copy."""
        self._started = time.monotonic()
        self._end, end = os.pipe()
        self._process = os.fork()
        if not self._process:
            os.close(self._end)
            _run(function, end)
        os.close(end)

    def result(self) -> bytes | None:
        """What the function returned; None if it raised an error or took too long."""
        deadline = time.monotonic() + _MORE + _FACTOR * (time.monotonic() - self._started)
        parts: list[bytes] = []
        try:
            while select.select([self._end], [], [], max(0, deadline - time.monotonic()))[0]:
                data = os.read(self._end, 1 << 20)
                if not data:
                    return b"".join(parts) if self._status() == 0 else None
                parts.append(data)
            return None
        finally:
            self.close()

    def _status(self) -> int:
        _, status = os.waitpid(self._process, 0)
        self._process = 0
        return status

    def close(self) -> None:
        """End the copy."""
        if self._process:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process, signal.SIGKILL)
            self._status()
        if self._end >= 0:
            os.close(self._end)
            self._end = -1


def _run(function: Callable[[], bytes], end: int) -> None:
    """Write the result of the function to the descriptor `end`, and end this process."""
    status = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        _leave_peers(end)
        data = function()
        with os.fdopen(end, "wb") as file:
            file.write(data)
        status = 0
    finally:
        os._exit(status)  # noqa: TID251 - this process must not continue


def _leave_peers(kept: int) -> None:
    """Replace this process's sockets and pipes by the null device."""
    null = os.open(os.devnull, os.O_RDWR)
    for path in Path("/proc/self/fd").iterdir():
        number = int(path.name)
        with contextlib.suppress(OSError):
            is_peer = stat.S_IFMT(os.fstat(number).st_mode) in _PEERS
            if is_peer and number not in (0, 1, 2, kept):
                os.dup2(null, number)
