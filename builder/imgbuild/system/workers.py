"""Worker processes for tasks that compute."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing.sharedctypes import Synchronized
from typing import Any, ParamSpec, TypeVar

from imgbuild.system import ending, process

P = ParamSpec("P")
R = TypeVar("R")
# spawn, not fork: a thread of this process may hold a lock at the moment of a fork.
CONTEXT = multiprocessing.get_context("spawn")


class WorkerPool(ProcessPoolExecutor):
    """Processes that Ctrl-C and signals for the whole group do not end, but this process.

    `start` is called in each with `values`, such as a `shared_counter`.
    """

    def __init__(
        self, workers: int, start: Callable[..., None] | None = None, *values: Any
    ) -> None:
        with ending.postponed():  # the process that removes semaphores may be started
            super().__init__(workers, CONTEXT, initializer=_start, initargs=(start, values))

    def submit(self, task: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Add a task; this starts a process if none is free."""
        with ending.postponed():  # half started, it would print an error of its own
            return super().submit(task, *args, **kwargs)

    def abort(self) -> None:
        """End the processes at once, with the tasks that are not done."""
        for worker in list(self._processes.values()):
            worker.kill()
        self.shutdown(wait=True, cancel_futures=True)


def shared_counter() -> Synchronized[int]:
    """An integer of 64 bits, 0 at first, that this process and its workers share."""
    with ending.postponed():
        return CONTEXT.Value("q", 0)


def _start(start: Callable[..., None] | None, values: tuple[Any, ...]) -> None:
    process.end_with_parent()
    if start is not None:
        start(*values)
