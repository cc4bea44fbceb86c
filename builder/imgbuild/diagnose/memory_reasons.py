"""Explains why a GPU ran out of memory."""

# A separate module: by the sizes in the message of torch.
from __future__ import annotations

import re

from imgbuild.diagnose.finding import Reason

CODE = "IMG1364"
GENERAL = "IMG520"  # the rule for all messages of this form
SIZE = r"(?P<{}>\d[\d.]{{0,12}}) ?(?P<{}_unit>[KMGT])i?B"
SIZES = {
    "asked": re.compile(r"Tried to allocate " + SIZE.format("asked", "asked")),
    "total": re.compile(
        r"(?:total capacity of |GPU \d+; )" + SIZE.format("total", "total"), re.IGNORECASE
    ),
    "free": re.compile(
        rf"(?:of which {SIZE.format('free', 'free')} is free|"
        rf"already allocated; {SIZE.format('left', 'left')} free)"
    ),
    "own": re.compile(
        rf"(?:this process has {SIZE.format('own', 'own')} memory in use|"
        rf"free; {SIZE.format('held', 'held')} (?:reserved|cached))"
    ),
}
GIB = {"K": 2**-20, "M": 2**-10, "G": 1.0, "T": 1024.0}
LARGE = 0.5  # of the GPU's memory: more than layers or batches of usual sizes need at once
FOREIGN = 0.4  # of the GPU's memory
CONTEXT = 1.0  # GiB outside of torch's allocator


def memory_reason(text: str) -> Reason | None:
    """Return the cause for a message about GPU memory whose sizes show it, or else None."""
    sizes = {name: size for name in SIZES if (size := _size(name, text)) is not None}
    asked, total = sizes.get("asked"), sizes.get("total")
    if asked is None or not total:
        return None
    if asked >= LARGE * total:
        return Reason(
            code=CODE,
            cause=f"one tensor of {asked:.4g} GiB is requested on a GPU of {total:.4g} GiB:"
            " attention scores of the whole sequence (attention without FlashAttention or SDPA),"
            " the logits of a long sequence, an image or video of full size, or a KV cache that is"
            " set too large",
            cure="install and select a fused attention (attn_implementation='flash_attention_2' or"
            " 'sdpa'), lower the sequence length or the pixels of images (max_length,"
            " max_model_len, max_pixels), and compute fewer logits at once (use_liger_kernel=True,"
            " logits_to_keep, a smaller per-device batch); it is not fragmentation",
        )
    if "free" not in sizes or "own" not in sizes:
        return None
    others = total - sizes["free"] - sizes["own"] - CONTEXT
    if others < FOREIGN * total:
        return None
    return Reason(
        code=CODE,
        cause=f"other processes use about {others:.0f} of the GPU's {total:.4g} GiB, and this"
        f" process only {sizes['own']:.4g} GiB: an earlier run, another user, or another process of"
        " this run (an engine of vLLM, a rank on the same GPU)",
        cure="end the others (nvidia-smi shows their process IDs; fuser -v /dev/nvidia*), choose a"
        " free GPU with CUDA_VISIBLE_DEVICES, give each rank its own GPU"
        " (torch.cuda.set_device(local_rank)), or lower vLLM's gpu_memory_utilization",
    )


def _size(name: str, text: str) -> float | None:
    """Return a size in GiB, or None if the message does not contain it."""
    match = SIZES[name].search(text)
    if match is None:
        return None
    found = {key: value for key, value in match.groupdict().items() if value}
    value = next(value for key, value in found.items() if not key.endswith("_unit"))
    unit = next(value for key, value in found.items() if key.endswith("_unit"))
    try:
        return float(value) * GIB[unit.upper()]
    except ValueError:
        return None
