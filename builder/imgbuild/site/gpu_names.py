"""Converts the patterns of `audit.binaries.gpu_models`, so that browsers find GPUs by name."""

from __future__ import annotations

from typing import Any

from imgbuild.audit.binaries import gpu_models
from imgbuild.audit.binaries.gpu_models import GpuModel


def known_capabilities() -> tuple[str, ...]:
    """Return the compute capabilities of all models in the table, oldest first."""
    return tuple(dict.fromkeys(model.capability for model in gpu_models.load_gpu_models()))


def gpu_name_table() -> dict[str, Any]:
    """Return the models, and patterns of names with model numbers, longest pattern first.

    Patterns match names in lower case without spaces and without the words in `brands`. After the
    pattern, a name can contain a match of `variant`.
    """
    patterns = [
        (gpu_models.name_pattern(name), number)
        for number, model in enumerate(gpu_models.load_gpu_models())
        for name in model.names
    ]
    return {
        "brands": sorted(gpu_models.BRANDS),
        "variant": gpu_models.VARIANT.pattern,
        "models": [model_data(model) for model in gpu_models.load_gpu_models()],
        "patterns": sorted(patterns, key=lambda pair: -len(pair[0])),
    }


def model_data(model: GpuModel) -> dict[str, Any]:
    """Return the name and compute capability of a model, and the architecture if it is known."""
    return {
        "name": ", ".join(_shown_names(model)),
        "capability": model.capability,
        "arch": str(model.arch or ""),
        **({"tegra": True} if model.tegra else {}),
    }


def _shown_names(model: GpuModel) -> tuple[str, ...]:
    """Return the names of a model. "RTX 30##" is a series that includes RTX 3090."""
    patterns = {name.rstrip("#") for name in model.names if "#" in name}
    names = [name for name in model.names if name not in patterns]
    return tuple(name.replace("#", "x") for name in names)
