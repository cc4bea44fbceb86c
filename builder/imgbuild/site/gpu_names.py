"""How browsers find a GPU by its name: the patterns of `audit.binaries.gpu_models` as data."""

from __future__ import annotations

from typing import Any

from imgbuild.audit.binaries import gpu_models, gpus
from imgbuild.audit.binaries.gpu_models import GpuModel

SHOWN = 4  # names of a model in a list of choices


def capabilities() -> tuple[str, ...]:
    """The compute capabilities for which the requirements of images are computed."""
    return tuple(entry.capability for entry in gpus.load().gpus)


def table() -> dict[str, Any]:
    """The models, and for each name a pattern with the number of its model, the longest first.

    A pattern is one for a name in lower case without spaces and the words in `brands`; what
    `variant` matches may follow.
    """
    patterns = [
        (gpu_models.plain(name).replace("#", r"\d"), number)
        for number, model in enumerate(gpu_models.load())
        for name in model.names
    ]
    return {
        "brands": sorted(gpu_models.BRANDS),
        "variant": gpu_models.VARIANT.pattern,
        "models": [model_data(model) for model in gpu_models.load()],
        "patterns": sorted(patterns, key=lambda pair: -len(pair[0])),
    }


def model_data(model: GpuModel) -> dict[str, str]:
    """The name, compute capability and, where it follows from the GPU, architecture of a model."""
    names = [name for name in model.names if "#" not in name]
    more = ", …" if names[SHOWN:] else ""
    return {
        "name": ", ".join(names[:SHOWN]) + more,
        "capability": model.capability,
        "arch": str(model.arch or ""),
    }


def choices() -> list[dict[str, str]]:
    """The models that an image can be compared with, the oldest first."""
    known = capabilities()
    return [model_data(model) for model in gpu_models.load() if model.capability in known]
