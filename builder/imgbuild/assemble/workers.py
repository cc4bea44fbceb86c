"""Several layers at once, each in a process, the largest first; no byte depends on it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

from imgbuild.assemble.layers import LayerJob, MadeLayer, input_size, make_layer
from imgbuild.cache.context import Context
from imgbuild.cache.store import Store
from imgbuild.system.amounts import count
from imgbuild.system.reporter import ProgressBar
from imgbuild.system.workers import WorkerPool, shared_counter

POLL_SECONDS = 0.1


def assemble_all(jobs: Sequence[LayerJob], context: Context, *, processes: int) -> list[MadeLayer]:
    """Make every layer of `jobs`. Finished layers stay in the store, also after an error."""
    if not jobs:
        return []
    total = sum(input_size(job.layer.recipe) for job in jobs)
    largest_first = sorted(jobs, key=lambda job: -input_size(job.layer.recipe))
    with context.reporter.progress(f"assembling {count(len(jobs), 'layer')}", total) as bar:
        if processes == 1 or len(jobs) <= 1:
            return [make_layer(job, context.store, bar.advance) for job in largest_first]
        return _in_processes(largest_first, context.store, processes, bar)


_counter: Synchronized[int] | None = None


def _in_processes(
    jobs: Sequence[LayerJob], store: Store, processes: int, bar: ProgressBar
) -> list[MadeLayer]:
    counter = shared_counter()
    pool = WorkerPool(min(processes, len(jobs)), _start_worker, counter)
    with _polled(counter, bar):
        try:
            futures = [pool.submit(_work, job, store.root) for job in jobs]
            made = [future.result() for future in as_completed(futures)]
        except BaseException:
            pool.abort()
            raise
    pool.shutdown()
    return made


def _start_worker(counter: Synchronized[int]) -> None:
    global _counter  # noqa: PLW0603 (the only way to hand a shared value to pool workers)
    _counter = counter


def _work(job: LayerJob, root: Path) -> MadeLayer:
    return make_layer(job, Store.open(root), _advance)


def _advance(amount: int) -> None:
    if _counter is not None:
        with _counter.get_lock():
            _counter.value += amount


@contextlib.contextmanager
def _polled(counter: Synchronized[int], bar: ProgressBar) -> Iterator[None]:
    stop = threading.Event()

    def _poll() -> None:
        seen = 0
        while not stop.wait(POLL_SECONDS):
            bar.advance(counter.value - seen)
            seen = counter.value

    thread = threading.Thread(target=_poll, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
