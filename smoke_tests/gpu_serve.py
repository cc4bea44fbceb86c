"""`vllm serve` and `trl vllm-serve` start with their commands and answer over HTTP."""

from __future__ import annotations

import sys
from pathlib import Path

import gpu_vllm
import smoke_gpu
import smoke_stack


def common(port: int) -> list[str]:
    """The options of both commands, in a spelling that both accept."""
    return ["--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16"]


def by_trl(folder: Path, prompts: list[list[int]]) -> list[list[int]]:
    """The greedy tokens of `trl vllm-serve`."""
    port = smoke_gpu.free_port()
    command = [smoke_gpu.script("trl"), "vllm-serve", "--model", str(folder), *common(port),
               "--gpu_memory_utilization", str(smoke_stack.share()),
               "--max_model_len", str(smoke_stack.LENGTH), "--enforce_eager", "True"]  # fmt: skip
    server = f"http://127.0.0.1:{port}"
    with smoke_gpu.server(command, smoke_stack.trl_health(server), 400):
        return smoke_stack.trl_completions(server, gpu_vllm.PROMPTS, gpu_vllm.TOKENS)


def by_vllm(folder: Path, prompts: list[list[int]]) -> list[list[int]]:
    """The greedy tokens of `vllm serve`, through OpenAI's API."""
    port = smoke_gpu.free_port()
    command = [smoke_gpu.script("vllm"), "serve", str(folder), *common(port),
               "--served-model-name", "smoke",
               "--gpu-memory-utilization", str(smoke_stack.share()),
               "--max-model-len", str(smoke_stack.LENGTH), "--enforce-eager"]  # fmt: skip
    found = []
    with smoke_gpu.server(command, f"http://127.0.0.1:{port}/health", 400):
        models = smoke_gpu.get(f"http://127.0.0.1:{port}/v1/models")["data"]
        names = [model["id"] for model in models]
        if names != ["smoke"]:
            sys.exit(f"error: the server has the models {names}, not smoke")
        for prompt in prompts:
            asked = {"model": "smoke", "prompt": prompt, "temperature": 0, "ignore_eos": True,
                     "max_tokens": gpu_vllm.TOKENS, "logprobs": 1,
                     "return_tokens_as_token_ids": True}  # fmt: skip
            answered = smoke_gpu.post(f"http://127.0.0.1:{port}/v1/completions", asked)
            tokens = answered["choices"][0]["logprobs"]["tokens"]
            found.append([int(token.removeprefix("token_id:")) for token in tokens])
    return found


def main(way: str) -> None:
    """`way`: trl or vllm."""
    smoke_gpu.require()
    kind, folder = gpu_vllm.make("tiny")
    prompts = gpu_vllm.prompt_ids(folder)
    smoke_gpu.turn(alone=smoke_stack.measures_memory())
    completions = (by_trl if way == "trl" else by_vllm)(folder, prompts)
    reference = smoke_stack.load(folder).cuda()
    problems, said = gpu_vllm.compare(reference, prompts, completions, kind)
    if way == "trl" and 2 * sum(map(len, completions)) >= len(prompts) * gpu_vllm.TOKENS:
        # It has no ignore_eos, so a completion may be short.
        problems = [one for one in problems if "tokens were generated" not in one]
    smoke_gpu.end(problems, f"{way}: {said}")


if __name__ == "__main__":
    main(sys.argv[1])
