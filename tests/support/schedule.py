"""Which tests run in one process, and in which order, when several processes share them.

- Tests of whole images (mark `disk` of 12 GB or more) run in one process, because two such images
  at once would fill a disk. They start first.
- The other tests of a file run in one process, because they share fixtures and what they have read.

pytest-xdist's distributor does not collect tests: the workers write the groups of the tests that
they collected to a file, which the distributor reads.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

INTEGRATION = Path(__file__).parents[1] / "integration"
WHOLE_IMAGE = 12  # gigabytes
IMAGES = "images"


class Scheduler(LoadScopeScheduling):  # type: ignore[misc]
    """Distributes tests by the groups that the workers wrote to `file`."""

    def __init__(self, config: pytest.Config, log: object, file: Path) -> None:
        super().__init__(config, log)
        self._file = file
        self._groups: dict[str, str] = {}

    def _split_scope(self, nodeid: str) -> str:
        if not self._groups:
            self._groups = read(self._file)["groups"]
        return self._groups[nodeid]


def sort(items: list[pytest.Item]) -> None:
    """Put whole images first, then unit tests, then the files with the longest timeouts."""
    longest = _most(items, "timeout", key=lambda item: item.path)

    def key(item: pytest.Item) -> tuple[int, float]:
        if not item.path.is_relative_to(INTEGRATION):
            return 1, 0
        return (0, 0) if group(item) == IMAGES else (2, -longest.get(item.path, 0))

    items.sort(key=key)


def group(item: pytest.Item) -> str:
    """The name of the group that one process runs."""
    disk = _most([item], "disk", key=lambda _: "").get("", 0)
    return IMAGES if disk >= WHOLE_IMAGE else str(item.path)


def write(file: Path, items: Sequence[pytest.Item], left_out: int) -> None:
    """Write the groups of the collected tests and the number of long tests that were left out."""
    worker_file = file.with_suffix(f".{os.getpid()}")  # each worker writes the same
    groups = {item.nodeid: group(item) for item in items}
    worker_file.write_text(json.dumps({"groups": groups, "left_out": left_out}))
    worker_file.replace(file)


def read(file: Path) -> dict[str, Any]:
    """What `write` has written; nothing where no worker has collected tests."""
    if not file.exists():
        return {"groups": {}, "left_out": 0}
    document: dict[str, Any] = json.loads(file.read_text())
    return document


def _most(
    items: Sequence[pytest.Item], mark: str, *, key: Callable[[pytest.Item], object]
) -> dict[object, float]:
    """The largest argument of a mark among items of equal `key`."""
    largest: dict[object, float] = {}
    for item in items:
        for marker in item.iter_markers(mark):
            if marker.args:
                largest[key(item)] = max(largest.get(key(item), 0), float(marker.args[0]))
    return largest
