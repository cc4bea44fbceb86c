"""Runs a command on a separate terminal and exchanges input and output."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

LIMIT = 60.0  # seconds to wait for a text, on a busy machine
Modes = list[int | list[bytes | int]]


class TypingSession:
    """The running command and its terminal. `text` is its complete output."""

    def __init__(self, process: subprocess.Popen[bytes], master: int, slave: int) -> None:
        self.process = process
        self.text = ""
        self._master, self._slave = master, slave

    def type(self, text: str) -> None:
        """Press keys. "\\x03" is Ctrl-C, and "\\x1a" is Ctrl-Z."""
        os.write(self._master, text.encode())

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of the terminal."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def modes(self) -> Modes:
        """The modes of the terminal, such as echo."""
        return termios.tcgetattr(self._slave)

    def expect(self, pattern: str) -> str:
        """Wait for a match of `pattern` in the text after the last match, and return it."""
        end = time.monotonic() + LIMIT
        while (match := re.search(pattern, self.text[self._seen :])) is None:
            assert time.monotonic() < end, f"no {pattern!r} in {self.text!r}"
            self._read(1.0)
        self._seen += match.end()
        return match[0]

    _seen = 0

    def status(self) -> int:
        """Wait for the end of the command, and return its exit status."""
        end = time.monotonic() + LIMIT
        while self.process.poll() is None:
            assert time.monotonic() < end, f"the command did not end: {self.text!r}"
            self._read(0.1)
        while self._read(0.1):
            continue
        return self.process.returncode

    def _read(self, seconds: float) -> bool:
        if not select.select([self._master], [], [], seconds)[0]:
            return False
        self.text += os.read(self._master, 1 << 16).decode(errors="replace")
        return True


@contextmanager
def typing_session(
    command: Sequence[str], *, cwd: Path, env: Mapping[str, str], stderr: int | None = None
) -> Iterator[TypingSession]:
    """Run `command` on a new terminal of 24 rows and 80 columns. It is killed at the end."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    with subprocess.Popen(
        ["setsid", "--ctty", *command], cwd=cwd, env=dict(env), stdin=slave, stdout=slave,
        stderr=slave if stderr is None else stderr, start_new_session=False,
    ) as process:  # fmt: skip
        try:
            yield TypingSession(process, master, slave)
        finally:
            process.kill()
            process.wait()
            os.close(master)
            os.close(slave)
