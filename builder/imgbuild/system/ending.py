"""Raises an exception for SIGTERM and SIGHUP, as for Ctrl-C, to clean up work."""

from __future__ import annotations

import signal
import threading
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGHUP)
SIGNALLED = 128  # plus the number of a signal: the status of a process that it ended, in a shell


class EndSignal(KeyboardInterrupt):
    """A signal that another program sent to end this process, by its number."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


_received: list[int] = []


def received() -> int | None:
    """The number of the first signal raised as `EndSignal`."""
    return _received[0] if _received else None


def raise_signals() -> None:
    """Raise `SIGNALS` as EndSignal in the main thread, except signals that were ignored."""
    if threading.current_thread() is not threading.main_thread():
        return
    for sign in SIGNALS:
        if signal.getsignal(sign) is signal.SIG_DFL:
            signal.signal(sign, _raise)


def _raise(number: int, _: FrameType | None) -> None:
    _received.append(number)
    raise EndSignal(number)
