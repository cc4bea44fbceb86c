"""Tests that tokenizers of each format load from model files and decode to the original text.

Fast tokenizers are stored in tokenizer.json, SentencePiece tokenizers only in tokenizer.model, and
tiktoken tokenizers in a list of ranks. Each format is created here and is a separate result.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import tiny_qwen
from smoke_support import finish, judge

TEXT = "the sky is blue, and grey when it rains."
# Classes of transformers that read SentencePiece's files, with the model_type of AutoTokenizer.
CLASSES = {"LlamaTokenizer": "llama", "T5Tokenizer": "t5", "GemmaTokenizer": "gemma"}
PATTERN = r"'s|'t| ?\w+| ?[^\s\w]+|\s+"


def fast() -> list[str]:
    """Test tokenizer.json with AutoTokenizer."""
    from transformers import AutoTokenizer

    folder = Path("fast").absolute()
    tiny_qwen.make_tokenizer().save_pretrained(folder)
    return back(AutoTokenizer.from_pretrained(folder))


def back(tokenizer: Any) -> list[str]:
    """Return the problems of encoding and decoding `TEXT`."""
    tokens = tokenizer(TEXT)["input_ids"]
    text = tokenizer.decode(tokens, skip_special_tokens=True).strip()
    print(type(tokenizer).__name__, tokens)
    problems = [] if text == TEXT else [f"{TEXT!r} is decoded as {text!r}"]
    return problems + ([] if len(set(tokens)) > 5 else [f"the tokens are {tokens}"])


def train(folder: Path) -> None:
    """Write a tokenizer.model of SentencePiece to `folder`, without other files."""
    import sentencepiece

    folder.mkdir()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(tiny_qwen.LINES),
        model_prefix=str(folder / "tokenizer"),
        vocab_size=96,
        model_type="bpe",
        character_coverage=1.0,
        byte_fallback=False,
        unk_id=0,
        bos_id=1,
        eos_id=2,
        pad_id=3,
    )
    (folder / "tokenizer.vocab").unlink()


def pieces() -> list[str]:
    """Test tokenizer.model with SentencePiece."""
    import sentencepiece

    folder = Path("pieces").absolute()
    train(folder)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    text = processor.decode(processor.encode(TEXT))
    return [] if text == TEXT else [f"{TEXT!r} is decoded as {text!r}"]


def by_class(name: str) -> list[str]:
    """Test that the transformers class `name` loads a tokenizer.model without other files."""
    import transformers

    folder = Path(name).absolute()
    train(folder)
    if name == "T5Tokenizer":  # which searches for this name
        (folder / "tokenizer.model").rename(folder / "spiece.model")
    return back(getattr(transformers, name).from_pretrained(folder))


def automatic() -> list[str]:
    """Test tokenizer.model and the configuration of a model with AutoTokenizer."""
    from transformers import AutoTokenizer

    folder = Path("automatic").absolute()
    train(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}), "utf-8")
    about = {"tokenizer_class": "LlamaTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(about), "utf-8")
    return back(AutoTokenizer.from_pretrained(folder))


def ranks(path: Path) -> dict[bytes, int]:
    """Return the ranks of all bytes and of pairs of letters, after writing them for tiktoken."""
    tokens = [bytes([number]) for number in range(256)]
    tokens += [pair.encode() for pair in ("th", "sk", "he", "is", "in", "bl")]
    rows = [f"{base64.b64encode(token).decode()} {rank}" for rank, token in enumerate(tokens)]
    path.write_text("\n".join(rows) + "\n", "ascii")
    return {token: rank for rank, token in enumerate(tokens)}


def by_tiktoken() -> list[str]:
    """Test a list of ranks with tiktoken."""
    import tiktoken
    from tiktoken.load import load_tiktoken_bpe

    path = Path("ranks.tiktoken").absolute()
    written = ranks(path)
    try:
        read = load_tiktoken_bpe(str(path))
    except ImportError as error:  # tiktoken 0.9 reads files with blobfile, one of its extras
        print(error)
        if "blobfile" not in str(error):
            raise
        read = written
    if read != written:
        return [f"{len(read)} ranks are read, not the {len(written)} written ones"]
    encoding = tiktoken.Encoding(
        "smoke",
        pat_str=PATTERN,
        mergeable_ranks=read,
        special_tokens={"<|end|>": 262},
    )
    tokens = encoding.encode(TEXT)
    problems = [] if 256 in tokens else [f"no pair was merged: {tokens}"]
    text = encoding.decode(tokens)
    return problems + ([] if text == TEXT else [f"{TEXT!r} is decoded as {text!r}"])


KINDS: dict[str, Callable[[], list[str]]] = {
    "fast": fast,
    "sentencepiece": pieces,
    **{name: partial(by_class, name) for name in CLASSES},
    "AutoTokenizer, tokenizer.model": automatic,
    "tiktoken": by_tiktoken,
}


def main() -> None:
    """Test each format."""
    problems = []
    for name, kind in KINDS.items():
        problems += judge(f"tokenizers: {name}", kind)
    finish(problems, f"{len(KINDS)} tokenizer formats")


if __name__ == "__main__":
    main()
