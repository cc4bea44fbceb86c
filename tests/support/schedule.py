"""Assigns tests to the processes of a parallel run and orders them.

- Tests of whole images (mark `disk` of 12 GB or more) run in one process and start first. Two of
  these images at the same time would fill a disk.
- Checks of source code run in one process, which parses each file once. Unit tests that use
  hypothesis and the other tests of their files run in one process too, because hypothesis reads
  the constants of all modules.
- The other tests of a file run in one process, because they share fixtures and cached data. Tests
  of the site in a browser share them in two files.
- Files of integration tests follow in descending order of duration. They often wait for disks,
  engines and Slurm, so one process at a time runs unit tests and checks of the repository. While
  engines are being installed, and at the end of the run, all processes run them.

Each process begins to collect with a different file. pytest caches a compiled test file, so each
process compiles only a part of the files.

The distributor of pytest-xdist does not collect tests. The workers write the groups of collected
tests to a file, which the distributor reads.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import is_hypothesis_test
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

from tests.support import needs

INTEGRATION = Path(__file__).parents[1] / "integration"
WHOLE_IMAGE = 12  # gigabytes
IMAGES, SOURCE, PROPERTIES = "images", "source", "properties"
READS_SOURCE = (
    *("test_code_digest.py", "test_context.py", "test_layout.py", "test_names.py"),
    *("test_repository.py", "test_wording.py"),
)
# The files that take over 15 seconds, the longest first.
LONGEST = (
    "ci", "installed", "site_browser", "docs", "extend", "user_packages", "debian_oracle", "tool",
    "slurm_jobs", "smoke", "extend_builders", "direct_requirements", "sdist_attacks", "engine",
    "sif_apptainer", "render", "run_command", "project_rows", "lock_command", "push", "sdist",
    "hostile_texts", "standalone_python", "resolve_command", "project_indexes", "registry_base",
    "smoke_images", "smoke_nvcc", "wheel_oracle", "faults", "site", "builders", "debian_archive",
    "open_requirements", "audit_command", "foreign_folder", "slurm_server", "slurm_array",
    "full_disk", "refusals", "hostile_jobs", "project_metadata", "verify", "foreign_indexes",
)  # fmt: skip


class Scheduler(LoadScopeScheduling):  # type: ignore[misc]
    """Distributes tests by the groups that the workers wrote to `file`."""

    def __init__(self, config: pytest.Config, log: object, file: Path) -> None:
        super().__init__(config, log)
        self._file = file
        self._groups: dict[str, str] = {}

    def _split_scope(self, nodeid: str) -> str:
        if not self._groups:
            self._groups = read_groups(self._file)["groups"]
        return self._groups[nodeid]

    def _assign_work_unit(self, node: Any) -> None:
        """Assign the first group, or the first group that requires no engine.

        A group without engines is assigned while engines are being installed, and if no other
        process runs such a group.
        """
        others = (other for other in self.assigned_work if other is not node)
        if not needs.engines_ready() or not any(map(self._computes, others)):
            rest = (name for name in self.workqueue if not _integration(name))
            self.workqueue.move_to_end(next(rest, next(iter(self.workqueue))), last=False)
        super()._assign_work_unit(node)

    def _computes(self, node: Any) -> bool:
        """Whether a process has tests that need no engine."""
        return any(
            not _integration(name) and not all(tests.values())
            for name, tests in self.assigned_work[node].items()
        )

    def _reschedule(self, node: Any) -> None:
        """Give a process its next group when only one of its tests is left."""
        if not self.workqueue or self._pending_of(self.assigned_work[node]) <= 1:
            super()._reschedule(node)


def rotate_nodes(config: pytest.Config, nodes: list[Any]) -> list[Any]:
    """The contents of a folder, rotated by a different offset in each process."""
    worker = getattr(config, "workerinput", None)
    if worker is None:
        return nodes
    begin = len(nodes) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    return nodes[begin:] + nodes[:begin]


_with_properties: set[Path] = set()  # files of unit tests, when `sort_tests` has been called


def sort_tests(items: list[pytest.Item]) -> None:
    """Put whole images first, then integration tests by the duration of their files.

    All processes must have the same order, regardless of the file at which they start.
    """
    _with_properties.update(
        item.path
        for item in items
        if is_hypothesis_test(getattr(item, "obj", None)) and item.path.parent != INTEGRATION
    )
    ranks = {str(INTEGRATION / f"test_{name}.py"): rank for rank, name in enumerate(LONGEST)}

    def key(item: pytest.Item) -> tuple[int, int, str]:
        name = group_name(item)
        if not _integration(name):
            return 2, 0, str(item.path)
        rank = (0, 0) if name == IMAGES else (1, ranks.get(name, len(ranks)))
        return *rank, str(item.path)

    items.sort(key=key)


def group_name(item: pytest.Item) -> str:
    """The name of the group of a test. A group runs in one process."""
    sizes = [float(mark.args[0]) for mark in item.iter_markers("disk") if mark.args]
    if max(sizes, default=0) >= WHOLE_IMAGE:
        return IMAGES
    if item.path.name in READS_SOURCE:
        return SOURCE
    if item.path.name == "test_site_answers.py":
        return str(item.path.with_name("test_site_browser.py"))
    return PROPERTIES if item.path in _with_properties else str(item.path)


@cache
def _integration(name: str) -> bool:
    """Whether a group has integration tests."""
    return name == IMAGES or Path(name).parent == INTEGRATION


def write_groups(file: Path, items: Sequence[pytest.Item], left_out: int) -> None:
    """Write the groups of the collected tests, and the number of omitted long tests."""
    worker_file = file.with_suffix(f".{os.getpid()}")  # each worker writes the same
    groups = {item.nodeid: group_name(item) for item in items}
    worker_file.write_text(json.dumps({"groups": groups, "left_out": left_out}))
    worker_file.replace(file)


def read_groups(file: Path) -> dict[str, Any]:
    """The data written by `write_groups`. Empty if no worker has collected tests."""
    if not file.exists():
        return {"groups": {}, "left_out": 0}
    document: dict[str, Any] = json.loads(file.read_text())
    return document
