"""Unsloth patches transformers and TRL, adds an adapter to the tiny Qwen, and takes an SFT step."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

import smoke_gpu
import smoke_stack
import tiny_qwen
from cpu_grpo_step import compared
from smoke_support import finish


def main() -> None:
    """The adapter's second halves start at zero: a step must change each of them."""
    smoke_gpu.require()
    os.environ["HF_HOME"] = str(Path("hf").absolute())
    os.environ["UNSLOTH_COMPILE_LOCATION"] = str(Path("unsloth_compiled_cache").absolute())
    os.environ["UNSLOTH_DISABLE_STATISTICS"] = "1"  # it downloads models to count users
    folder = Path("model").absolute()
    # In a separate process: Unsloth must be imported before transformers.
    smoke_gpu.follow([sys.executable, tiny_qwen.__file__, str(folder)])
    smoke_gpu.turn()
    import unsloth  # noqa: I001  # it patches what is imported after it
    from datasets import Dataset
    from trl import SFTTrainer

    import gpu_sft

    model, tokenizer = unsloth.FastLanguageModel.from_pretrained(
        model_name=str(folder), max_seq_length=smoke_stack.LENGTH, load_in_4bit=False
    )
    model = unsloth.FastLanguageModel.get_peft_model(model, r=8, lora_alpha=16, random_state=7)
    from trl import SFTConfig

    trainer = SFTTrainer(
        model=model,
        args=gpu_sft.settings(SFTConfig),
        train_dataset=Dataset.from_list([{"text": line} for line in tiny_qwen.LINES]),
        processing_class=tokenizer,
    )
    halves = {name: tensor for name, tensor in model.named_parameters() if "lora_B" in name}
    before = {name: tensor.detach().clone() for name, tensor in halves.items()}
    result = trainer.train()
    problems = [] if halves else ["the model has no adapter"]
    problems += compared(before, halves)
    if not math.isfinite(result.training_loss):
        problems.append(f"the loss is {result.training_loss}")
    finish(problems, f"{len(halves)} adapters changed, loss {result.training_loss:.3f}")


if __name__ == "__main__":
    main()
