"""Handles differences between versions of vLLM, TRL and transformers for the cases.

Differences are detected from signatures and attributes of the installed library, not from its
version number.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import smoke_gpu
from smoke_support import skip

# Arguments that only some versions have, and that a case can omit.
PASSING = {
    "max_prompt_length",  # TRL's, until 0.26
    "vllm_mode",  # TRL's, since 0.18
    "vllm_device",  # TRL's, until 0.17
    "vllm_max_model_length",
    "vllm_group_port",
    "vllm_importance_sampling_correction",
    "dtype",  # transformers' name since 4.56 for torch_dtype
    "eos_token",  # of SFTConfig, since TRL 0.17
    "max_length",  # of SFTConfig: max_seq_length before TRL 0.16
    "use_cpu",
}
LENGTH = 256  # tokens of the engines' caches
SHARE = 0.25  # of a GPU's memory for an engine: the rest is the trainer's and the reference's


def given() -> Path | None:
    """Return the model folder that --model specifies, or None."""
    folder = os.environ.get("SMOKE_MODEL")
    return Path(folder) if folder else None


def share() -> float:
    """Return an engine's share of the GPU memory, which is smaller if cases share the GPU."""
    return SHARE if measures_memory() else min(SHARE, round(0.8 / smoke_gpu.sharing(), 3))


def measures_memory() -> bool:
    """Return whether this vLLM has no cache size option and measures memory at its start.

    Such a version counts the memory of other processes and fails if one of them ends meanwhile, so
    its case must be alone on the GPU.
    """
    return "kv_cache_memory_bytes" not in source("vllm", "engine/arg_utils.py")


def folder(package: str) -> Path | None:
    """Return the folder of a package without importing the package."""
    spec = importlib.util.find_spec(package)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(places[0]) if places else None


def source(package: str, path: str) -> str:
    """Return the text of a file in a package without importing it, or "" if it is missing."""
    place = folder(package)
    file_path = place / path if place is not None else None
    return file_path.read_text("utf-8") if file_path is not None and file_path.is_file() else ""


def accepted(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the `arguments` that `function` accepts.

    Raises TypeError if a required argument is missing.
    """
    parameters = inspect.signature(function).parameters
    unknown = arguments.keys() - parameters.keys()
    if unknown:
        print(f"{function.__name__} has no", ", ".join(sorted(unknown)))
    if unknown - PASSING:
        message = f"{function.__name__} has no {sorted(unknown - PASSING)}"
        raise TypeError(message)
    return {name: value for name, value in arguments.items() if name in parameters}


def engine(folder: Path, **overrides: Any) -> Any:
    """Start a small vLLM engine for the model in `folder`."""
    from vllm import LLM

    settings = {
        "model": str(folder),
        "dtype": "bfloat16",
        "seed": 0,
        "max_model_len": LENGTH,
        "max_num_seqs": 16,
        "max_num_batched_tokens": LENGTH,
        "gpu_memory_utilization": share(),
        **overrides,
    }
    return LLM(**settings)


def sglang_options(count: int) -> dict[str, Any]:
    """Return the options of SGLang for a small engine on `count` GPUs."""
    from sglang.srt.server_args import ServerArgs

    parameters = inspect.signature(ServerArgs).parameters
    graphs = {"cuda_graph_max_bs": 8, "piecewise_cuda_graph_max_tokens": LENGTH}
    if "cuda_graph_max_bs" not in parameters:  # since 0.5.23; those for prefill are sizes in tokens
        graphs = {"cuda_graph_max_bs_decode": 8, "cuda_graph_max_bs_prefill": LENGTH}
    return {
        "mem_fraction_static": SHARE,  # at most: its tokens are bounded below
        "context_length": LENGTH,
        "max_total_tokens": 16 * LENGTH,
        **graphs,
        "tp_size": count,
        "random_seed": 0,
    }


def sampling(**parameters: Any) -> Any:
    """Return the sampling parameters of vLLM for token IDs without text."""
    from vllm import SamplingParams

    return SamplingParams(detokenize=False, **parameters)


def generate(
    llm: Any, prompts: Sequence[list[int]], parameters: Any, **more: Any
) -> list[list[int]]:
    """Return the token IDs that `llm` appends to each of `prompts`.

    `more` contains arguments of `llm.generate`.
    """
    requests = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
    outputs = llm.generate(requests, parameters, use_tqdm=False, **more)
    return [list(output.outputs[0].token_ids) for output in outputs]


def scores(llm: Any, sequences: Sequence[list[int]]) -> list[list[float]]:
    """Return the log-probability that `llm` assigns to each token of `sequences` except the first.

    The prefix cache is emptied first: vLLM's V0 engine cannot return log-probabilities of a cached
    prompt (0.7.2 `model_executor/layers/sampler.py:956`).
    """
    llm.reset_prefix_cache()
    parameters = sampling(temperature=1.0, max_tokens=1, prompt_logprobs=1)
    requests = [{"prompt_token_ids": list(sequence)} for sequence in sequences]
    log_probabilities = []
    for sequence, output in zip(
        sequences, llm.generate(requests, parameters, use_tqdm=False), strict=True
    ):
        rows = list(output.prompt_logprobs)[1:]
        pairs = zip(sequence[1:], rows, strict=True)
        log_probabilities.append([float(row[token].logprob) for token, row in pairs])
    return log_probabilities


def model_scores(model: Any, sequences: Sequence[list[int]]) -> list[list[float]]:
    """Return the log-probabilities that a transformers model assigns to tokens of `sequences`."""
    import torch

    log_probabilities = []
    with torch.no_grad():
        for sequence in sequences:
            ids = torch.tensor([sequence], device=model.device)
            logits = model(input_ids=ids).logits[0, :-1].float()
            rows = logits.log_softmax(-1).gather(-1, ids[0, 1:, None])
            log_probabilities.append([float(row) for row in rows[:, 0]])
    return log_probabilities


def apart(
    first: Iterable[Iterable[float]], other: Iterable[Iterable[float]]
) -> tuple[float, float]:
    """Return the largest and the mean difference of two tables of the same shape."""
    distances = [
        abs(left - right)
        for row, others in zip(first, other, strict=True)
        for left, right in zip(row, others, strict=True)
    ]
    return max(distances), sum(distances) / len(distances)


def colocated(trainer: Any) -> Any:
    """Return the vLLM engine in the process of TRL's GRPO trainer."""
    holder = getattr(trainer, "vllm_generation", trainer)  # since TRL 0.27
    return holder.llm


def sync(trainer: Any) -> None:
    """Copy a GRPO trainer's weights to vLLM, as the trainer does before it generates."""
    if hasattr(trainer, "vllm_generation"):
        trainer.vllm_generation.sync_weights()
    else:
        trainer._move_model_to_vllm()


def require_vllm_serve() -> None:
    """Skip the case if this TRL has no command `vllm-serve`, as before 0.16."""
    if not source("trl", "scripts/vllm_serve.py"):
        skip("this TRL has no command vllm-serve")


def trl_serves_itself() -> bool:
    """Return whether `trl vllm-serve` is TRL's server. Since TRL 1.16, it is vLLM's."""
    return '"/generate/"' in source("trl", "scripts/vllm_serve.py")


def trl_health(server: str) -> str:
    """Return the URL of the health check of the `trl vllm-serve` at `server`."""
    return f"{server}/health/" if trl_serves_itself() else f"{server}/health"


def trl_completions(server: str, prompts: list[str], tokens: int) -> list[list[int]]:
    """Return the greedy tokens of the `trl vllm-serve` at `server` for each of `prompts`."""
    request: dict[str, Any] = {"temperature": 0.0, "max_tokens": tokens}
    if trl_serves_itself():
        answer = smoke_gpu.post(f"{server}/generate/", {"prompts": prompts, **request})
        return [list(completion) for completion in answer["completion_ids"]]
    [model] = smoke_gpu.get(f"{server}/v1/models")["data"]
    request |= {"model": model["id"], "prompt": prompts, "return_token_ids": True}
    answer = smoke_gpu.post(f"{server}/v1/completions", request)
    return [list(choice["token_ids"]) for choice in answer["choices"]]


def load(folder: Path) -> Any:
    """Load the model in `folder` with float32 weights, regardless of the default."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder).float()
