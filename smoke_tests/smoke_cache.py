"""A plugin of vLLM's: engines of cases that share a GPU are told how much memory their cache has.

Without a word vLLM measures the GPU's memory as it starts, takes what others use for its own, and
fails if one of them ends meanwhile. Commands such as `trl vllm-serve` have no option for it. The
runner puts this where vLLM finds plugins, if cases share; the log of each engine names the size.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any


def bound() -> None:
    """Let every engine's configuration hold SMOKE_CACHE bytes, unless it says so itself."""
    size = int(os.environ.get("SMOKE_CACHE") or 0)
    engine: Any = getattr(sys.modules.get("vllm.engine.arg_utils"), "EngineArgs", None)
    if not size or not hasattr(engine, "kv_cache_memory_bytes"):
        return
    make = engine.create_engine_config

    @functools.wraps(make)
    def _bounded(self: Any, *words: Any, **named: Any) -> Any:
        if self.kv_cache_memory_bytes is None:
            self.kv_cache_memory_bytes = size
            print(f"the engine's cache is bounded to {size >> 20} MiB", flush=True)
        return make(self, *words, **named)

    engine.create_engine_config = _bounded
