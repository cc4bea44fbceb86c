"""Runs downloads and uploads in a pool of threads that an error or interrupt stops.

The threads are daemons with a shared queue, because an executor would wait for slow reads after
Ctrl-C.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from imgbuild.errors import ControlSignal, Interrupted

T = TypeVar("T")
R = TypeVar("R")
GRACE = 1.0  # seconds that threads have to end after Ctrl-C


class StoppedThread(ControlSignal):
    """Raised in a thread that must end because another thread failed or Ctrl-C was pressed."""


class StopFlag:
    """Tells threads to stop. Long-running functions call `check` repeatedly."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def __call__(self) -> bool:
        """Return whether the work must stop."""
        return self._event.is_set()

    def set(self) -> None:
        """Stop all threads."""
        self._event.set()

    def wait(self, seconds: float) -> None:
        """Sleep for `seconds`, or until the work must stop."""
        self._event.wait(seconds)

    def check(self) -> None:
        """Raise StoppedThread if the work must stop."""
        if self._event.is_set():
            raise StoppedThread

    def with_check(self, advance: Callable[[int], object]) -> Callable[[int], None]:
        """Return a function that calls `check` and then `advance`."""

        def _check_and_advance(amount: int) -> None:
            self.check()
            advance(amount)

        return _check_and_advance


def run_for_each(
    items: Sequence[T], work: Callable[[T, StopFlag], R], *, threads: int = 4, retained: str = ""
) -> list[R]:
    """Call `work` for each of `items` in `threads` threads. Returns the results in order.

    The first failure stops the other threads and is raised. On Ctrl-C, Interrupted is raised. The
    message contains `retained`, the part of the work that is not lost.
    """
    pool = _ThreadPool(items, work)
    workers = [
        threading.Thread(target=pool.run, daemon=True) for _ in range(min(threads, len(items)))
    ]
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            while worker.is_alive():
                worker.join(0.2)
    except KeyboardInterrupt:
        pool.stop.set()
        for worker in workers:
            worker.join(GRACE)
        message = f"stopped; {retained}" if retained else "stopped"
        raise Interrupted(message, hint="run the command again to continue") from None
    if pool.failure is not None:
        raise pool.failure
    return [pool.done[place] for place in range(len(items))]


class _ThreadPool(Generic[T, R]):
    def __init__(self, items: Sequence[T], work: Callable[[T, StopFlag], R]) -> None:
        self._left = list(enumerate(items))[::-1]
        self._work = work
        self._lock = threading.Lock()
        self.stop = StopFlag()
        self.done: dict[int, R] = {}
        self.failure: BaseException | None = None

    def run(self) -> None:
        while not self.stop():
            with self._lock:
                if not self._left:
                    return
                place, item = self._left.pop()
            try:
                self.done[place] = self._work(item, self.stop)
            except StoppedThread:
                return
            except BaseException as failure:  # noqa: BLE001 - the main thread raises it
                with self._lock:
                    self.failure = self.failure or failure
                self.stop.set()
                return
