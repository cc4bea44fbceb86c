"""Calls functions of imgbuild in worker processes.

`multiprocessing` is not used, because its processes would import from the current folder before
code of imgbuild runs. A call is a pickle on the worker's stdin, and replies are pickles on stdout.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import imgbuild
from imgbuild.errors import WorkFailed
from imgbuild.system import ending, process, programs

P = ParamSpec("P")
R = TypeVar("R")
REPORT_SECONDS = 0.1  # between two reports of a worker's progress
START = (
    "import sys; sys.path.append({!r}); from imgbuild.system.workers import serve_calls;"
    " serve_calls()"
)
DEATH_REMEDY = (
    "if memory was exhausted, use fewer processes with --jobs; `dmesg` may show the cause"
)


class WorkerPool:
    """Runs calls in up to `count` processes, which are started when needed.

    `advance` is called with the amounts that functions pass to `report_progress`, by one thread at
    a time.
    """

    def __init__(self, count: int, advance: Callable[[int], None] = lambda _: None) -> None:
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="worker")
        self._advance = advance
        self._lock = threading.Lock()
        self._stopped = False
        self._idle: list[_WorkerProcess] = []
        self._all: list[_WorkerProcess] = []

    def submit_call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Call a module's `function` in a worker process.

        The future raises WorkFailed if the process ends early.
        """
        return self._threads.submit(self._run_call, function, args, kwargs)

    def close(self) -> None:
        """Wait for running calls, drop waiting calls, and end the processes."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._end_workers()

    def stop(self) -> None:
        """End the processes immediately."""
        with self._lock:
            self._stopped = True
        self._end_workers()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _end_workers(self) -> None:
        with self._lock:
            workers, self._all, self._idle = self._all, [], []
        for worker in workers:
            worker.kill()

    def _run_call(self, function: Callable[..., R], args: Any, kwargs: Any) -> R:
        with self._lock:
            if self._stopped:
                message = "the worker processes were stopped"
                raise WorkFailed(message, hint="run the same command again")
            if self._idle:
                worker = self._idle.pop()
            else:
                worker = _WorkerProcess()
                self._all.append(worker)
        succeeded, value = worker.run_call((function, args, kwargs), self._report)
        with self._lock:
            self._idle.append(worker)
        if not succeeded:
            raise value
        result: R = value
        return result

    def _report(self, amount: int) -> None:
        with self._lock:
            self._advance(amount)


class _WorkerProcess:
    """A process that ends when its stdin is closed, for example because this process ends."""

    def __init__(self) -> None:
        folder = str(Path(imgbuild.__file__).parent.parent)
        self._process = process.start_piped(
            [*programs.python_command(), "-c", START.format(folder)]
        )

    def run_call(self, task: object, report: Callable[[int], None]) -> tuple[bool, Any]:
        """Run the call `task`. Returns whether the call succeeded, and the result or the error."""
        requests, replies = self._process.stdin, self._process.stdout
        assert requests is not None and replies is not None  # noqa: PT018, S101
        try:
            pickle.dump(pickle.dumps(task), requests)
            requests.flush()
            while True:
                kind, value = pickle.load(replies)  # noqa: S301 (imgbuild's own process wrote it)
                if kind == "progress":
                    report(value)
                else:
                    return kind == "result", value
        except (EOFError, OSError, pickle.UnpicklingError, ValueError) as error:
            self._process.kill()
            status = self._process.wait()
            message = f"a worker process ended with status {status}"
            raise WorkFailed(message, hint=DEATH_REMEDY) from error

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError, ValueError):
                    stream.close()


class _ProgressSender:
    """Sends accumulated progress to the parent process at intervals."""

    def __init__(self, write: Callable[[str, object], None]) -> None:
        self._write = write
        self._amount = 0
        self._next = 0.0

    def add(self, amount: int) -> None:
        self._amount += amount
        if time.monotonic() >= self._next:
            self.send_amount()

    def send_amount(self) -> None:
        if self._amount:
            self._write("progress", self._amount)
        self._amount = 0
        self._next = time.monotonic() + REPORT_SECONDS


_progress: _ProgressSender | None = None


def report_progress(amount: int) -> None:
    """Report `amount` of progress from a function that runs in a worker process."""
    if _progress is not None:
        _progress.add(amount)


def serve_calls() -> None:
    """Process the calls on stdin until stdin is closed, and then kill this process."""
    global _progress  # noqa: PLW0603 (callers of `report_progress` have no reference to the worker)
    for number in (signal.SIGINT, *ending.SIGNALS):
        signal.signal(number, signal.SIG_IGN)  # the parent ends its workers
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    tasks: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def _read_message() -> None:
        # A thread also detects the end of the parent during a call.
        try:
            while True:
                tasks.put(pickle.load(sys.stdin.buffer))  # noqa: S301 (the parent wrote it)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)

    def _write_message(kind: str, value: object) -> None:
        replies.write(pickle.dumps((kind, value)))
        replies.flush()

    _progress = _ProgressSender(_write_message)
    threading.Thread(target=_read_message, name="parent", daemon=True).start()
    while True:
        try:
            function, args, kwargs = pickle.loads(tasks.get())  # noqa: S301 (as above)
            reply = ("result", function(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 (raised again in the parent)
            error.add_note(traceback.format_exc())
            reply = ("error", error)
        _progress.send_amount()
        _write_message(*reply)
