"""Runs one GRPO step with TRL on the CPU, which must change every tensor."""

from __future__ import annotations

import inspect
import math
import os
from pathlib import Path
from typing import Any

import smoke_stack
from smoke_support import expectation, finish, skip

GROUP = 4  # completions of one prompt
PROMPTS = ["Count to three:", "Name a colour of the sky:"]


class Reward:
    """Rewards the share of letters and spaces in a completion: deterministic, but different."""

    __name__ = "share_of_letters"

    def __init__(self) -> None:
        self.seen: list[tuple[str, float]] = []

    def __call__(self, completions: list[str], **_: Any) -> list[float]:
        scores = [self.score(text) for text in completions]
        self.seen.extend(zip(completions, scores, strict=True))
        return scores

    @staticmethod
    def score(text: str) -> float:
        """Return the reward of a text, between 0 and 1."""
        good = [
            character
            for character in text
            if character == " " or (character.isascii() and character.isalpha())
        ]
        return len(good) / max(1, len(text))

    def problems(self) -> list[str]:
        """Return the problems with the recorded rewards."""
        problems = []
        expected = GROUP * len(PROMPTS)
        if len(self.seen) != expected:
            problems.append(f"{len(self.seen)} completions were rewarded, {expected} expected")
        if any(self.score(text) != score for text, score in self.seen):
            problems.append("the reward of a text is not deterministic")
        if len({score for _, score in self.seen}) < 2:
            problems.append(f"all completions have the same reward: {self.seen}")
        return problems


def settings(config: type, folder: Path) -> Any:
    """Return the arguments of one CPU step that this version of TRL accepts."""
    arguments = {
        "output_dir": str(folder / "out"),
        "per_device_train_batch_size": GROUP * len(PROMPTS),
        "num_generations": GROUP,
        "max_prompt_length": 64,  # gone since TRL 0.26
        "max_completion_length": 16,
        "temperature": 1.0,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
        "max_steps": 1,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "use_vllm": False,
        "bf16": False,
        "fp16": False,
        "gradient_checkpointing": False,
        "dataloader_pin_memory": False,
        "disable_tqdm": True,
        "seed": 7,
    }
    parameters = inspect.signature(config).parameters
    unknown = arguments.keys() - parameters.keys()
    print("not in this TRL:", ", ".join(sorted(unknown)) or "nothing")
    if unknown - {"max_prompt_length"}:
        message = f"{config.__name__} has no parameter {', '.join(sorted(unknown))}"
        raise TypeError(message)
    return config(**{name: value for name, value in arguments.items() if name in parameters})


def changed(before: dict[str, Any], model: Any) -> list[str]:
    """Return the problems with the model's tensors after the step."""
    return compared(before, dict(model.named_parameters()))


def compared(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return the names of tensors that are not finite or have not changed, with the reason."""
    import torch

    problems = []
    for name, tensor in after.items():
        if not torch.isfinite(tensor).all():
            problems.append(f"{name} is not finite after the step")
        elif torch.equal(before[name].to(tensor.device), tensor.detach()):
            problems.append(f"{name} did not change")
    return problems


def stay_on_cpu() -> None:
    """Set the environment of a step on the CPU, before torch and Triton are imported.

    TRL 1.15 computes log-probabilities with a Triton kernel on every device. Other versions do so
    only on GPUs. Without a GPU, Triton has no driver ("0 active drivers"), but its interpreter runs
    the kernel.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # this tier uses the CPU even if there is a GPU
    os.environ["HF_HOME"] = str(Path("hf").absolute())
    kernel = smoke_stack.source("trl", "kernels/chunked_logprob.py")
    if kernel and "device.type in" not in kernel:
        os.environ["TRITON_INTERPRET"] = "1"
        print("this version of TRL has a Triton kernel for GPUs, which Triton's interpreter runs")


def main() -> None:
    """Create the model and the trainer, run the step, and compare the weights."""
    if "trl" not in expectation()["packages"]:
        skip("the lock has no trl")
    stay_on_cpu()
    import tiny_qwen
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    folder = tiny_qwen.save(Path("model").absolute())
    model = AutoModelForCausalLM.from_pretrained(folder)
    reward = Reward()
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=settings(GRPOConfig, folder),
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in PROMPTS]),
        processing_class=AutoTokenizer.from_pretrained(folder, padding_side="left"),
    )
    before = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    trainer.train()
    problems = [*changed(before, model), *reward.problems()]
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
    rewards = sorted({round(score, 2) for _, score in reward.seen})
    finish(
        problems,
        f"{len(before)} of {len(before)} tensors changed, loss {logged.get('loss')},"
        f" gradient norm {logged.get('grad_norm')}, rewards {rewards}",
    )


if __name__ == "__main__":
    main()
