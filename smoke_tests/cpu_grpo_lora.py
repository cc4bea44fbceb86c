"""Runs one GRPO step of a LoRA adapter with TRL on the CPU, with TRL's `accuracy_reward`.

Questions, solutions and answers have the format of TRL's quick start. A random model never gives a
correct answer, so a second reward distinguishes the completions. `accuracy_reward` is also called
directly with a right and a wrong answer. Without `accuracy_reward`, only the step is tested.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import smoke_stack
from cpu_grpo_step import Reward, compared, settings, stay_on_cpu
from smoke_support import finish

QUESTIONS = {"What is two and two?": "$4$", "What is one half of one?": r"$\frac{1}{2}$"}
RANK = 8


class ContentReward(Reward):
    """A reward function for completions that are lists of messages."""

    def __call__(self, completions: list[Any], **_: Any) -> list[float]:
        return super().__call__([completion[0]["content"] for completion in completions])


def rows() -> list[dict[str, Any]]:
    """Return the training data: questions as messages, and their solutions."""
    return [
        {"prompt": [{"role": "user", "content": question}], "solution": solution}
        for question, solution in QUESTIONS.items()
    ]


def has_accuracy_reward() -> bool:
    """Return whether this version of TRL has `accuracy_reward`, added after 0.21."""
    return "accuracy_reward" in smoke_stack.source("trl", "rewards/__init__.py")


def answers() -> list[str]:
    """Return the problems with the rewards of `accuracy_reward` for right and wrong answers."""
    if not has_accuracy_reward():
        return []
    from trl.rewards import accuracy_reward

    texts = [r"\boxed{4}", r"\boxed{5}", r"It is \boxed{\frac{2}{4}}", r"It is \boxed{2}"]
    completions = [[{"role": "assistant", "content": text}] for text in texts]
    solutions = [solution for solution in QUESTIONS.values() for _ in range(2)]
    rewards = accuracy_reward(completions, solutions)
    expected = [1.0, 0.0, 1.0, 0.0]
    return (
        []
        if rewards == expected
        else [f"accuracy_reward gives {rewards} for {texts}, not {expected}"]
    )


def make_trainer(folder: Path, arguments: Any, model: Any) -> tuple[Any, ContentReward]:
    """Create a trainer with an adapter for every linear layer of `model`, and a second reward."""
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoTokenizer
    from trl import GRPOTrainer

    reward = ContentReward()
    rewards: list[Any] = [reward]
    if has_accuracy_reward():
        from trl.rewards import accuracy_reward

        rewards.insert(0, accuracy_reward)
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=rewards,
        args=arguments,
        train_dataset=Dataset.from_list(rows()),
        processing_class=AutoTokenizer.from_pretrained(folder, padding_side="left"),
        peft_config=LoraConfig(
            r=RANK, lora_alpha=2 * RANK, target_modules="all-linear", task_type="CAUSAL_LM"
        ),
    )
    return trainer, reward


def step(trainer: Any, reward: ContentReward) -> tuple[list[str], str]:
    """Run the step. Returns its problems and its logged values.

    The second half of an adapter starts at zero and must change. The first half has no gradient in
    this step. The model's weights must not change.
    """
    model = trainer.accelerator.unwrap_model(trainer.model)
    before = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    halves = {name: tensor for name, tensor in model.named_parameters() if "lora_B" in name}
    trainer.train()
    problems = [] if halves else ["the model has no adapter"]
    problems += [*answers(), *compared(before, halves), *reward.problems()]
    problems += [
        f"{name} changed, which is not part of the adapter"
        for name, tensor in model.named_parameters()
        if "lora_" not in name and not before[name].to(tensor.device).equal(tensor.detach())
    ]
    logged: dict[str, float] = {}
    for entry in trainer.state.log_history:
        logged |= entry
    keys = ["loss", "grad_norm"]
    if has_accuracy_reward():
        keys.append("rewards/accuracy_reward/mean")
    for key in keys:
        if not math.isfinite(float(logged.get(key, "nan"))):
            problems.append(f"{key} is {logged.get(key, 'absent')}")
    if not float(logged.get("grad_norm", 0)) > 0:
        problems.append("the gradient is zero")
    summary = ", ".join(f"{key} {logged.get(key)}" for key in keys)
    return problems, f"{len(halves)} of {len(halves)} adapters changed, {summary}"


def main() -> None:
    """Run the step. transformers generates the completions."""
    stay_on_cpu()
    import tiny_qwen
    from transformers import AutoModelForCausalLM
    from trl import GRPOConfig

    folder = tiny_qwen.save(Path("model").absolute())
    model = AutoModelForCausalLM.from_pretrained(folder)
    finish(*step(*make_trainer(folder, settings(GRPOConfig, folder), model)))


if __name__ == "__main__":
    main()
