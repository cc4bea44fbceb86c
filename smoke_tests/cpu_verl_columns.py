"""Tests that verl reads the columns that its preprocessing writes.

The examples in verl's documentation begin with scripts that write data files for rollouts and for
fine-tuning. This case writes other questions with the same columns, and reads them with verl's data
sets and default settings.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import quick_data
import smoke_stack
import tiny_qwen
from smoke_support import finish, judge, skip


def defaults(name: str) -> Any:
    """Return the data settings of verl's configuration `name`."""
    import hydra

    place = f"{smoke_stack.folder('verl')}/trainer/config"
    with hydra.initialize_config_dir(place, version_base=None):
        return hydra.compose(name, ["++data.filter_overlong_prompts_workers=null"]).data


def rollouts(tokenizer: Any) -> list[str]:
    """Return the problems with the data set of prompts."""
    from verl.utils.dataset.rl_dataset import RLHFDataset

    path = quick_data.write("verl prompt", Path("prompts").absolute())
    data = RLHFDataset(data_files=str(path), tokenizer=tokenizer, config=defaults("ppo_trainer"))
    written = quick_data.columns() * quick_data.COPIES
    problems = [] if len(data) == len(written) else [f"{len(data)} of {len(written)} rows are read"]
    for number, row in enumerate(written[: len(data)]):
        read = data[number]
        lacking = row.keys() - {"prompt"} - read.keys()
        if lacking:
            problems.append(f"row {number} has no {', '.join(sorted(lacking))}")
        elif read["reward_model"]["ground_truth"] != row["reward_model"]["ground_truth"]:
            problems.append(f"row {number} has the ground truth of another row")
    return problems


def conversations(tokenizer: Any) -> list[str]:
    """Return the problems with the data set of conversations, where only answers have a loss."""
    from verl.utils.dataset.multiturn_sft_dataset import MultiTurnSFTDataset

    path = quick_data.write("verl chat", Path("conversations").absolute())
    data = MultiTurnSFTDataset(
        parquet_files=str(path), tokenizer=tokenizer, config=defaults("sft_trainer_engine")
    )
    problems = []
    for number in range(len(data)):
        mask = data[number]["loss_mask"]
        if not 0 < int(mask.sum()) < len(mask):
            problems.append(f"row {number}: {int(mask.sum())} of {len(mask)} tokens are trained")
    return problems if len(data) else ["no row was read"]


def main() -> None:
    """Test both data sets."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # this tier uses the CPU even if there is a GPU
    os.environ["HF_HOME"] = str(Path("hf").absolute())
    if not smoke_stack.source("verl", "trainer/config/sft_trainer_engine.yaml"):
        skip("the columns are those of verl since 0.7")
    tokenizer = tiny_qwen.make_tokenizer()
    problems = judge("verl columns: prompts", lambda: rollouts(tokenizer))
    problems += judge("verl columns: conversations", lambda: conversations(tokenizer))
    finish(problems, "prompts and conversations")


if __name__ == "__main__":
    main()
