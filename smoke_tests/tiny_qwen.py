"""Creates a tiny Qwen3 or Qwen2 with random weights and a tokenizer offline."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

END, PAD = "<|im_end|>", "<|endoftext|>"
POSITIONS = 1024  # the longest sequence
DRAWN = 1_048_583  # a prime: no two rows of a tensor are the same
LINES = [
    "Count to three: one, two, three.",
    "What is the capital of France? Paris is the capital of France.",
    "Add two and two: the sum of two and two is four.",
    "Name a colour of the sky: the sky is blue, and grey when it rains.",
] * 8
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tokenizer(special: tuple[str, ...] = ()) -> Any:
    """Return a byte-level BPE tokenizer with merges, Qwen's special tokens and `special`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=384,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[PAD, "<|im_start|>", END, *special],
        show_progress=False,
    )
    tokenizer.train_from_iterator(LINES, trainer)
    # As in Qwen's own: otherwise it returns token_type_ids, which TRL 0.23 passes to generate.
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        model_input_names=["input_ids", "attention_mask"],
    )
    fast.chat_template = CHAT
    fast.padding_side = "left"
    return fast


def make_model(tokenizer: Any, seed: int = 0, multiple: int = 1) -> Any:
    """Return a float32 Qwen3 with two layers, grouped queries and an untied head.

    The vocabulary of the tokenizer is padded to a multiple of `multiple`. Before transformers 4.51,
    the model is a Qwen2 with two heads: with four heads, greedy tokens in bf16 and float32 differed
    on a CPU.
    """
    import torch
    import transformers

    torch.manual_seed(seed)
    newer = hasattr(transformers, "Qwen3ForCausalLM")
    config_class = transformers.Qwen3Config if newer else transformers.Qwen2Config
    model_class = transformers.Qwen3ForCausalLM if newer else transformers.Qwen2ForCausalLM
    config = config_class(
        vocab_size=-(-len(tokenizer) // multiple) * multiple,
        hidden_size=64 if newer else 128,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4 if newer else 2,
        num_key_value_heads=2 if newer else 1,
        head_dim=64,  # supported by every attention kernel of vLLM and FlashInfer
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return model_class(config).float()


def make_half_billion(tokenizer: Any, seed: int = 2) -> Any:
    """Return a model with the shape of Qwen2.5-0.5B and random weights in bf16, to save and load.

    The weights are repeated, because drawing all 494 million numbers on one processor takes too
    long. With `seed` 2, the two best logits differ enough at all positions that gpu_vllm compares.
    With 0, 1 and 3, they are too close at up to 9 of 256 positions.
    """
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=151_936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        max_position_embeddings=POSITIONS,
        rms_norm_eps=1e-6,
        rope_theta=1_000_000.0,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.device("meta"):
        model = Qwen2ForCausalLM(config)
    model = model.to(torch.bfloat16).to_empty(device="cpu")
    model.tie_weights()  # each has its own memory
    fill(model, config.initializer_range, torch.Generator().manual_seed(seed))
    return model


def fill(model: Any, spread: float, chance: Any) -> None:
    """Initialize `model` as for training, with normal weights, norms of one and biases of zero.

    A million numbers are drawn, and repeated from a different offset in each tensor.
    """
    import torch

    drawn = torch.randn(DRAWN, generator=chance) * spread
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if tensor.ndim == 1:
                tensor.fill_(0.0 if name.endswith("bias") else 1.0)
                continue
            begin = int(torch.randint(DRAWN, (1,), generator=chance))
            turned = drawn.roll(-begin).to(tensor.dtype)
            times = -(-tensor.numel() // DRAWN)
            tensor.copy_(turned.repeat(times)[: tensor.numel()].view_as(tensor))


def sharpen(model: Any, count: int, factor: float, below: int) -> Any:
    """Scale the head rows of `count` tokens under `below` in `model` by `factor`.

    Random weights yield close logits, so rounding to bf16 would decide many greedy tokens. Scaling
    a few rows separates the two best logits.
    """
    import torch

    chosen = torch.Generator().manual_seed(5)
    weight = model.lm_head.weight
    rows = torch.randperm(below, generator=chosen)[:count]
    with torch.no_grad():
        weight[rows] *= factor
    return model


def save(folder: Path, model: Any = None, *, half: bool = False) -> Path:
    """Save a model (default: the tiny model) and its tokenizer in a folder for `from_pretrained`.

    With `half`, the weights are saved in bf16, which vLLM then uses.
    """
    import torch

    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(folder)
    saved_model = make_model(tokenizer) if model is None else model
    if half:
        saved_model = saved_model.to(torch.bfloat16)
    saved_model.save_pretrained(folder)
    return folder


if __name__ == "__main__":
    save(Path(sys.argv[1]), half=True)
