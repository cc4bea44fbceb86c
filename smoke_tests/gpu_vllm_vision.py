"""Tests that vLLM and transformers generate the same greedy tokens for images, with Qwen2.5-VL.

Prompts must have the same tokens in vLLM and in the processor of transformers. As in gpu_vllm, the
reference is computed from the output of vLLM. The reference must depend on the image.
"""

from __future__ import annotations

import itertools
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gpu_vllm
import smoke_gpu
import smoke_stack
import tiny_qwen
import tiny_qwen_vl
from smoke_support import skip

SEED, SPREAD = 3, 0.02
QUESTIONS = ["What is in this image?", "Name a colour of the sky:"]


def make(folder: Path) -> Any:
    """Save the model in bf16 in `folder`, and return its processor.

    The weights are set here, because the random weights of transformers differ between versions of
    torch. With `SEED`, the two best logits of the reference on a CPU are far enough apart at 122
    positions, and bf16 changes logits by up to 0.19.
    """
    import torch

    processor = tiny_qwen_vl.make_processor(folder)
    model = tiny_qwen_vl.make_model(folder, processor.tokenizer)
    tiny_qwen.fill(model, SPREAD, torch.Generator().manual_seed(SEED))
    sharp = tiny_qwen.sharpen(model, count=16, factor=30, below=len(processor.tokenizer))
    special = processor.tokenizer.convert_tokens_to_ids(list(tiny_qwen_vl.SPECIAL))
    sharp.lm_head.weight.data[special] = 0  # never the best: no image begins in a completion
    sharp.to(torch.bfloat16).save_pretrained(folder)
    tiny_qwen_vl.write_settings(folder, processor.tokenizer)
    return processor


def image_prompts(processor: Any) -> list[tuple[str, Any]]:
    """Return the prompt, with a placeholder, and the image for each question and image."""
    pairs = []
    for question, image in itertools.product(QUESTIONS, tiny_qwen_vl.images()):
        content = [{"type": "image"}, {"type": "text", "text": question}]
        messages = [{"role": "user", "content": content}]
        text = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        pairs.append((text, image))
    return pairs


def inputs(processor: Any, text: str, image: Any, device: Any, more: int = 0) -> dict[str, Any]:
    """Return transformers' inputs for a text and an image, with `more` tokens after the text."""
    from torch.nn.functional import pad

    tensors = dict(processor(text=[text], images=[image], return_tensors="pt").to(device))
    for name, value in (("attention_mask", 1), ("mm_token_type_ids", 0)):
        if name in tensors:  # since transformers 5 it marks the tokens of an image
            tensors[name] = pad(tensors[name], (0, more), value=value)
    return tensors


def removed() -> str | None:
    """Return the class that vLLM 0.7 imports for this model, if transformers lacks it."""
    from transformers.models import qwen2_5_vl

    name = "Qwen2_5_VLImageProcessor"
    imported = name in smoke_stack.source("vllm", "model_executor/models/qwen2_5_vl.py")
    return name if imported and not hasattr(qwen2_5_vl, name) else None


def main() -> None:
    """Generate with vLLM and compare the tokens."""
    smoke_gpu.require()
    if removed() is not None:
        skip(
            f"vLLM {version('vllm')} imports {removed()}, which transformers"
            f" {version('transformers')} does not have"
        )
    gpu_vllm.surround("vision")
    folder = Path("model").absolute()
    processor = make(folder)
    prompts = image_prompts(processor)
    from vllm import LLM  # noqa: F401  # slow imports, before the turn on the GPU

    smoke_gpu.turn(alone=smoke_stack.measures_memory())
    llm = smoke_stack.engine(
        folder, enforce_eager=True, limit_mm_per_prompt={"image": 1, "video": 0}
    )
    outputs = llm.generate(
        [{"prompt": text, "multi_modal_data": {"image": image}} for text, image in prompts],
        smoke_stack.sampling(temperature=0.0, max_tokens=gpu_vllm.TOKENS, ignore_eos=True),
        use_tqdm=False,
    )
    read = [[int(token) for token in output.prompt_token_ids] for output in outputs]
    written = [[int(token) for token in output.outputs[0].token_ids] for output in outputs]
    problems, summary = judge(folder, processor, read, written)
    smoke_gpu.end(problems, f"{summary}; {len(prompts)} prompts with an image")


def judge(
    folder: Path,
    processor: Any,
    read: list[list[int]],
    written: list[list[int]],
    device: str = "cuda",
) -> tuple[list[str], str]:
    """Return the problems with the prompts that vLLM `read` and the completions that it wrote."""
    import torch
    from transformers import Qwen2_5_VLForConditionalGeneration

    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(folder).float().eval().to(device)
    problems, extras, first = [], [], []
    for number, (text, image) in enumerate(image_prompts(processor)):
        given = inputs(processor, text, image, device)
        expected = given["input_ids"][0].tolist()
        if read[number] != expected:
            problems.append(
                f"prompt {number} has the tokens {read[number]} in vLLM, not {expected}"
            )
        with torch.no_grad():
            first.append(model(**given).logits[0, -1].float())
        extra = inputs(processor, text, image, device, more=len(written[number]))
        del extra["input_ids"]
        extras.append(extra)
    apart = float((first[0] - first[1]).abs().max())
    if not apart > gpu_vllm.BOUND["vision"]:
        problems.append(f"the reference's logits for two images differ by {apart:.3f} only")
    if problems:
        return problems, ""
    differences, summary = gpu_vllm.compare(model, read, written, "vision", extras)
    return differences, f"{summary}, logits of two images up to {apart:.1f} apart"


if __name__ == "__main__":
    main()
