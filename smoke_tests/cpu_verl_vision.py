"""Tests that verl's dataset reads images with qwen-vl-utils for a tiny Qwen2.5-VL.

The dataset has verl's default configuration and a limit on the length of prompts. verl must process
the images to compute the length, and drops examples with unreadable images.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import smoke_stack
import tiny_qwen_vl
from smoke_support import finish

QUESTION = "What is in this image?"
LONGEST = 64  # tokens of a prompt


def write(path: Path) -> int:
    """Write an example for each image in the format of verl's scripts. Returns the number."""
    from datasets import Dataset

    rows = [
        {
            "data_source": "smoke",
            "prompt": [{"role": "user", "content": f"<image>{QUESTION}"}],
            "images": [image],
            "ability": "vision",
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": number},
        }
        for number, image in enumerate(tiny_qwen_vl.images())
    ]
    Dataset.from_list(rows).to_parquet(str(path))
    return len(rows)


def settings() -> Any:
    """Return the configuration of a verl dataset."""
    import hydra

    options = {
        "max_prompt_length": LONGEST,
        "filter_overlong_prompts": True,
        # In this process: one that is forked after torch has started threads can wait for ever.
        "filter_overlong_prompts_workers": "null",
        "return_multi_modal_inputs": True,
        "cache_dir": str(Path("cache").absolute()),
    }
    place = f"{smoke_stack.folder('verl')}/trainer/config"
    with hydra.initialize_config_dir(place, version_base=None):
        overrides = [f"++data.{name}={value}" for name, value in options.items()]
        return hydra.compose("ppo_trainer", overrides).data


def main() -> None:
    """Read the examples, and compute the model's logits for each of them."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # this tier uses the CPU even if there is a GPU
    os.environ["HF_HOME"] = str(Path("hf").absolute())
    import torch
    from verl.utils.dataset.rl_dataset import RLHFDataset

    folder = Path("model").absolute()
    processor = tiny_qwen_vl.make_processor(folder)
    data, config = Path("data.parquet").absolute(), settings()
    written = write(data)
    dataset = RLHFDataset(
        data_files=str(data), tokenizer=processor.tokenizer, config=config, processor=processor
    )
    model = tiny_qwen_vl.make_model(folder, processor.tokenizer).eval()
    problems = []
    if len(dataset) != written:
        problems.append(f"verl's dataset has {len(dataset)} of {written} examples")
    logits = []
    for number in range(len(dataset)):
        messages = dataset[number]["raw_prompt"]
        images, _ = asyncio.run(
            RLHFDataset.process_vision_info(messages, tiny_qwen_vl.PATCH, config)
        )
        text = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        inputs = processor(text=[text], images=images, return_tensors="pt")
        count = int((inputs["input_ids"] == model.config.image_token_id).sum())
        expected = (tiny_qwen_vl.SIDE // tiny_qwen_vl.MERGED) ** 2
        if count != expected:
            problems.append(f"image {number} has {count} tokens, not {expected}")
        with torch.no_grad():
            logits.append(model(**inputs).logits[0, -1])
    apart = float((logits[0] - logits[-1]).abs().max()) if logits else 0.0
    if not (apart > 0 and all(torch.isfinite(row).all() for row in logits)):
        problems.append(f"the logits for the images differ by {apart}")
    finish(problems, f"{len(dataset)} images, logits up to {apart:.2f} apart")


if __name__ == "__main__":
    main()
