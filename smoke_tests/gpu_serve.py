"""Tests that `vllm serve`, `trl vllm-serve` and `sglang serve` start and respond over HTTP.

vLLM and SGLang are also tested with OpenAI's client. Each request is a separate result, and a
failed request fails the case. With two GPUs, `vllm serve` runs two engines (data parallelism), and
both engines must generate.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

import gpu_vllm
import smoke_gpu
import smoke_openai
import smoke_stack
from smoke_support import judge, skip

Answers = list[list[int]]
# Problems of the requests by OpenAI's client.
PROBLEMS: list[str] = []
TOKEN_IDS = "--return-tokens-as-token-ids"  # written so until vLLM 0.9


def common(port: int) -> list[str]:
    """Return the options that vLLM and TRL share."""
    return ["--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16"]


def by_trl(folder: Path, prompts: Answers) -> Answers:
    """Return the greedy tokens of `trl vllm-serve`."""
    smoke_stack.require_vllm_serve()
    port = smoke_gpu.free_port()
    command = [smoke_gpu.script("trl"), "vllm-serve", "--model", str(folder), *common(port),
               "--gpu_memory_utilization", str(smoke_stack.share()),
               "--max_model_len", str(smoke_stack.LENGTH), "--enforce_eager", "True"]  # fmt: skip
    server = f"http://127.0.0.1:{port}"
    with smoke_gpu.server(command, smoke_stack.trl_health(server), 400):
        return smoke_stack.trl_completions(server, gpu_vllm.PROMPTS, gpu_vllm.TOKENS)


def by_vllm(folder: Path, prompts: Answers, engines: int = 1) -> Answers:
    """Return the greedy tokens of `vllm serve` with `engines` engines, through OpenAI's API."""
    port = smoke_gpu.free_port()
    command = [smoke_gpu.script("vllm"), "serve", str(folder), *common(port),
               "--served-model-name", "smoke",
               "--gpu-memory-utilization", str(smoke_stack.share()),
               "--max-model-len", str(smoke_stack.LENGTH), "--enforce-eager"]  # fmt: skip
    if engines > 1:
        command += ["--data-parallel-size", str(engines)]
    if f'"{TOKEN_IDS}"' in smoke_stack.source("vllm", "entrypoints/openai/cli_args.py"):
        command.append(TOKEN_IDS)  # before 0.8 requests have no such option
    server = f"http://127.0.0.1:{port}"
    with smoke_gpu.server(command, f"{server}/health", 400):
        check_name(server)
        ask = functools.partial(completion, server)
        if engines == 1:
            converse("vllm serve", smoke_openai.Client(server), structured_by_vllm())
            return list(map(ask, prompts))
        with ThreadPoolExecutor(len(prompts)) as pool:  # at once, so that every engine has work
            completions = list(pool.map(ask, prompts))
        used = busy(smoke_gpu.text(f"{server}/metrics"))
    print("tokens of each engine:", used)
    if len(used) != engines:
        sys.exit(f"error: {len(used)} of {engines} engines generated tokens")
    return completions


def structured_by_vllm() -> dict[str, dict[str, object]]:
    """Return vLLM's options for structured output, in addition to those of OpenAI's API."""
    words, code = list(smoke_openai.COLOURS), smoke_openai.CODE
    if "class StructuredOutputsParams" in smoke_stack.source("vllm", "sampling_params.py"):
        return {
            "words": {"structured_outputs": {"choice": words}},
            "pattern": {"structured_outputs": {"regex": code}},
        }
    return {"words": {"guided_choice": words}, "pattern": {"guided_regex": code}}  # until 0.10


def converse(
    name: str, client: smoke_openai.Client, structured: dict[str, dict[str, object]]
) -> None:
    """Test the server `name` with OpenAI's client.

    `structured` contains the server's options for structured output.
    """
    for question in ("chat", "stream", "completion", "schema"):
        PROBLEMS.extend(judge(f"{name}: {question}", getattr(client, question)))
    for question, body in structured.items():
        request = functools.partial(getattr(client, question), **body)
        PROBLEMS.extend(judge(f"{name}: {question}", request))


def check_name(server: str) -> None:
    """Fail unless the server's only model is "smoke"."""
    names = [model["id"] for model in smoke_gpu.get(f"{server}/v1/models")["data"]]
    if names != ["smoke"]:
        sys.exit(f"error: the server has the models {names}, not smoke")


def completion(server: str, prompt: list[int]) -> list[int]:
    """Return the greedy tokens of vLLM's server for one prompt."""
    request = {"model": "smoke", "prompt": prompt, "temperature": 0, "ignore_eos": True,
             "max_tokens": gpu_vllm.TOKENS, "logprobs": 1,
             "return_tokens_as_token_ids": True}  # fmt: skip
    answered = smoke_gpu.post(f"{server}/v1/completions", request)
    tokens = answered["choices"][0]["logprobs"]["tokens"]
    return [int(token.removeprefix("token_id:")) for token in tokens]


def busy(metrics: str) -> dict[str, float]:
    """Return the number of tokens that each active engine generated, from the metrics of vLLM."""
    lines = re.findall(r"^vllm:generation_tokens_total\{(.*)\} (\S+)$", metrics, re.MULTILINE)
    token_counts: dict[str, float] = {}
    for labels, number in lines:
        engine = re.search(r'engine="(\d+)"', labels)
        if engine and float(number) > 0:
            token_counts[engine[1]] = token_counts.get(engine[1], 0) + float(number)
    return token_counts


def in_parallel(folder: Path, prompts: Answers) -> Answers:
    """Return the greedy tokens of two engines behind one server (vLLM 0.9 or newer)."""
    if "class DPLBAsyncMPClient" not in smoke_stack.source("vllm", "v1/engine/core_client.py"):
        skip(f"the server of vLLM {version('vllm')} does not balance several engines")
    return by_vllm(folder, prompts, engines=2)


def by_sglang(folder: Path, prompts: Answers) -> Answers:
    """Return the greedy tokens of `sglang serve`, through SGLang's API."""
    port = smoke_gpu.free_port()
    options = smoke_stack.sglang_options(1)
    words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    command = [smoke_gpu.script("sglang"), "serve", "--model-path", str(folder), *common(port),
               *words, "--served-model-name", "smoke"]  # fmt: skip
    server = f"http://127.0.0.1:{port}"
    sampling = {"temperature": 0.0, "max_new_tokens": gpu_vllm.TOKENS, "ignore_eos": True}
    with smoke_gpu.server(command, f"{server}/health", 500):
        check_name(server)
        client = smoke_openai.Client(server)
        converse("sglang serve", client, {"pattern": {"regex": smoke_openai.CODE}})
        request = {"input_ids": prompts, "sampling_params": sampling}
        answers = smoke_gpu.post(f"{server}/generate", request, 400)  # it may compile kernels
    return [[int(token) for token in answer["output_ids"]] for answer in answers]


WAYS: dict[str, Callable[[Path, Answers], Answers]] = {
    "trl": by_trl,
    "vllm": by_vllm,
    "parallel": in_parallel,
    "sglang": by_sglang,
}


def main(way: str) -> None:
    """Run the mode `way`, which is trl, vllm, parallel (on two GPUs) or sglang."""
    smoke_gpu.require(2 if way == "parallel" else 1)
    kind, folder = gpu_vllm.make("tiny")
    prompts = gpu_vllm.prompt_ids(folder)
    smoke_gpu.turn(alone=way != "sglang" and smoke_stack.measures_memory())
    completions = WAYS[way](folder, prompts)
    reference = smoke_stack.load(folder).cuda()
    problems, summary = gpu_vllm.compare(reference, prompts, completions, kind)
    if way == "trl" and 2 * sum(map(len, completions)) >= len(prompts) * gpu_vllm.TOKENS:
        # It has no ignore_eos, so a completion may be short.
        problems = [problem for problem in problems if "tokens were generated" not in problem]
    smoke_gpu.end([*PROBLEMS, *problems], f"{way}: {summary}")


if __name__ == "__main__":
    main(sys.argv[1])
