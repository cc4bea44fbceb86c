"""Creates a tiny Qwen2.5-VL with random weights and its processor offline."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import tiny_qwen

SPECIAL = ("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>")
# As Qwen2.5-VL's, without videos.
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PATCH, MERGED = 14, 28  # pixels of a patch, and of the square of patches that is one token
PIXELS = (4 * MERGED**2, 64 * MERGED**2)  # bounds of an image: 4 to 64 tokens
CLASS = {"tokenizer_class": "Qwen2Tokenizer"}
SIDE = 4 * MERGED  # pixels of the images below: 16 tokens


def images() -> list[Any]:
    """Return two images: one with stripes, and one with a ramp of colours."""
    from PIL import Image

    stripes = Image.new("RGB", (SIDE, SIDE), "white")
    stripes.paste("red", (0, 0, SIDE // 2, SIDE))
    ramp = Image.new("RGB", (SIDE, SIDE))
    ramp.putdata([(2 * x, 2 * y, 255 - x - y) for y in range(SIDE) for x in range(SIDE)])
    return [stripes, ramp]


def make_processor(folder: Path) -> Any:
    """Create the processor of the model and save it in `folder`.

    A processor requires a tokenizer of Qwen's class, which is loaded from the files of another
    tokenizer.
    """
    from transformers import AutoTokenizer, Qwen2_5_VLProcessor, Qwen2VLImageProcessor

    tokenizer_folder = folder / "tokenizer"
    tiny_qwen.make_tokenizer(SPECIAL).save_pretrained(tokenizer_folder)
    settings = tokenizer_folder / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | CLASS))
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder, padding_side="left")
    bounds = {"min_pixels": PIXELS[0], "max_pixels": PIXELS[1]}
    parts: dict[str, Any] = {
        "image_processor": Qwen2VLImageProcessor(**bounds),
        "tokenizer": tokenizer,
        "chat_template": CHAT,
    }
    if "video_processor" in inspect.signature(Qwen2_5_VLProcessor).parameters:
        from transformers import Qwen2VLVideoProcessor

        parts["video_processor"] = Qwen2VLVideoProcessor(**bounds)
    processor = Qwen2_5_VLProcessor(**parts)
    tokenizer.chat_template = CHAT
    processor.save_pretrained(folder)
    return processor


def settings(tokenizer: Any) -> dict[str, Any]:
    """Return the config.json of the model, which every version of transformers can read."""
    words = ("image_pad", "video_pad", "vision_start", "vision_end")
    image, video, start, end = tokenizer.convert_tokens_to_ids([f"<|{word}|>" for word in words])
    return {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": "qwen2_5_vl",
        "torch_dtype": "bfloat16",
        "vocab_size": len(tokenizer),
        "hidden_size": 256,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": tiny_qwen.POSITIONS,
        "rope_theta": 1_000_000.0,
        "rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]},  # of a head size of 64
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "bos_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "image_token_id": image,
        "video_token_id": video,
        "vision_start_token_id": start,
        "vision_end_token_id": end,
        "vision_config": {
            "model_type": "qwen2_5_vl",
            "depth": 2,
            "hidden_size": 128,
            "num_heads": 2,
            "intermediate_size": 128,
            "out_hidden_size": 256,
            "fullatt_block_indexes": [1],
            "patch_size": PATCH,
        },
    }


def make_model(folder: Path, tokenizer: Any, seed: int = 0) -> Any:
    """Create a float32 Qwen2.5-VL with two layers of each part, and write config.json."""
    import torch
    from transformers import AutoConfig, Qwen2_5_VLForConditionalGeneration

    torch.manual_seed(seed)
    write_settings(folder, tokenizer)
    return Qwen2_5_VLForConditionalGeneration(AutoConfig.from_pretrained(folder)).float()


def write_settings(folder: Path, tokenizer: Any) -> None:
    """Write config.json again, because `save_pretrained` writes the format of its version."""
    (folder / "config.json").write_text(json.dumps(settings(tokenizer), indent=1))
