"""The same work for many things at once, where most of it is waiting for a server.

Comes in: items and what to do with one. Goes out: what came of each, in the order of the items.

Daemon threads empty one list: an executor would wait for slow reads at Ctrl-C.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from imgbuild.errors import Interrupted

T = TypeVar("T")
R = TypeVar("R")
PATIENCE = 1.0  # seconds that threads have to notice that the work was stopped


class Stopped(Exception):
    """Another thread failed or the user stopped the work: this one ends quietly."""


class Stop:
    """Whether the work is to end early. Long work asks between its parts."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def __call__(self) -> bool:
        """Whether to stop."""
        return self._event.is_set()

    def set(self) -> None:
        """Let all threads stop."""
        self._event.set()

    def check(self) -> None:
        """End this thread's work here, if it is to stop."""
        if self._event.is_set():
            raise Stopped


def each(
    items: Sequence[T], work: Callable[[T, Stop], R], *, threads: int = 4, kept: str = ""
) -> list[R]:
    """What `work` gives for each of `items`, by so many threads, begun in their order.

    The first failure stops the others and is raised. Interrupted on Ctrl-C; `kept` is the word for
    what is not lost then.
    """
    pool = _Pool(items, work)
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
            worker.join(PATIENCE)
        message = f"stopped; {kept}" if kept else "stopped"
        raise Interrupted(message, hint="run it again to go on from there") from None
    if pool.failure is not None:
        raise pool.failure
    return [pool.done[place] for place in range(len(items))]


class _Pool(Generic[T, R]):
    """The list that the threads empty, and what came of it."""

    def __init__(self, items: Sequence[T], work: Callable[[T, Stop], R]) -> None:
        self._left = list(enumerate(items))[::-1]
        self._work = work
        self._lock = threading.Lock()
        self.stop = Stop()
        self.done: dict[int, R] = {}
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Take one item after another until there is none, or the work is to stop."""
        while not self.stop():
            with self._lock:
                if not self._left:
                    return
                place, item = self._left.pop()
            try:
                self.done[place] = self._work(item, self.stop)
            except Stopped:
                return
            except BaseException as failure:  # noqa: BLE001 - the main thread raises it
                with self._lock:
                    self.failure = self.failure or failure
                self.stop.set()
                return
