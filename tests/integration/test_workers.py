"""Tests results, errors, progress and cancellation of calls in worker processes."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from imgbuild.codec import read_document
from imgbuild.errors import InputError, WorkFailed
from imgbuild.system import workers
from imgbuild.system.workers import WorkerPool


@pytest.fixture(name="amounts")
def _amounts() -> list[int]:
    return []


@pytest.fixture(name="pool")
def _pool(amounts: list[int]) -> Iterator[WorkerPool]:
    pool = WorkerPool(2, amounts.append)
    yield pool
    pool.stop()


def test_number_of_worker_processes_is_limited(pool: WorkerPool) -> None:
    calls = [pool.submit_call(os.getpid) for _ in range(20)]
    processes = {call.result() for call in calls}
    assert len(processes) <= 2
    assert os.getpid() not in processes


def test_progress_of_a_worker_call_is_complete_when_the_call_ends(
    pool: WorkerPool, amounts: list[int]
) -> None:
    for _ in range(3):
        pool.submit_call(workers.report_progress, 7).result()
    assert sum(amounts) == 21


def test_error_of_a_worker_call_is_raised_and_the_process_continues(
    pool: WorkerPool, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="missing") as caught:
        pool.submit_call(read_document, tmp_path / "missing", dict, what="file").result()
    assert caught.value.hint is not None or caught.value.message
    with pytest.raises(ValueError, match="math domain error"):
        pool.submit_call(math.sqrt, -1).result()
    assert pool.submit_call(math.sqrt, 4).result() == 2


def test_worker_that_exits_is_reported_and_replaced(pool: WorkerPool) -> None:
    with pytest.raises(WorkFailed, match="a worker process ended with status 7"):
        pool.submit_call(os._exit, 7).result()
    assert pool.submit_call(math.sqrt, 4).result() == 2


def test_output_of_a_call_does_not_change_its_result(pool: WorkerPool) -> None:
    assert pool.submit_call(os.write, 1, b"text\n").result() == 5
    assert pool.submit_call(print, "text").result() is None


def test_stopped_pool_ends_calls_and_closed_pool_waits_for_calls() -> None:
    pool = WorkerPool(1)
    assert pool.submit_call(math.sqrt, 4).result() == 2
    busy, waiting = pool.submit_call(time.sleep, 600), pool.submit_call(time.sleep, 600)
    while not busy.running():
        time.sleep(0.01)
    pool.stop()
    assert isinstance(busy.exception(), WorkFailed)
    assert waiting.cancelled() or isinstance(waiting.exception(), WorkFailed)
    other = WorkerPool(1)
    call = other.submit_call(math.sqrt, 9)
    other.close()
    assert call.cancelled() or call.result() == 3
