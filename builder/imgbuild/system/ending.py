"""Signals that end this process do so like Ctrl-C: what was begun is cleaned up on the way."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class EndSignal(KeyboardInterrupt):
    """A signal, by its number, that another program has sent to end this process."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


_received: list[int] = []


def received() -> int | None:
    """The number of the first signal that was raised as `EndSignal`."""
    return _received[0] if _received else None


def raise_signals() -> None:
    """Raise `SIGNALS` as EndSignal in the main thread from now on, but not those ignored before."""
    if threading.current_thread() is not threading.main_thread():
        return
    for sign in SIGNALS:
        if signal.getsignal(sign) is signal.SIG_DFL:
            signal.signal(sign, _raise)


def _raise(number: int, _: FrameType | None) -> None:
    _received.append(number)
    raise EndSignal(number)


@contextlib.contextmanager
def postponed() -> Iterator[None]:
    """Raise Ctrl-C and `SIGNALS` only at the end.

    Processes that are started meanwhile do not get these signals at all.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[int] = []
    handlers = {
        sign: handler
        for sign in (signal.SIGINT, *SIGNALS)
        if callable(handler := signal.getsignal(sign))
    }
    for sign in handlers:  # another thread may receive it, though this one blocks it
        signal.signal(sign, lambda number, _: pending.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, handlers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for sign, handler in handlers.items():
            signal.signal(sign, handler)
        for number in pending[:1]:
            signal.raise_signal(number)
