"""Raises an exception on SIGTERM and SIGHUP, so that clean-up code runs as on Ctrl-C."""

from __future__ import annotations

import signal
import threading
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGHUP)
SIGNAL_STATUS = (
    128  # plus the number of a signal: the status of a process that it ended, in a shell
)


class EndSignal(KeyboardInterrupt):
    """Raised for a signal that another program sent to end this process."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


_received_signals: list[int] = []


def received_signal() -> int | None:
    """Return the number of the first signal raised as `EndSignal`, or None."""
    return _received_signals[0] if _received_signals else None


def raise_signals() -> None:
    """Raise EndSignal for `SIGNALS` in the main thread, except for signals that are ignored."""
    if threading.current_thread() is not threading.main_thread():
        return
    for sign in SIGNALS:
        if signal.getsignal(sign) is signal.SIG_DFL:
            signal.signal(sign, _raise_for_signal)


def _raise_for_signal(number: int, _: FrameType | None) -> None:
    _received_signals.append(number)
    raise EndSignal(number)
