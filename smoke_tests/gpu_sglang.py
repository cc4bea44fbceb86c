"""SGLang's engine loads the tiny Qwen, and its greedy tokens are those of transformers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gpu_vllm
import smoke_gpu
import smoke_stack


def start(folder: Path, count: int, **more: Any) -> Any:
    """An engine for the model in `folder` on `count` GPUs, with `more` options."""
    import sglang

    options = smoke_stack.sglang_options(count) | more
    return sglang.Engine(
        model_path=str(folder), dtype="bfloat16", skip_tokenizer_init=True, **options
    )


def complete(engine: Any, prompts: list[list[int]]) -> list[list[int]]:
    """The greedy tokens of `engine` for each of `prompts`."""
    parameters = {"temperature": 0.0, "max_new_tokens": gpu_vllm.TOKENS, "ignore_eos": True}
    answers = engine.generate(input_ids=prompts, sampling_params=parameters)
    return [[int(token) for token in answer["output_ids"]] for answer in answers]


def main(count: int) -> None:
    """Run the model, prompts and comparison of vLLM's case on `count` GPUs."""
    smoke_gpu.require(count)
    kind, folder = gpu_vllm.make("tiny")
    prompts = gpu_vllm.prompt_ids(folder)
    import sglang

    smoke_gpu.turn()
    completions = complete(start(folder, count), prompts)
    reference = smoke_stack.load(folder).cuda()
    problems, summary = gpu_vllm.compare(reference, prompts, completions, kind)
    smoke_gpu.end(problems, f"sglang {sglang.__version__}, {kind}: {summary}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
