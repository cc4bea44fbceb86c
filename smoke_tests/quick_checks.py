"""Checks the output and files of documented first commands."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

LEAST = 20  # tensors that the model before and after the training must have in common


def says(output: str, model: Path, pattern: str) -> list[str]:
    """Check that the output matches `pattern`."""
    return [] if re.search(pattern, output) else [f"the output has nothing like {pattern}"]


def tensors(folder: Path) -> dict[str, Any]:
    """Return the tensors of all safetensors files in `folder`, by name."""
    from safetensors.torch import load_file

    return {
        name: tensor
        for path in sorted(folder.glob("*.safetensors"))
        for name, tensor in load_file(path).items()
    }


def weights(output: str, model: Path, folder: str) -> list[str]:
    """Check that every tensor of the model in `folder` is finite and differs from `model`."""
    before, after = tensors(model), tensors(Path(folder))
    common = sorted(before.keys() & after.keys())
    problems = [f"{name} is not finite" for name in sorted(after) if not _finite(after[name])]
    problems += [f"{name} did not change" for name in common if _same(before[name], after[name])]
    if len(common) < LEAST:
        problems.append(f"{len(common)} tensors of the model are in {folder}, {LEAST} expected")
    return problems


def adapter(output: str, model: Path, folder: str) -> list[str]:
    """Check that the adapter in `folder` is finite and that its second halves are not zero."""
    halves = {name: tensor for name, tensor in tensors(Path(folder)).items() if "lora_B" in name}
    problems = [f"{name} is not finite" for name in sorted(halves) if not _finite(halves[name])]
    problems += [f"{name} is zero" for name in sorted(halves) if not halves[name].any()]
    return problems or ([] if halves else [f"there is no adapter in {folder}"])


def tensor(output: str, model: Path, folder: str, name: str) -> list[str]:
    """Check that the model in `folder` has the tensor `name`."""
    return [] if name in tensors(Path(folder)) else [f"{folder} has no tensor {name}"]


def texts(output: str, model: Path, path: str, column: str, count: str) -> list[str]:
    """Check that each row of `path` has `count` texts in `column`, most of them not empty."""
    import pandas

    rows = [list(row) for row in pandas.read_parquet(path)[column]]
    problems = [f"row {place}: {len(row)} texts" for place, row in enumerate(rows)
                if len(row) != int(count)]  # fmt: skip
    filled = sum(bool(str(text).strip()) for row in rows for text in row)
    if not rows or filled < math.ceil(len(rows) * int(count) / 2):
        problems.append(f"{filled} texts of {len(rows)} rows are not empty")
    return problems


def _finite(values: Any) -> bool:
    return bool(values.float().isfinite().all())


def _same(before: Any, after: Any) -> bool:
    """Return whether `after` equals `before`, even with another precision."""
    return bool(before.to(after.dtype).float().equal(after.float()))


CHECKS: dict[str, Callable[..., list[str]]] = {
    "says": says,
    "weights": weights,
    "adapter": adapter,
    "tensor": tensor,
    "texts": texts,
}
