"""Runs one GRPO step with TRL, with vLLM in this process or in a server on another GPU.

The weights are float32 in the trainer and bf16 in vLLM, so that a small step changes every tensor
and both models still agree. The server mode requires two GPUs, because NCCL refuses two processes
on one device.
"""

from __future__ import annotations

import math
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import smoke_gpu
import smoke_stack
import tiny_qwen
from cpu_grpo_step import GROUP, PROMPTS, Reward, changed
from smoke_support import skip

# Log-probabilities of one token: float32 with float32 weights against bf16 with bf16 weights. The
# tiny model's differ by at most 0.01 if both run on a CPU. For a given model the means are
# compared, and the bounds are guesses.
AGREE = {"tiny": 0.05, "given": 0.1}
# The smallest change by the step that exceeds rounding.
MOVED = {"tiny": 0.15, "given": 0.05}
# Adam moves each weight by about as much. A given model's weights must differ in bf16 afterwards.
RATE = {"tiny": 1e-2, "given": 1e-4}
TOKENS = 16


def kind() -> str:
    """Return the kind of the trained model: "tiny", or "given" if --model is used."""
    return "tiny" if smoke_stack.given() is None else "given"


def settings(config: type, more: dict[str, Any]) -> Any:
    """Return the arguments of one step that this version of TRL accepts."""
    arguments = {
        "output_dir": str(Path("out").absolute()),
        "per_device_train_batch_size": GROUP * len(PROMPTS),
        "num_generations": GROUP,
        "max_prompt_length": 64,
        "max_completion_length": TOKENS,
        "temperature": 1.0,
        "learning_rate": RATE[kind()],
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
        "max_steps": 1,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_vllm": True,
        "bf16": False,
        "fp16": False,
        "gradient_checkpointing": False,
        "disable_tqdm": True,
        "seed": 7,
        **more,
    }
    return config(**smoke_stack.accepted(config, arguments))


def make_trainer(folder: Path, more: dict[str, Any]) -> tuple[Any, Any, Reward]:
    """Create a trainer, its model and its reward function."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    model = smoke_stack.load(folder)
    reward = Reward()
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=settings(GRPOConfig, more),
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in PROMPTS]),
        processing_class=AutoTokenizer.from_pretrained(folder, padding_side="left"),
    )
    return trainer, model, reward


def step(trainer: Any, model: Any, reward: Reward) -> tuple[list[str], str]:
    """Run the step. Returns its problems and its logged values."""
    before = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    trainer.train()
    moved = {name: tensor.to(model.device) for name, tensor in before.items()}
    problems = [*changed(moved, model), *reward.problems()]
    logged: dict[str, float] = {}
    for entry in trainer.state.log_history:
        logged |= entry
    problems += [
        f"{key} is {logged.get(key, 'absent')}"
        for key in ("loss", "grad_norm")
        if not math.isfinite(float(logged.get(key, "nan")))
    ]
    if not float(logged.get("grad_norm", 0)) > 0:
        problems.append("the gradient is zero")
    if trainer.state.global_step != 1:
        problems.append(f"{trainer.state.global_step} steps were run")
    summary = f"{len(before)} of {len(before)} tensors changed, loss {logged.get('loss')}"
    return problems, f"{summary}, gradient norm {logged.get('grad_norm')}"


def colocation() -> dict[str, Any]:
    """Set the environment for vLLM in the trainer's process. Returns the trainer's arguments."""
    smoke_gpu.as_torchrun()
    return {
        "vllm_mode": "colocate",
        "vllm_device": "cuda:0",
        # Before it captures graphs, vLLM 0.24 runs the largest batch (4096 tokens with TRL) in the
        # largest number of sequences (8 here), even if that exceeds the length of a sequence. With
        # a shorter length this overran its block tables on an H200: "CUDA error: an illegal memory
        # access was encountered".
        "vllm_max_model_length": tiny_qwen.POSITIONS,
        "vllm_gpu_memory_utilization": smoke_stack.share(),
    }


def colocates() -> bool:
    """Return whether TRL can run vLLM in its own process. TRL 0.17 supports only a server."""
    text = smoke_stack.source("trl", "trainer/grpo_config.py")
    return "vllm_mode" in text or "vllm_server_host" not in text


def distance(first: list[list[float]], other: list[list[float]]) -> float:
    """Return the largest difference of log-probabilities, or the mean with --model."""
    largest, mean = smoke_stack.apart(first, other)
    return largest if kind() == "tiny" else mean


def colocate(folder: Path) -> tuple[list[str], str]:
    """Test vLLM in the trainer's process. Returns the problems and a summary."""
    trainer, model, reward = make_trainer(folder, colocation())
    llm = smoke_stack.colocated(trainer)
    prompts = [
        [int(token) for token in trainer.processing_class(text)["input_ids"]] for text in PROMPTS
    ]
    free = smoke_stack.sampling(temperature=1.0, max_tokens=TOKENS, ignore_eos=True, seed=3)
    written = smoke_stack.generate(llm, prompts, free)
    sequences = [prompt + more for prompt, more in zip(prompts, written, strict=True)]
    model.cuda()
    first = smoke_stack.scores(llm, sequences)
    agreed = [distance(first, smoke_stack.model_scores(model, sequences))]
    problems, summary = step(trainer, model, reward)
    smoke_stack.sync(trainer)
    model.eval()
    second = smoke_stack.scores(llm, sequences)
    agreed.append(distance(second, smoke_stack.model_scores(model, sequences)))
    moved = distance(first, second)
    bound = AGREE[kind()]
    for when, far in zip(("before", "after"), agreed, strict=True):
        if not far < bound:
            problems.append(
                f"{when} the step vLLM's log-probabilities are {far:.3f} from the trainer's,"
                f" bound {bound}"
            )
    if not moved > MOVED[kind()]:
        problems.append(f"with synced weights vLLM's log-probabilities moved by {moved:.4f} only")
    return problems, (
        f"{summary}; log-probabilities {agreed[0]:.4f} and {agreed[1]:.4f} apart, moved {moved:.2f}"
    )


def regret(model: Any, prompts: list[list[int]], completions: list[list[int]]) -> float:
    """Return the largest gap between the best logit and the logit of the chosen token."""
    import torch

    worst = 0.0
    for prompt, completion in zip(prompts, completions, strict=True):
        ids = torch.tensor([prompt + completion], device=model.device)
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float()
        taken = logits.gather(-1, ids[0, len(prompt) :, None])[:, 0]
        worst = max(worst, float((logits.amax(-1) - taken).max()))
    return worst


def served(folder: Path) -> tuple[list[str], str]:
    """Test vLLM in `trl vllm-serve` on the first GPU, with the trainer on the second.

    Returns the problems and a summary.
    """
    smoke_stack.require_vllm_serve()
    port, group = smoke_gpu.free_port(), smoke_gpu.free_port()
    command = [smoke_gpu.script("trl"), "vllm-serve", "--model", str(folder),
               "--host", "127.0.0.1", "--port", str(port),
               "--gpu_memory_utilization", str(smoke_stack.share()), "--dtype", "bfloat16",
               "--max_model_len", str(smoke_stack.LENGTH), "--enforce_eager", "True"]  # fmt: skip
    server = f"http://127.0.0.1:{port}"
    health = smoke_stack.trl_health(server)
    first, second = smoke_gpu.names()[:2]
    with smoke_gpu.server(command, health, 400, {"CUDA_VISIBLE_DEVICES": first}):
        os.environ["CUDA_VISIBLE_DEVICES"] = second
        # TRL 1.9 passes the trainer's device to vLLM's communicator. accelerate gives the device a
        # number only if a launcher numbered the process; otherwise: "this nccl communicator is
        # created to work on cuda, but the input tensor is on cuda:0".
        smoke_gpu.as_torchrun()
        more = {
            "vllm_mode": "server",
            "vllm_server_host": "127.0.0.1",
            "vllm_server_port": port,
            "vllm_group_port": group,
        }
        trainer, model, reward = make_trainer(folder, more)
        problems, summary = step(trainer, model, reward)
        smoke_stack.sync(trainer)
        model.eval()
        written = smoke_stack.trl_completions(server, PROMPTS, TOKENS)
        prompts = [list(trainer.processing_class(text)["input_ids"]) for text in PROMPTS]
        now = regret(model, prompts, written)
        then = regret(smoke_stack.load(folder).to(model.device), prompts, written)
    if not now < AGREE[kind()]:
        problems.append(f"the server's greedy tokens are {now:.3f} below the trainer's best")
    if not then > AGREE[kind()]:
        problems.append("the server's greedy tokens are those of the weights before the step")
    return (
        problems,
        f"{summary}; the server's tokens are the new weights', {then:.2f} from the old ones'",
    )


def main(way: str) -> None:
    """Run the mode `way`, which is colocate or server."""
    smoke_gpu.require(2 if way == "server" else 1)
    if way == "colocate" and not colocates():
        skip(f"TRL {version('trl')} has no vLLM in the trainer's process")
    given = smoke_stack.given()
    folder = given or tiny_qwen.save(Path("model").absolute(), half=True)
    os.environ["HF_HOME"] = str(Path("hf").absolute())
    if way == "colocate":  # slow imports, before the turn on the GPU
        from trl import GRPOTrainer  # noqa: F401

    smoke_gpu.turn(alone=smoke_stack.measures_memory())
    smoke_gpu.end(*(colocate if way == "colocate" else served)(folder))


if __name__ == "__main__":
    main(sys.argv[1])
