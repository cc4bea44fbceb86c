"""Tests results, errors, progress and the end of calls in worker processes."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from imgbuild.codec import read
from imgbuild.errors import InputError, WorkFailed
from imgbuild.system import workers
from imgbuild.system.workers import Workers


@pytest.fixture(name="amounts")
def _amounts() -> list[int]:
    return []


@pytest.fixture(name="pool")
def _pool(amounts: list[int]) -> Iterator[Workers]:
    pool = Workers(2, amounts.append)
    yield pool
    pool.stop()


def test_number_of_worker_processes_is_limited(pool: Workers) -> None:
    calls = [pool.submit(os.getpid) for _ in range(20)]
    processes = {call.result() for call in calls}
    assert len(processes) <= 2
    assert os.getpid() not in processes


def test_progress_is_complete_when_call_ends(pool: Workers, amounts: list[int]) -> None:
    for _ in range(3):
        pool.submit(workers.report, 7).result()
    assert sum(amounts) == 21


def test_worker_error_is_raised_and_process_continues(pool: Workers, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="missing") as caught:
        pool.submit(read, tmp_path / "missing", dict, what="file").result()
    assert caught.value.hint is not None or caught.value.message
    with pytest.raises(ValueError, match="math domain error"):
        pool.submit(math.sqrt, -1).result()
    assert pool.submit(math.sqrt, 4).result() == 2


def test_dead_worker_is_reported_and_replaced(pool: Workers) -> None:
    with pytest.raises(WorkFailed, match="a worker process ended with status 7"):
        pool.submit(os._exit, 7).result()
    assert pool.submit(math.sqrt, 4).result() == 2


def test_call_output_is_not_a_result(pool: Workers) -> None:
    assert pool.submit(os.write, 1, b"text\n").result() == 5
    assert pool.submit(print, "text").result() is None


def test_stop_ends_calls_and_close_waits() -> None:
    pool = Workers(1)
    assert pool.submit(math.sqrt, 4).result() == 2
    busy, waiting = pool.submit(time.sleep, 600), pool.submit(time.sleep, 600)
    while not busy.running():
        time.sleep(0.01)
    pool.stop()
    assert isinstance(busy.exception(), WorkFailed)
    assert waiting.cancelled() or isinstance(waiting.exception(), WorkFailed)
    other = Workers(1)
    call = other.submit(math.sqrt, 9)
    other.close()
    assert call.cancelled() or call.result() == 3
