"""Compiles a Triton kernel and a torch.compile kernel with empty caches, and runs both.

Only the driver is from the host. The case fails in an image without gcc or Python.h. It also fails
if the driver has no libcuda.so for the linker, but only libcuda.so.1.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import smoke_gpu
from smoke_support import finish

KERNEL = """\
import triton
import triton.language as tl


@triton.jit
def scaled_sum(left, right, out, count, factor, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < count
    total = tl.load(left + places, inside) + tl.load(right + places, inside)
    tl.store(out + places, total * factor, inside)
"""
COUNT = 100_003


def main() -> None:
    """Run both kernels. The sums are exact, because the factor is a power of two."""
    smoke_gpu.require()
    os.environ["TRITON_CACHE_DIR"] = str(Path("triton").absolute())
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path("inductor").absolute())
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # compile in this process
    import torch
    import triton

    Path("smoke_kernel.py").write_text(KERNEL)
    spec = importlib.util.spec_from_file_location("smoke_kernel", "smoke_kernel.py")
    assert spec is not None
    assert spec.loader is not None
    kernels = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(kernels)
    smoke_gpu.turn()
    torch.manual_seed(2)
    left, right = torch.randn(COUNT, device="cuda"), torch.randn(COUNT, device="cuda")
    out = torch.empty_like(left)
    kernels.scaled_sum[(triton.cdiv(COUNT, 1024),)](left, right, out, COUNT, 0.5, BLOCK=1024)
    problems = []
    if not torch.equal(out, (left + right) * 0.5):
        problems.append("the kernel's sums are wrong")
    cubins = [path.name for path in Path("triton").rglob("*.cubin")]
    if not cubins:
        problems.append("Triton compiled no cubin: the kernel came from another cache")

    def _fused(first: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return (first * 2 + other).relu().sum(0)

    shaped = left[:100_000].view(100, 1000), right[:100_000].view(100, 1000)
    if not torch.allclose(torch.compile(_fused)(*shaped), _fused(*shaped), atol=1e-4):
        problems.append("torch.compile's kernel differs from torch")
    finish(
        problems, f"triton {triton.__version__}: {', '.join(cubins)} and a kernel of inductor ran"
    )


if __name__ == "__main__":
    main()
