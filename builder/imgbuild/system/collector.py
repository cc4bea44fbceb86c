"""Pauses the cyclic garbage collector while many trees without cycles are created."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def paused(*, freeze: bool = False) -> Iterator[None]:
    """Run the block without Python's cyclic garbage collector; restores its previous state.

    `freeze`: later searches for cycles leave out the objects that exist at the end, which would
    take seconds for millions of them.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            if freeze:
                gc.freeze()
            gc.enable()
