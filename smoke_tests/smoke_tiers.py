"""Lists the cases of each tier, with their time limits and required packages."""

from __future__ import annotations

from typing import NamedTuple

import quick_table


class Case(NamedTuple):
    """A script with its arguments and its time limit in seconds.

    The case is skipped if the lock does not contain all packages in `needs`. If a `gate` does not
    pass, the rest of the tier is not started. `usual` is the time in seconds on an H200. With
    --jobs, the slowest cases start first.
    """

    name: str
    script: str
    limit: float
    arguments: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    gate: bool = False
    usual: float = 5


VLLM = ("torch", "vllm", "transformers")
TRL = (*VLLM, "trl")
VERL = ("verl", "vllm", "ray")
VERL_SGLANG = ("verl", "sglang", "ray")
SAVER = ("sglang", "torch-memory-saver")
# vLLM's backends for structured output, by the names of its documentation.
BACKENDS = ("xgrammar", "guidance", "outlines", "lm-format-enforcer")
MASKED = ("xgrammar", "guidance")  # by xgrammar's kernel in all versions of vLLM that have both
TOKENIZERS = ("transformers", "sentencepiece", "tiktoken")
LORA = ("torch", "transformers", "trl", "peft", "math-verify")


def quick_starts(tier: str) -> tuple[Case, ...]:
    """Return the cases of `tier` in quick_table.py."""
    return tuple(
        Case(row.name, "quick_start.py", row.limit, (row.name,), row.needs, usual=row.usual)
        for row in quick_table.of_tier(tier)
    )


TIERS: dict[str, tuple[Case, ...]] = {
    "static": (
        Case("system", "static_system.py", 60),
        Case("versions", "static_versions.py", 60),
        Case("requirements", "static_requirements.py", 120, needs=("pip",)),
        Case("files", "static_files.py", 300),
        Case("compiler", "static_compiler.py", 120),
        Case("triton launcher", "static_triton.py", 300),
        Case("nvcc", "static_nvcc.py", 300),
        Case("sglang kernels", "static_sglang.py", 900, needs=("sglang", "torch")),
        Case("sglang preload", "static_preload.py", 120, needs=SAVER),
        Case("entry points", "static_entry_points.py", 900),
        Case("imports", "static_imports.py", 1800),
    ),
    "cpu": (
        Case("tokenizers", "cpu_tokenizers.py", 300, needs=TOKENIZERS),
        Case("vllm reads a model", "cpu_vllm_model.py", 600, needs=("vllm", "transformers")),
        Case("grpo step", "cpu_grpo_step.py", 900),
        Case("grpo step, lora", "cpu_grpo_lora.py", 900, needs=LORA),
        Case(
            "verl reads images",
            "cpu_verl_vision.py",
            600,
            needs=("verl", "qwen-vl-utils", "torchvision", "pillow"),
        ),
        Case("verl columns", "cpu_verl_columns.py", 300, needs=("verl",)),
        # Other images have Ray only for vLLM, without its dashboard.
        Case("ray job", "cpu_ray_job.py", 400, needs=("ray", "aiohttp-cors"), usual=60),
        *quick_starts("cpu"),
    ),
    "gpu": (
        Case("device", "gpu_device.py", 120, ("1",), gate=True),
        Case("cuda", "gpu_cuda.py", 180, needs=("torch",)),
        Case("matrix product", "gpu_matmul.py", 180, needs=("torch",)),
        Case("triton kernel", "gpu_triton.py", 180, needs=("torch", "triton"), usual=16),
        Case("nccl", "gpu_nccl.py", 180, ("1",), needs=("torch",)),
        Case(
            "flashinfer", "gpu_flashinfer.py", 600, needs=("torch", "flashinfer-python"), usual=100
        ),
        Case("vllm graphs", "gpu_vllm.py", 600, ("graphs",), needs=VLLM, usual=70),
        Case("vllm eager, safetensors", "gpu_vllm.py", 600, ("eager",), needs=VLLM, usual=27),
        Case("vllm 0.5B shape", "gpu_vllm.py", 600, ("half-billion",), needs=VLLM, usual=80),
        Case("vllm fp16", "gpu_vllm.py", 600, ("fp16",), needs=VLLM, usual=30),
        Case("vllm ngram", "gpu_vllm.py", 600, ("ngram",), needs=VLLM, usual=30),
        Case("vllm lora", "gpu_vllm.py", 600, ("lora",), needs=VLLM, usual=30),
        Case(
            "vllm fastsafetensors",
            "gpu_vllm.py",
            600,
            ("fastsafetensors",),
            needs=(*VLLM, "fastsafetensors"),
            usual=30,
        ),
        *(
            Case(f"vllm {backend}", "gpu_vllm_structured.py", 600, (backend,), VLLM, usual=35)
            for backend in BACKENDS
        ),
        *(
            Case(
                f"vllm {backend}, unpadded vocabulary",
                "gpu_vllm_structured.py",
                600,
                (backend, "unpadded"),
                needs=(*VLLM, "xgrammar"),
                usual=35,
            )
            for backend in MASKED
        ),
        Case(
            "vllm qwen2.5-vl",
            "gpu_vllm_vision.py",
            600,
            needs=(*VLLM, "torchvision", "pillow"),
            usual=60,
        ),
        Case("grpo step, vllm colocated", "gpu_grpo.py", 600, ("colocate",), needs=TRL, usual=60),
        Case("grpo step, lora", "gpu_grpo_lora.py", 600, needs=LORA, usual=60),
        Case("sft step", "gpu_sft.py", 300, needs=("torch", "transformers", "trl"), usual=10),
        Case(
            "sft step, fp16",
            "gpu_sft.py",
            300,
            ("fp16",),
            needs=("torch", "transformers", "trl"),
            usual=10,
        ),
        Case("trl vllm-serve", "gpu_serve.py", 600, ("trl",), needs=TRL, usual=50),
        Case("vllm serve", "gpu_serve.py", 600, ("vllm",), needs=VLLM, usual=45),
        Case(
            "deepspeed step",
            "gpu_sft.py",
            600,
            ("deepspeed",),
            needs=("trl", "deepspeed"),
            usual=30,
        ),
        Case("grpo step, verl", "gpu_verl.py", 900, ("grpo", "vllm"), needs=VERL, usual=170),
        Case("ppo step, verl", "gpu_verl.py", 900, ("ppo", "vllm"), needs=VERL, usual=100),
        Case(
            "grpo step, verl and sglang",
            "gpu_verl.py",
            900,
            ("grpo", "sglang"),
            needs=VERL_SGLANG,
            usual=180,
        ),
        Case(
            "ppo step, verl and sglang",
            "gpu_verl.py",
            900,
            ("ppo", "sglang"),
            needs=VERL_SGLANG,
            usual=180,
        ),
        Case("sglang", "gpu_sglang.py", 600, ("1",), needs=("torch", "sglang"), usual=60),
        Case("sglang memory saver", "gpu_sglang_memory.py", 600, needs=("torch", *SAVER), usual=60),
        Case("sglang serve", "gpu_serve.py", 900, ("sglang",), needs=("torch", "sglang"), usual=90),
        Case("unsloth", "gpu_unsloth.py", 600, ("sft",), needs=("unsloth", "trl"), usual=60),
        Case(
            "unsloth notebook",
            "gpu_unsloth.py",
            600,
            ("notebook",),
            needs=("unsloth", "trl"),
            usual=60,
        ),
        Case(
            "grpo step, unsloth",
            "gpu_unsloth.py",
            900,
            ("grpo",),
            needs=("unsloth", "trl", "vllm"),
            usual=120,
        ),
        *quick_starts("gpu"),
    ),
    "multi-gpu": (
        Case("devices", "gpu_device.py", 120, ("2",), gate=True),
        Case("nccl all-reduce", "gpu_nccl.py", 300, ("2",), needs=("torch",)),
        Case("vllm tensor parallel", "gpu_vllm.py", 900, ("parallel",), needs=VLLM),
        Case("vllm serve, data parallel", "gpu_serve.py", 900, ("parallel",), needs=VLLM),
        Case("grpo step, vllm server", "gpu_grpo.py", 900, ("server",), needs=TRL),
        Case("deepspeed step", "gpu_sft.py", 900, ("deepspeed", "2"), needs=("trl", "deepspeed")),
        Case("sglang tensor parallel", "gpu_sglang.py", 900, ("2",), needs=("torch", "sglang")),
        *quick_starts("multi-gpu"),
    ),
}
