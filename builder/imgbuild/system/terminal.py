"""Provides a pseudo-terminal (TTY) for a command in a root folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
import struct
import sys
import termios
import tty

CHUNK = 1 << 16  # bytes read at once, and typed ahead of a command that does not read
SIZE = struct.pack("4H", 0, 0, 0, 0)  # struct winsize


class SentTerminal:
    """Receives the master of a terminal that a command creates in its namespaces."""

    def __init__(self) -> None:
        self._receiver, self.sender = socket.socketpair()

    def join(self) -> None:
        """Connect this process's terminal to the command's terminal, if the command creates one.

        Otherwise, the command uses the terminal with which it was started.
        """
        self.sender.close()
        with self._receiver:
            descriptors = socket.recv_fds(self._receiver, 1, 1)[1]
        for master in descriptors:
            _connect_terminal(master)


def _connect_terminal(master: int) -> None:
    """Connect stdin and stdout to the terminal of `master` until no process has it open.

    Meanwhile, this process's terminal is in raw mode, so that keys such as Ctrl-C and Ctrl-Z reach
    the programs in the other terminal. Both terminals have the same size. `master` is closed at the
    end.
    """
    stdin, stdout = sys.stdin.fileno(), sys.stdout.fileno()
    before = termios.tcgetattr(stdin)

    def _adopt_size(*_: object) -> None:
        tty.setraw(stdin, termios.TCSADRAIN)
        fcntl.ioctl(master, termios.TIOCSWINSZ, fcntl.ioctl(stdin, termios.TIOCGWINSZ, SIZE))

    handlers = {
        sign: signal.signal(sign, _adopt_size) for sign in (signal.SIGWINCH, signal.SIGCONT)
    }
    try:
        _adopt_size()
        _copy_streams(stdin, stdout, master)
    finally:
        for sign, handler in handlers.items():
            signal.signal(sign, handler)
        with contextlib.suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(stdin, termios.TCSADRAIN, before)
        os.close(master)


def _copy_streams(stdin: int, stdout: int, master: int) -> None:
    os.set_blocking(master, False)
    typed, reading = b"", True
    while True:
        poll = select.poll()
        poll.register(master, select.POLLIN | (select.POLLOUT if typed else 0))
        if reading and len(typed) < CHUNK:
            poll.register(stdin, select.POLLIN)
        ready = dict(poll.poll())
        if ready.get(master, 0) & (select.POLLIN | select.POLLHUP):
            data = _read_terminal(master)
            if not data:
                return
            _write_all(stdout, data)
        if stdin in ready:
            data = _read_terminal(stdin)
            typed, reading = typed + data, bool(data)
        if ready.get(master, 0) & select.POLLOUT:
            typed = typed[os.write(master, typed) :]


def _read_terminal(descriptor: int) -> bytes:
    """Read the next bytes. Returns b"" if no process has the terminal open."""
    try:
        return os.read(descriptor, CHUNK)
    except OSError:
        return b""


def _write_all(stdout: int, data: bytes) -> None:
    while data:
        data = data[os.write(stdout, data) :]
