"""Provides a vLLM plugin that limits the cache of engines whose cases share a GPU.

By default, vLLM measures the GPU's memory at its start, including memory of other processes, and
fails if one of them ends in the meantime. Commands such as `trl vllm-serve` have no option for the
size. The runner installs this plugin if cases share a GPU. The log of each engine contains the
size.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any


def bound() -> None:
    """Set the cache of every engine to SMOKE_CACHE bytes, unless its configuration sets it."""
    size = int(os.environ.get("SMOKE_CACHE") or 0)
    engine: Any = getattr(sys.modules.get("vllm.engine.arg_utils"), "EngineArgs", None)
    if not size or not hasattr(engine, "kv_cache_memory_bytes"):
        return
    make = engine.create_engine_config

    @functools.wraps(make)
    def _bounded(self: Any, *words: Any, **named: Any) -> Any:
        if self.kv_cache_memory_bytes is None:
            self.kv_cache_memory_bytes = size
            print(f"the engine's cache is limited to {size >> 20} MiB", flush=True)
        return make(self, *words, **named)

    engine.create_engine_config = _bounded
