"""Tests that SGLang and transformers generate the same greedy tokens with the tiny Qwen.

Text prompts must yield text.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gpu_vllm
import smoke_gpu
import smoke_openai
import smoke_stack


def start(folder: Path, count: int, **more: Any) -> Any:
    """Start an engine for the model in `folder` on `count` GPUs, with `more` options."""
    import sglang

    options = {"skip_tokenizer_init": True} | smoke_stack.sglang_options(count) | more
    return sglang.Engine(model_path=str(folder), dtype="bfloat16", **options)


def complete(engine: Any, prompts: list[list[int]]) -> list[list[int]]:
    """Return the greedy tokens of `engine` for each of `prompts`."""
    parameters = {"temperature": 0.0, "max_new_tokens": gpu_vllm.TOKENS, "ignore_eos": True}
    answers = engine.generate(input_ids=prompts, sampling_params=parameters)
    return [[int(token) for token in answer["output_ids"]] for answer in answers]


def main(count: int) -> None:
    """Run the comparison of the vLLM case, with the same model and prompts, on `count` GPUs."""
    smoke_gpu.require(count)
    kind, folder = gpu_vllm.make("tiny")
    prompts = gpu_vllm.prompt_ids(folder)
    import sglang

    smoke_gpu.turn()
    engine = start(folder, count, skip_tokenizer_init=False)
    completions = complete(engine, prompts)
    reference = smoke_stack.load(folder).cuda()
    problems, summary = gpu_vllm.compare(reference, prompts, completions, kind)
    answers = engine.generate(
        gpu_vllm.PROMPTS, {"temperature": smoke_openai.FREE, "max_new_tokens": 16}
    )
    texts = [answer["text"] for answer in answers]
    print("texts:", texts)
    if len(texts) != len(gpu_vllm.PROMPTS) or not all(texts):
        problems.append(f"the texts for {len(gpu_vllm.PROMPTS)} prompts are {texts}")
    smoke_gpu.end(problems, f"sglang {sglang.__version__}, {kind}: {summary}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
