"""Pauses the cyclic garbage collector while many trees without cycles are created."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


class _Process:
    """`ends`: this process runs one command, so that the system frees its memory."""

    ends = False


def process_ends() -> None:
    """Let `paused(freeze=True)` freeze objects from now on."""
    _Process.ends = True


@contextlib.contextmanager
def paused(*, freeze: bool = False) -> Iterator[None]:
    """Run the block without Python's cyclic garbage collector; restores its previous state.

    `freeze`: later searches for cycles omit the objects that exist at the end, which would
    take seconds for millions of them. That concerns all objects of the process, whose cycles then
    remain, with their open files. Without `process_ends`, it has no effect.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            if freeze and _Process.ends:
                gc.freeze()
            gc.enable()
