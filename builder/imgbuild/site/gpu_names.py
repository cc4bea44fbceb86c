"""How browsers find a GPU by its name: patterns, from the tables."""

from __future__ import annotations

from typing import Any

from imgbuild.audit.binaries import gpus

# Words that say who made a GPU or where it is, not which one it is.
BRANDS = ("nvidia", "tesla", "geforce", "jetson", "dgx", "hgx", "graphics", "gpu")
# What may follow a name without its spaces: memory, socket, variants of the same chip.
VARIANT = r"(?:\d{1,3}gb|sxm\d?|pcie|hbm\d?e?|nvl\d*|ti|super|laptop|\d\d|d|s)*"


def table() -> dict[str, Any]:
    """The models, and for each name a pattern with the number of its model, the longest first."""
    models = gpus.load().gpus
    patterns = [
        ("".join(word for word in name.lower().split() if word not in BRANDS), number)
        for number, model in enumerate(models)
        for name in model.names.split(", ")
    ]
    return {
        "brands": [*BRANDS],
        "variant": VARIANT,
        "models": [
            {"capability": model.capability, "names": model.names, "arch": ""} for model in models
        ],
        "patterns": sorted(patterns, key=lambda pair: -len(pair[0])),
    }
