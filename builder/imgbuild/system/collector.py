"""Pauses the cyclic garbage collector while many trees without cycles are created."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


class _ProcessState:
    """With `ends`, this process ends after one command, and the system frees its memory."""

    ends = False


def process_ends() -> None:
    """Allow `pause_collector(freeze=True)` to freeze objects."""
    _ProcessState.ends = True


@contextlib.contextmanager
def pause_collector(*, freeze: bool = False) -> Iterator[None]:
    """Run the block without Python's cyclic garbage collector; restores its previous state.

    With `freeze`, later collections skip the objects that exist at the end of the block, because
    millions of them would take seconds. This applies to all objects of the process: their cycles,
    and the open files in these, remain. Without `process_ends`, it has no effect.
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
