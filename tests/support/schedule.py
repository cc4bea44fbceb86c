"""Which tests run in one process: those of a file, and all that make whole images.

Comes in: ids of tests, as processes that share them (pytest-xdist) report them. Goes out: the name
of the group that one process takes as a whole. Groups that marks name are of no use here: xdist 3.8
writes them where pytest 9.2 does not look.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[2]
INTEGRATION = "tests/integration/"
WHOLE_IMAGE = 12  # gigabytes that a test says it needs
IMAGES = "images"


class Turns(LoadScopeScheduling):  # type: ignore[misc]
    """Hands out the groups."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)


def group(nodeid: str) -> str:
    """The group of a test: two whole images at once would fill a disk."""
    path = nodeid.partition("::")[0]
    if not path.startswith(INTEGRATION):
        return nodeid
    return IMAGES if room(path) >= WHOLE_IMAGE else path


@functools.cache
def room(path: str) -> float:
    """The most gigabytes that a test of the file at `path` says it needs."""
    return _most(path, r"mark\.disk\((\d+)\)")


@functools.cache
def patience(path: str) -> float:
    """The most seconds that a test of the file at `path` asks to be given; 0 if none asks."""
    return _most(path, r"mark\.timeout\((\d+)\)")


def _most(path: str, pattern: str) -> float:
    text = (ROOT / path).read_text(encoding="utf-8")
    return max(map(float, re.findall(pattern, text)), default=0)
