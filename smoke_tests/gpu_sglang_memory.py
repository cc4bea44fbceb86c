"""SGLang frees its memory on the GPU and continues, as colocated training asks of it.

The engine starts with `enable_memory_saver`, so with torch-memory-saver's library in LD_PRELOAD.
It generates, releases its memory, takes it again, loads the weights again, and must generate
correct tokens as before.
"""

from __future__ import annotations

import gpu_sglang
import gpu_vllm
import smoke_gpu
import smoke_stack

POOL = 1 << 20  # tokens of the key-value cache
RELEASED = 900 << 20  # bytes, at least: with the tiny model this cache has 1 GiB


def main() -> None:
    """Compare the tokens before and after, and the memory that is free between."""
    smoke_gpu.require()
    kind, folder = gpu_vllm.make("tiny")
    prompts = gpu_vllm.prompt_ids(folder)
    import sglang
    import torch

    smoke_gpu.turn(alone=True)  # other cases would change the memory that is free
    engine = gpu_sglang.start(folder, 1, enable_memory_saver=True, max_total_tokens=POOL)
    completions = gpu_sglang.complete(engine, prompts)
    used, _ = torch.cuda.mem_get_info()
    engine.release_memory_occupation()
    released = torch.cuda.mem_get_info()[0] - used
    engine.resume_memory_occupation()
    loaded, message, *_ = engine.update_weights_from_disk(str(folder))
    again = gpu_sglang.complete(engine, prompts)
    reference = smoke_stack.load(folder).cuda()
    problems, said = gpu_vllm.compare(reference, prompts, completions, kind)
    after, _ = gpu_vllm.compare(reference, prompts, again, kind)
    problems += [f"after its memory was released: {problem}" for problem in after]
    if not loaded:
        problems.append(f"the weights were not loaded again: {message}")
    if released < RELEASED:
        problems.append(f"{released >> 20} MiB were released, at least {RELEASED >> 20} expected")
    good = f"sglang {sglang.__version__}, {kind}: {said}; {released >> 20} MiB were released"
    smoke_gpu.end(problems, good)


if __name__ == "__main__":
    main()
