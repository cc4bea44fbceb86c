"""Records the end of the output of programs on this process's stderr, and forwards the output."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator

TAIL_BYTES = 256 << 10  # bytes that are kept
CHUNK = 64 << 10
DRAIN_SECONDS = 1.0  # seconds in which a process that outlives the command may write


class OutputTail:
    """The last bytes of the recorded output. Empty if stderr is a terminal."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def add(self, data: bytes) -> None:
        """Append bytes, and drop all but the last `TAIL_BYTES` bytes."""
        self._bytes += data
        del self._bytes[:-TAIL_BYTES]

    def text(self) -> str:
        """Return the bytes as text, with invalid bytes replaced."""
        return self._bytes.decode(errors="replace")


@contextlib.contextmanager
def tail_of_stderr() -> Iterator[OutputTail]:
    """Record the stderr output of this process and its children in the `with` block.

    Nothing is recorded if stderr is a terminal. If stdout is the same file as stderr, stdout is
    recorded, too, so that the order of the output is preserved.
    """
    tail = OutputTail()
    sys.stdout.flush()
    sys.stderr.flush()
    streams = [2, 1] if _are_same() else [2]
    if os.isatty(2):
        yield tail
        return
    saved = os.dup(2)
    reading, writing = os.pipe()
    for stream in streams:
        os.dup2(writing, stream)
    os.close(writing)
    copier = threading.Thread(target=_copy_pipe, args=(reading, saved, tail), daemon=True)
    copier.start()
    try:
        yield tail
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for stream in streams:
            os.dup2(saved, stream)
        copier.join(DRAIN_SECONDS)
        if not copier.is_alive():
            os.close(saved)


def _are_same() -> bool:
    try:
        return os.path.sameopenfile(1, 2)
    except OSError:  # one of them is closed
        return False


def _copy_pipe(reading: int, target: int, tail: OutputTail) -> None:
    with contextlib.suppress(OSError):
        while data := os.read(reading, CHUNK):
            tail.add(data)
            while data:
                data = data[os.write(target, data) :]
    os.close(reading)
