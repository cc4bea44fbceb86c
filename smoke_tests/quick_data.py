"""Writes data in the formats that the first commands of frameworks read, and a reward function."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

QUESTIONS = {
    "Count to three:": "one, two, three.",
    "What is the capital of France?": "Paris is the capital of France.",
    "Add two and two:": "two and two is four.",
    "Name a colour of the sky:": "the sky is blue, and grey when it rains.",
}
COPIES = 2
REWARD = '''\
def letters(completions, **_):
    """The share of letters and blanks in each completion."""
    texts = [text if isinstance(text, str) else text[-1]["content"] for text in completions]
    good = [sum(one == " " or (one.isascii() and one.isalpha()) for one in text) for text in texts]
    return [count / max(1, len(text)) for count, text in zip(good, texts)]
'''

# Configurations of DeepSpeed, by file name; "auto" is what the trainer's arguments give.
_DEEPSPEED: dict[str, Any] = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"},
    "optimizer": {
        "type": "AdamW",
        "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"},
    },
}
DEEPSPEED: dict[str, dict[str, Any]] = {
    "zero2.json": {**_DEEPSPEED, "zero_optimization": {"stage": 2}},
    "offload.json": {
        **_DEEPSPEED,
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": {"device": "cpu"},
            "stage3_gather_16bit_weights_on_model_save": True,
        },
    },
}


def user(question: str) -> list[dict[str, str]]:
    """Return a conversation with one question."""
    return [{"role": "user", "content": question}]


def assistant(answer: str) -> list[dict[str, str]]:
    """Return an answer to a conversation."""
    return [{"role": "assistant", "content": answer}]


def chat() -> list[dict[str, Any]]:
    """Return the conversations for fine-tuning."""
    return [
        {"messages": user(question) + assistant(answer)} for question, answer in QUESTIONS.items()
    ]


def turns() -> list[dict[str, Any]]:
    """Return the conversations of four messages for verl's fine-tuning."""
    rows = chat()
    return [
        {"messages": row["messages"] + other["messages"]}
        for row, other in zip(rows, reversed(rows), strict=True)
    ]


def preference() -> list[dict[str, Any]]:
    """Return a better and a worse answer to each question."""
    return [
        {"prompt": user(question), "chosen": assistant(answer), "rejected": assistant("no.")}
        for question, answer in QUESTIONS.items()
    ]


def unpaired() -> list[dict[str, Any]]:
    """Return the answers, each with a judgement. Half of them are good."""
    return [
        {
            "prompt": user(question),
            "completion": assistant(answer if number % 2 else "no."),
            "label": bool(number % 2),
        }
        for number, (question, answer) in enumerate(QUESTIONS.items())
    ]


def prompt() -> list[dict[str, Any]]:
    """Return the questions without answers."""
    return [{"prompt": user(question)} for question in QUESTIONS]


def columns() -> list[dict[str, Any]]:
    """Return the columns written by verl's preprocessing."""
    return [
        {
            "data_source": "smoke",
            "prompt": user(question),
            "ability": "letters",
            "reward_model": {"style": "rule", "ground_truth": answer},
            "extra_info": {"split": "train", "index": number},
        }
        for number, (question, answer) in enumerate(QUESTIONS.items())
    ]


KINDS: dict[str, tuple[Callable[[], list[dict[str, Any]]], str]] = {
    "chat": (chat, "train.jsonl"),
    "preference": (preference, "train.jsonl"),
    "unpaired": (unpaired, "train.jsonl"),
    "prompt": (prompt, "train.jsonl"),
    "verl chat": (turns, "train.parquet"),
    "verl prompt": (columns, "train.parquet"),
}


def write(kind: str, folder: Path) -> Path:
    """Write data of `kind` to `folder`. Returns the folder for JSON lines, or else the file."""
    make, name = KINDS[kind]
    rows = make() * COPIES
    folder.mkdir()
    if name.endswith(".jsonl"):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
        return folder
    from datasets import Dataset

    Dataset.from_list(rows).to_parquet(str(folder / name))
    return folder / name
