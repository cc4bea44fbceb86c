"""Provides a terminal of 80 columns for commands that run in this process."""

from __future__ import annotations

import contextlib
import os
import pty
import threading
from collections.abc import Iterator

import pytest

COLUMNS = 80


class Terminal:
    """A terminal that records the output."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []

    def read(self, descriptor: int) -> None:
        """Read until the other end is closed."""
        with contextlib.suppress(OSError):  # Linux ends a terminal with EIO
            while chunk := os.read(descriptor, 1 << 16):
                self._chunks.append(chunk)

    @property
    def lines(self) -> list[str]:
        """The lines printed so far, which are complete once `terminal_stdout` has ended."""
        return b"".join(self._chunks).decode().replace("\r\n", "\n").splitlines()


def terminal_stdout(patch: pytest.MonkeyPatch) -> contextlib.AbstractContextManager[Terminal]:
    """Make `sys.stdout` a terminal of COLUMNS columns, without colours."""
    patch.setenv("TERM", "dumb")
    return _stream(patch, "stdout")


def terminal_stderr(patch: pytest.MonkeyPatch) -> contextlib.AbstractContextManager[Terminal]:
    """Make `sys.stderr` a terminal of COLUMNS columns."""
    return _stream(patch, "stderr")


@contextlib.contextmanager
def _stream(patch: pytest.MonkeyPatch, name: str) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    terminal = Terminal()
    reader = threading.Thread(target=terminal.read, args=(ours,))
    reader.start()
    try:
        with patch.context() as within, os.fdopen(theirs, "w", encoding="utf-8") as stream:
            within.setattr(f"sys.{name}", stream)
            within.setenv("COLUMNS", str(COLUMNS))
            within.delenv("NO_COLOR", raising=False)
            yield terminal
    finally:
        reader.join()
        os.close(ours)
