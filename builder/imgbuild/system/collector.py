"""Pauses the cyclic garbage collector while many trees without cycles are created."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


class _ProcessState:
    """If `ends` is set, this process ends after one command, and the system frees the memory."""

    ends = False


def process_ends() -> None:
    """Allow `pause_collector(freeze=True)` to freeze objects."""
    _ProcessState.ends = True


@contextlib.contextmanager
def pause_collector(*, freeze: bool = False) -> Iterator[None]:
    """Run the block without Python's cyclic garbage collector, and restore its previous state.

    If `freeze` is set, later collections skip the objects that exist at the end of the block,
    because a collection of millions of objects takes seconds. All objects of the process are
    frozen, so cycles, and open files in cycles, are not collected. `freeze` has no effect unless
    `process_ends` was called.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            if freeze and _ProcessState.ends:
                gc.freeze()
            gc.enable()
