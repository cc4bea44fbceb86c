"""Tests that SGLang releases its GPU memory and continues, as colocated training requires.

The engine starts with `enable_memory_saver`, which sets LD_PRELOAD to the library of
torch-memory-saver. The engine generates, releases its memory, allocates memory again, loads the
weights of a second model, and must then generate the tokens of the second model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gpu_sglang
import gpu_vllm
import smoke_gpu
import smoke_stack
import tiny_qwen

POOL = 1 << 20  # tokens of the key-value cache
BF16 = 2  # bytes


def make(seed: int) -> Path:
    """Save a tiny model with weights that depend on `seed`. Returns the folder."""
    folder = Path(f"model-{seed}").absolute()
    return tiny_qwen.save(folder, gpu_vllm.sharp_tiny(seed), half=True)


def cache_size(config: Any) -> int:
    """Return the size of the key-value cache of a model in bytes."""
    each = config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    return 2 * int(each) * POOL * BF16


def main() -> None:
    """Compare the tokens before and after the release, and check the memory released."""
    smoke_gpu.require()
    first, second = make(0), make(1)
    prompts = gpu_vllm.prompt_ids(first)
    import sglang
    import torch

    smoke_gpu.turn(alone=True)  # other cases would change the memory that is free
    engine = gpu_sglang.start(first, 1, enable_memory_saver=True, max_total_tokens=POOL)
    completions = gpu_sglang.complete(engine, prompts)
    free, _ = torch.cuda.mem_get_info()
    engine.release_memory_occupation()
    released = torch.cuda.mem_get_info()[0] - free
    engine.resume_memory_occupation()
    loaded, message, *_ = engine.update_weights_from_disk(str(second))
    again = gpu_sglang.complete(engine, prompts)
    model = smoke_stack.load(first).cuda()
    least = cache_size(model.config) * 9 // 10
    problems, summary = gpu_vllm.compare(model, prompts, completions, "tiny")
    model = smoke_stack.load(second).cuda()
    after, _ = gpu_vllm.compare(model, prompts, again, "tiny")
    problems += [f"after its memory was released: {problem}" for problem in after]
    if not loaded:
        problems.append(f"the second model's weights were not loaded: {message}")
    if released < least:
        problems.append(f"{released >> 20} MiB were released, at least {least >> 20} expected")
    good = f"sglang {sglang.__version__}: {summary}; {released >> 20} MiB were released"
    smoke_gpu.end(problems, good)


if __name__ == "__main__":
    main()
