"""SGLang's engine loads the tiny Qwen, and its greedy tokens are those of transformers."""

from __future__ import annotations

import sys

import gpu_vllm
import smoke_gpu
import smoke_stack


def main(count: int) -> None:
    """Run the model, prompts and comparison of vLLM's case on `count` GPUs."""
    smoke_gpu.require(count)
    kind, folder = gpu_vllm.make("tiny")
    prompts = gpu_vllm.prompt_ids(folder)
    import sglang

    smoke_gpu.turn()
    engine = sglang.Engine(
        model_path=str(folder),
        dtype="bfloat16",
        skip_tokenizer_init=True,
        **smoke_stack.sglang_options(count),
    )
    asked = {"temperature": 0.0, "max_new_tokens": gpu_vllm.TOKENS, "ignore_eos": True}
    answers = engine.generate(input_ids=prompts, sampling_params=asked)
    completions = [[int(token) for token in answer["output_ids"]] for answer in answers]
    reference = smoke_stack.load(folder).cuda()
    problems, said = gpu_vllm.compare(reference, prompts, completions, kind)
    smoke_gpu.end(problems, f"sglang {sglang.__version__}, {kind}: {said}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
