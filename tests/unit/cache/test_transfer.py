"""Tests that downloads of several steps are reported as one transfer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from imgbuild.cache.transfer import Transfer
from imgbuild.system.reporter import SilentReporter


class Recorder(SilentReporter):
    """Records messages, and for each bar its initial value and total."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.bars: list[tuple[int, int | None]] = []
        self.units: list[str] = []
        self.done = 0

    def advance(self, amount: int) -> None:
        self.done += amount

    def info(self, text: str) -> None:
        self.messages.append(text)

    @contextlib.contextmanager
    def progress(
        self, title: str, total: int | None, *, unit: str = "bytes", done: int = 0
    ) -> Iterator[SilentReporter]:
        self.bars.append((done, total))
        self.units.append(unit)
        yield self


def test_each_download_step_continues_the_shared_progress_bar():
    seen = Recorder()
    total = Transfer({"a": 3_000_000_000, "b": 1_000_000_000}, 212, seen)
    total.announce_total()
    with total.progress_bar({"b": 1_000_000_000}):
        pass
    with total.progress_bar({"a": 3_000_000_000}):
        pass
    total.close()
    assert seen.bars == [(0, 4_000_000_000), (1_000_000_000, 4_000_000_000)]
    assert seen.messages[0] == "2 of 212 files to download, 4.0 GB"
    assert seen.messages[1].startswith("downloaded 2 of 2 files, 4.0 GB, in ")


def test_partial_downloads_are_not_announced_again():
    seen = Recorder()
    Transfer({"a": 3_000_000_000}, 212, seen, here=900_000_000).announce_total()
    assert seen.messages == ["1 of 212 files to download, 2.1 GB (900.0 MB already downloaded)"]


def test_unannounced_files_are_added_to_the_total_of_the_progress_bar():
    seen = Recorder()
    total = Transfer({"a": 3_000_000_000}, 10, seen)
    with total.progress_bar({"a": 3_000_000_000}):
        pass
    with total.progress_bar({"c": 500_000_000}):
        pass
    assert seen.bars == [(0, 3_000_000_000), (3_000_000_000, 3_500_000_000)]
    assert seen.messages == ["1 more file to download, 500.0 MB"]


def test_transfer_without_files_is_reported_once():
    seen = Recorder()
    total = Transfer({}, 91, seen)
    total.announce_total()
    total.close()
    assert (seen.messages, seen.bars) == (["0 of 91 files to download"], [])
