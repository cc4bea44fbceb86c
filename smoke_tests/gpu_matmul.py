"""Tests that a bf16 matrix product and its gradients agree with float64."""

from __future__ import annotations

import smoke_gpu
from smoke_support import finish

SIZE = 1024
# Inputs are exact in bf16 and sums are kept in float32, so that the result is rounded to 8 bits:
# half a unit in the last place is 2^-9 of the value. cuBLAS may round partial sums as well.
BOUND = 2.0**-7


def main() -> None:
    """Compare each product with float64, relative to its largest element."""
    smoke_gpu.require()
    import torch

    smoke_gpu.turn()
    torch.manual_seed(1)
    left, right, weight = (
        torch.randn(SIZE, SIZE, device="cuda").to(torch.bfloat16) for _ in range(3)
    )
    left.requires_grad_()
    product = left @ right
    (product * weight).sum().backward()
    problems, deviations = [], []
    exact = left.detach().double() @ right.double()
    gradient = weight.double() @ right.double().T
    assert left.grad is not None
    for name, got, expected in (("product", product, exact), ("gradient", left.grad, gradient)):
        error = float(
            ((got.detach().double() - expected).abs().max() / expected.abs().max()).item()
        )
        deviations.append(f"{name} off by {error:.1e}")
        if not error < BOUND:
            problems.append(f"the {name} is off by {error:.2e} of its largest, bound {BOUND:.2e}")
    finish(problems, f"bf16, {SIZE} squared: {', '.join(deviations)} of the largest element")


if __name__ == "__main__":
    main()
