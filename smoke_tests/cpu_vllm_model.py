"""Tests that vLLM reads the configuration and tokenizer of a model, as it does before using a GPU.

Both are classes of transformers whose attributes vLLM uses. With an incompatible version of
transformers, the import of vLLM succeeds, but its start and this case fail ("has no attribute
all_special_tokens_extended").
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

import tiny_qwen
from smoke_support import finish

PLACES = ("vllm.tokenizers", "vllm.transformers_utils.tokenizer")  # since 0.13, and before it
TEXTS = [*dict.fromkeys(tiny_qwen.LINES), f"<|im_start|>user\nOne, two{tiny_qwen.END}\n"]


def saved(folder: Path) -> Path:
    """Save a tokenizer, and the configuration of a model that every version of vLLM supports."""
    from transformers import Qwen2Config

    tokenizer = tiny_qwen.make_tokenizer()
    tokenizer.save_pretrained(folder)
    Qwen2Config(
        vocab_size=len(tokenizer),
        max_position_embeddings=tiny_qwen.POSITIONS,
        architectures=["Qwen2ForCausalLM"],
    ).save_pretrained(folder)
    return folder


def reader() -> Any:
    """Return the function of vLLM that loads a tokenizer."""
    import vllm  # noqa: F401  # it patches transformers, so it is imported first

    for place in PLACES:
        if importlib.util.find_spec(place) is not None:
            return importlib.import_module(place).get_tokenizer
    message = f"vLLM has none of {', '.join(PLACES)}"
    raise ImportError(message)


def main() -> None:
    """Compare the tokens, the decoded text and the model class with those of transformers."""
    folder = saved(Path("model").absolute())
    from transformers import AutoTokenizer
    from vllm.transformers_utils.config import get_config

    config = get_config(str(folder), trust_remote_code=False)
    problems = []
    if config.architectures != ["Qwen2ForCausalLM"]:
        problems.append(f"vLLM reads the architectures {config.architectures}")
    tokenizer = reader()(str(folder))
    plain = AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        tokens, expected = tokenizer.encode(text), plain.encode(text)
        if tokens != expected:
            problems.append(f"vLLM reads {text!r} as {tokens}, transformers as {expected}")
        if tokenizer.decode(tokens) != text:
            problems.append(f"{text!r} is decoded as {tokenizer.decode(tokens)!r}")
    finish(problems, f"{type(config).__name__}, {type(tokenizer).__name__}: {len(TEXTS)} texts")


if __name__ == "__main__":
    main()
