"""SGLang's engine loads the tiny Qwen, and its greedy tokens are those of transformers."""

from __future__ import annotations

import gpu_vllm
import smoke_gpu
import smoke_stack
from smoke_support import finish


def main() -> None:
    """The model, the prompts and the comparison of vLLM's case."""
    smoke_gpu.require()
    kind, folder = gpu_vllm.make("tiny")
    prompts = gpu_vllm.prompt_ids(folder)
    smoke_gpu.turn()
    import sglang

    engine = sglang.Engine(
        model_path=str(folder),
        dtype="bfloat16",
        mem_fraction_static=smoke_stack.SHARE,
        context_length=smoke_stack.LENGTH,
        cuda_graph_max_bs=8,
        skip_tokenizer_init=True,
        random_seed=0,
    )
    asked = {"temperature": 0.0, "max_new_tokens": gpu_vllm.TOKENS, "ignore_eos": True}
    answers = engine.generate(input_ids=prompts, sampling_params=asked)
    completions = [[int(token) for token in answer["output_ids"]] for answer in answers]
    engine.shutdown()
    reference = smoke_stack.load(folder).cuda()
    problems, said = gpu_vllm.compare(reference, prompts, completions, kind)
    finish(problems, f"sglang {sglang.__version__}, {kind}: {said}")


if __name__ == "__main__":
    main()
