"""Creates an adapter with random weights for the tiny Qwen in PEFT's format, without PEFT."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RANK = 8
MODULES = ("v_proj", "o_proj")
SPREAD = 0.1  # large enough to change greedy tokens of the sharpened tiny model


def request(folder: Path) -> Any:
    """Write the adapter for the model in `folder`, and return vLLM's request for it."""
    from vllm.lora.request import LoRARequest

    return LoRARequest("smoke", 1, str(write(folder)))


def place(folder: Path) -> Path:
    """Return the folder of the adapter for the model in `folder`."""
    return folder.with_name(f"{folder.name}-adapter")


def write(folder: Path) -> Path:
    """Write the adapter for the model in `folder`, and return the folder of the adapter."""
    import torch
    from safetensors.torch import load_file, save_file

    generator = torch.Generator().manual_seed(11)
    halves = {}
    for name, weight in load_file(folder / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if module.endswith(MODULES):
            rows, columns = weight.shape
            for half, shape in (("lora_A", (RANK, columns)), ("lora_B", (rows, RANK))):
                drawn = torch.randn(shape, generator=generator) * SPREAD
                halves[f"base_model.model.{module}.{half}.weight"] = drawn.to(torch.bfloat16)
    target = place(folder)
    target.mkdir()
    save_file(halves, target / "adapter_model.safetensors", metadata={"format": "pt"})
    about = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": str(folder),
        "r": RANK, "lora_alpha": RANK, "lora_dropout": 0.0, "bias": "none",
        "target_modules": list(MODULES), "inference_mode": True,
    }  # fmt: skip
    (target / "adapter_config.json").write_text(json.dumps(about, indent=1), "utf-8")
    return target


def merge(model: Any, folder: Path) -> None:
    """Add the adapter for the model in `folder` to `model`, a transformers model."""
    import torch
    from safetensors.torch import load_file

    halves = load_file(place(folder) / "adapter_model.safetensors")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            key = f"base_model.model.{name.removesuffix('.weight')}"
            if f"{key}.lora_A.weight" in halves:
                first, second = (halves[f"{key}.lora_{half}.weight"].float() for half in "AB")
                weight.add_((second @ first).to(weight.device, weight.dtype))
