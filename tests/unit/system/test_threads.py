"""Tests the order of results, failures and interrupts of threads."""

import _thread
import threading

import pytest

from imgbuild.errors import FetchFailed, Interrupted
from imgbuild.system import threads


def test_results_of_threads_are_in_item_order():
    last = threading.Event()

    def work(item, _):
        if item == 0:
            assert last.wait(30)  # ends after all others
        if item == 9:
            last.set()
        return item * item

    assert threads.run_for_each(range(10), work, threads=3) == [number**2 for number in range(10)]
    assert threads.run_for_each([], work) == []


def test_number_of_threads_is_limited():
    names = set()

    def work(_, __):
        names.add(threading.current_thread().name)

    threads.run_for_each(range(50), work, threads=2)
    assert 1 <= len(names) <= 2


def test_first_failure_stops_other_threads_and_is_raised():
    begun, failed = [], threading.Event()

    def work(item, stop):
        begun.append(item)
        if item == 1:
            failed.set()
            message = "no route"
            raise FetchFailed(message)
        assert failed.wait(30)
        while True:  # an endless download checks between its parts
            stop.check()

    with pytest.raises(FetchFailed, match="no route"):
        threads.run_for_each(range(100), work, threads=2)
    assert sorted(begun) == [0, 1]


def test_interrupt_stops_threads():
    ended = threading.Event()

    def work(_, stop):
        _thread.interrupt_main()
        try:
            while True:
                stop.check()
        finally:
            ended.set()

    with pytest.raises(Interrupted, match="stopped; all is kept"):
        threads.run_for_each([1], work, retained="all is kept")
    assert ended.wait(30)
