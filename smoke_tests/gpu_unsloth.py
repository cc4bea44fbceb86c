"""Unsloth patches transformers and TRL, adds an adapter to the tiny Qwen, and takes a step.

The step is one of SFT, or one of GRPO in which vLLM, which shares the model's weights
(`fast_inference=True`), generates.
"""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import Any

import smoke_gpu
import smoke_stack
import tiny_qwen
from cpu_grpo_step import PROMPTS, Reward, compared

RANK = 8


def load(folder: Path, **more: Any) -> tuple[Any, Any]:
    """The model with an adapter, and its tokenizer."""
    import unsloth

    model, tokenizer = unsloth.FastLanguageModel.from_pretrained(
        model_name=str(folder), max_seq_length=smoke_stack.LENGTH, load_in_4bit=False, **more
    )
    adapted = unsloth.FastLanguageModel.get_peft_model(
        model, r=RANK, lora_alpha=2 * RANK, random_state=7
    )
    return adapted, tokenizer


def sft(folder: Path) -> tuple[Any, Any, list[str]]:
    """Model and trainer of an SFT step, and problems so far."""
    import gpu_sft
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    model, tokenizer = load(folder)
    trainer = SFTTrainer(
        model=model,
        args=gpu_sft.settings(SFTConfig),
        train_dataset=Dataset.from_list([{"text": line} for line in tiny_qwen.LINES]),
        processing_class=tokenizer,
    )
    return model, trainer, []


def grpo(folder: Path, reward: Reward) -> tuple[Any, Any, list[str]]:
    """The same of a GRPO step."""
    import gpu_grpo
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    model, tokenizer = load(
        folder,
        fast_inference=True,
        max_lora_rank=RANK,
        gpu_memory_utilization=smoke_stack.share(),
    )
    engine = getattr(model, "vllm_engine", None)
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=[reward],
        # Unsloth's default is 2: then a step takes more prompts than there are, and none is made.
        args=gpu_grpo.settings(GRPOConfig, {"gradient_accumulation_steps": 1}),
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in PROMPTS]),
        processing_class=tokenizer,
    )
    return model, trainer, [] if engine is not None else ["Unsloth started no vLLM engine"]


def main(way: str) -> None:
    """`way`: sft or grpo. The adapter's second halves start at zero: a step changes each of them.

    Unsloth must be imported before transformers, so another process makes the model.
    """
    smoke_gpu.require()
    os.environ["HF_HOME"] = str(Path("hf").absolute())
    os.environ["UNSLOTH_COMPILE_LOCATION"] = str(Path("unsloth_compiled_cache").absolute())
    os.environ["UNSLOTH_DISABLE_STATISTICS"] = "1"  # it downloads models to count users
    folder = Path("model").absolute()
    smoke_gpu.follow([sys.executable, tiny_qwen.__file__, str(folder)])
    smoke_gpu.turn(alone=way == "grpo" and smoke_stack.measures_memory())
    import unsloth  # noqa: F401  # it patches what is imported after it

    reward = Reward()
    model, trainer, problems = sft(folder) if way == "sft" else grpo(folder, reward)
    halves = {name: tensor for name, tensor in model.named_parameters() if "lora_B" in name}
    before = {name: tensor.detach().clone() for name, tensor in halves.items()}
    result = trainer.train()
    problems += [] if halves else ["the model has no adapter"]
    problems += compared(before, halves)
    if way == "grpo":
        problems += reward.problems()
        print("rewarded:", reward.seen)
        print("logged:", trainer.state.log_history)
    if trainer.state.global_step != 1:
        problems.append(f"{trainer.state.global_step} steps were made")
    if not math.isfinite(result.training_loss):
        problems.append(f"the loss is {result.training_loss}")
    smoke_gpu.end(problems, f"{len(halves)} adapters changed, loss {result.training_loss:.3f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "sft")
