"""Tests FlashInfer's attention and sampling against a reference, in the mode of this image.

The lock sets the mode. In the mode `prebuilt`, no kernel may be compiled. In the mode `jit`, nvcc
in the image compiles kernels that are in no wheel. In the mode `off`, vLLM does not use FlashInfer.
Kernels that the wheel `flashinfer-jit-cache` contains for these GPUs must not be compiled in any
mode, because FlashInfer does not report if it ignores the wheel. Cached kernels from earlier runs
do not count.
"""

from __future__ import annotations

import importlib
import inspect
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import smoke_gpu
from smoke_support import expectation, finish, skip

HEADS, SHARED, WIDTH, LENGTH = 4, 2, 64, 77
# Outputs are averages of normal numbers, in bf16: 2^-9 of values below 4, and the kernel rounds the
# attention's weights as well.
BOUND = 0.02
DRAWS = 20_000
ODDS = [0.5, 0.3, 0.15, 0.05]  # the first two are kept: five and three eighths


def attention(kind: str) -> list[str]:
    """Compare grouped attention, for one decoded token or a causal prompt, with float64."""
    import flashinfer
    import torch

    chance = torch.Generator("cuda").manual_seed(4)

    def _random_tensor(heads: int) -> torch.Tensor:
        tensor = torch.randn(LENGTH, heads, WIDTH, device="cuda", generator=chance)
        return tensor.to(torch.bfloat16)

    query, key, value = _random_tensor(HEADS), _random_tensor(SHARED), _random_tensor(SHARED)
    causal = kind == "prefill"
    if causal:
        prefill = flashinfer.single_prefill_with_kv_cache
        more = {"backend": "fa2"} if "backend" in inspect.signature(prefill).parameters else {}
        answer = prefill(query, key, value, causal=True, **more)
    else:
        answer = flashinfer.single_decode_with_kv_cache(query[-1], key, value)
    keys, values = (
        part.double().repeat_interleave(HEADS // SHARED, dim=1) for part in (key, value)
    )
    weights = torch.einsum("qhd,khd->hqk", query.double(), keys) / WIDTH**0.5
    if causal:
        later = torch.ones(LENGTH, LENGTH, device="cuda").triu(1).bool()
        weights = weights.masked_fill(later, float("-inf"))
    expected = torch.einsum("hqk,khd->qhd", weights.softmax(-1), values)
    error = float((answer.double() - (expected if causal else expected[-1])).abs().max())
    print(f"{kind}: off by {error:.4f}")
    return [] if error < BOUND else [f"FlashInfer's {kind} is off by {error:.4f}, bound {BOUND}"]


def sampling() -> list[str]:
    """Check that only the two most likely tokens are drawn, each with its probability."""
    import flashinfer
    import torch

    odds = torch.tensor(ODDS, device="cuda").repeat(DRAWS, 1)
    draw = flashinfer.sampling.top_k_top_p_sampling_from_probs
    if "uniform_samples" in inspect.signature(draw).parameters:  # FlashInfer until 0.2.2
        answer = draw(odds, torch.rand(32, DRAWS, device="cuda"), 2, 1.0)
    else:
        answer = draw(odds, 2, 1.0)
    drawn = answer[0] if isinstance(answer, tuple) else answer
    counts = torch.bincount(drawn.long(), minlength=len(ODDS)).tolist()
    print(f"{DRAWS} draws of the first two of {ODDS}: {counts}")
    share = ODDS[0] / (ODDS[0] + ODDS[1])
    spread = (DRAWS * share * (1 - share)) ** 0.5
    problems = []
    if counts[2] or counts[3]:
        problems.append(f"top-k 2 drew tokens other than the first two: {counts}")
    if abs(counts[0] - DRAWS * share) > 6 * spread:
        problems.append(
            f"{counts[0]} of {DRAWS} draws were the first token, expected {DRAWS * share:.0f}"
        )
    return problems


def compiled() -> set[Path]:
    """Return the kernel libraries that FlashInfer has compiled on this machine."""
    base = Path(os.environ.get("FLASHINFER_WORKSPACE_BASE") or Path.home())
    return set((base / ".cache/flashinfer").rglob("*.so"))


def lock_bundle(gpus: set[str]) -> set[str]:
    """Return the names of all kernels for `gpus` ("sm90") in the image's wheel of kernels.

    Since 0.7, a wheel contains the names of its GPUs, and FlashInfer uses the wheel if they include
    all visible GPUs. Nothing is returned for GPUs that can run kernels for another GPU (such as 8.9
    with kernels for 8.0). Wheels before 0.7 contain no names and are assumed to be for `gpus`.
    """
    try:
        wheel = importlib.import_module("flashinfer_jit_cache")
    except ImportError:
        return set()
    if not hasattr(wheel, "get_jit_cache_providers"):
        return {path.stem for path in Path(wheel.get_jit_cache_dir()).rglob("*.so")}
    return {
        name
        for provider in wheel.get_jit_cache_providers()
        if gpus <= {each.rstrip("af") for each in provider.cuda_architectures}
        for name in provider.modules
    }


def uncalled_for(mode: str, libraries: list[Path], brought: set[str]) -> list[str]:
    """Return a problem for each of `libraries` that must not be compiled in the image's mode."""
    if mode == "prebuilt":  # nothing else compiles in such an image: these are all new
        return [f"{path} was compiled" for path in libraries]
    return [
        f"{path} was compiled, although it is in the image's flashinfer-jit-cache"
        for path in libraries
        if path.stem in brought
    ]


def main() -> None:
    """Test attention, sampling and compiled kernels. Missing kernels are compiled first."""
    mode = expectation()["flashinfer"]
    if mode == "off":
        skip("this target has FlashInfer off")
    smoke_gpu.require()
    import flashinfer
    import torch

    smoke_gpu.turn()
    torch.cuda.init()
    there = compiled()
    with ThreadPoolExecutor() as pool:
        parts = [
            pool.submit(sampling),
            pool.submit(attention, "prefill"),
            pool.submit(attention, "decode"),
        ]
        problems = [problem for part in parts for problem in part.result()]
    devices = map(torch.cuda.get_device_capability, range(torch.cuda.device_count()))
    brought = lock_bundle({f"sm{major}{minor}" for major, minor in devices})
    problems += uncalled_for(mode, sorted(compiled() - there), brought)
    finish(
        problems,
        f"flashinfer {flashinfer.__version__}, {mode}: attention, sampling and"
        " compiled kernels are correct",
    )


if __name__ == "__main__":
    main()
