"""Runs one SFT step with TRL on the GPU, alone or under DeepSpeed. Every tensor must change.

The examples end with Qwen's end token, which differs from its padding token. TRL before 0.16 does
not append it. In fp16, for GPUs of compute capability 7.5 without bf16, a gradient scaler skips
steps whose scaled gradients overflow, so several steps are run.
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
from cpu_grpo_step import changed
from smoke_support import finish

FP16_STEPS = 6


def settings(config: type, *, fp16: bool = False) -> Any:
    """Return the arguments of one step or, in fp16, of `FP16_STEPS` steps."""
    arguments = {
        "output_dir": str(Path("out").absolute()),
        "per_device_train_batch_size": 4,
        "max_length": 64,
        "eos_token": tiny_qwen.END,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
        "max_steps": FP16_STEPS if fp16 else 1,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "bf16": not fp16,
        "fp16": fp16,
        "gradient_checkpointing": False,
        "disable_tqdm": True,
        "seed": 7,
    }
    return config(**smoke_stack.accepted(config, arguments))


def step(way: str) -> tuple[list[str], str]:
    """Run the step. Returns its problems and its logged values."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    folder = tiny_qwen.save(Path(f"model-{os.getpid()}").absolute())
    model = smoke_stack.load(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    trainer = SFTTrainer(
        model=model,
        args=settings(SFTConfig, fp16=way == "fp16"),
        train_dataset=Dataset.from_list([{"text": line} for line in tiny_qwen.LINES]),
        processing_class=tokenizer,
    )
    before = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    trainer.train()
    after = trainer.accelerator.unwrap_model(trainer.model_wrapped)
    moved = {name: tensor.to(after.device, _dtype(after, name)) for name, tensor in before.items()}
    problems = changed(moved, after)
    logged: dict[str, float] = {}
    for entry in trainer.state.log_history:
        logged |= entry
    for key in ("loss", "grad_norm"):
        if not math.isfinite(float(logged.get(key, "nan"))):
            problems.append(f"{key} is {logged.get(key, 'absent')}")
    end = tokenizer.convert_tokens_to_ids(tiny_qwen.END)
    last = {int(row["input_ids"][-1]) for row in trainer.train_dataset}
    appends = "eos_token" in smoke_stack.source("trl", "trainer/sft_config.py")
    if appends and last != {end}:
        problems.append(f"the examples end with token {sorted(last)}, {tiny_qwen.END} is {end}")
    if trainer.state.global_step != trainer.args.max_steps:
        problems.append(f"{trainer.state.global_step} steps were run")
    scaler = getattr(trainer.accelerator, "scaler", None)
    if way == "fp16" and (scaler is None or not scaler.is_enabled()):
        problems.append("there is no gradient scaler")
    wrapper = type(trainer.model_wrapped).__name__
    if way == "child" and wrapper != "DeepSpeedEngine":
        problems.append(f"the trained model is a {wrapper}, not DeepSpeed's engine")
    summary = f"{len(before)} of {len(before)} tensors changed, loss {logged.get('loss')}"
    summary += f", gradient norm {logged.get('grad_norm')}"
    if way == "fp16" and scaler is not None:
        summary += f", gradients scaled by {scaler.get_scale():.0f}"
    return problems, f"{wrapper}: {summary}"


def _dtype(model: Any, name: str) -> Any:
    return dict(model.named_parameters())[name].dtype


def launched(count: int) -> None:
    """Run the step under `accelerate launch` with DeepSpeed's ZeRO 2, on `count` GPUs."""
    command = [smoke_gpu.script("accelerate"), "launch", "--use_deepspeed", "--zero_stage", "2",
               "--num_processes", str(count), "--num_machines", "1", "--mixed_precision", "bf16",
               "--dynamo_backend", "no", "--gradient_accumulation_steps", "1",
               "--offload_optimizer_device", "none", "--offload_param_device", "none",
               "--main_process_port", str(smoke_gpu.free_port()), __file__, "child"]  # fmt: skip
    log = smoke_gpu.follow(command)
    summaries = [line for line in log.splitlines() if "tensors changed" in line]
    steps = log.count("tensors changed")  # two processes may have written one line
    problems = [f"{steps} of {count} processes ran the step"] if steps != count else []
    finish(problems, " ".join(summaries))


def main(way: str, count: int = 1) -> None:
    """Run the mode `way`: alone, fp16, deepspeed on `count` GPUs, or child (under deepspeed)."""
    os.environ["HF_HOME"] = str(Path("hf").absolute())
    if way != "child":  # which has the GPUs of the case that launched it
        smoke_gpu.require(count)
        smoke_gpu.turn()
    if way == "deepspeed":
        launched(count)
    finish(*step(way))


if __name__ == "__main__":
    words = sys.argv[1:] or ["alone"]
    main(words[0], *map(int, words[1:]))
