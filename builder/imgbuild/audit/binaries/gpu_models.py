"""Looks up GPUs by name: compute capability and, for integrated GPUs, CPU architecture.

The table is `data/audit/gpu_models.yaml`. Names as printed by nvidia-smi and common short names are
accepted: "NVIDIA A100-SXM4-80GB", "a100", "RTX 4090 Laptop GPU", "DGX Spark".
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from functools import lru_cache

import msgspec

from imgbuild.audit.binaries import gpus
from imgbuild.system import files, yaml_data
from imgbuild.values import Arch

CAPABILITY = re.compile(r"(?:sm_?)?([0-9]{1,2})\.?([0-9])a?", re.ASCII)
LONGEST_NAME = 80  # characters of a name
# Words for the manufacturer or the place of a GPU, not for its model.
BRANDS = frozenset(
    {"nvidia", "tesla", "geforce", "jetson", "dgx", "hgx", "egx", "graphics", "gpu", "corporation"}
)
# What may follow a name: memory, socket, cooling, variants with the same chip family.
VARIANT = re.compile(
    r"(?:\d{1,3}gb|\d{1,3}g|sxm\d?|pcie|hbm\d?e?|nvl\d*|cnx|oam|ti|super|laptop|mobile|maxq|d"
    r"|blackwell|generation|server|workstation|edition|with|design|devkit|ac|developer|kit|superchip)*"
)


class GpuModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """GPUs with the same chip.

    `arch` is the CPU architecture of integrated GPUs, or None for other GPUs. `tegra` marks GPUs
    that cannot run machine code for desktop and server GPUs.
    """

    capability: str
    names: tuple[str, ...]
    arch: Arch | None = None
    tegra: bool = False


class _Models(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    models: tuple[GpuModel, ...]


@lru_cache(maxsize=1)
def load_gpu_models() -> tuple[GpuModel, ...]:
    """Load the bundled table of GPU models."""
    return yaml_data.load_yaml_data(files.data("audit/gpu_models.yaml"), _Models).models


@lru_cache(maxsize=1)
def _patterns() -> tuple[tuple[re.Pattern[str], GpuModel], ...]:
    """Return patterns that match whole names without spaces, longest names first."""
    names = [(name, model) for model in load_gpu_models() for name in model.names]
    names.sort(key=lambda pair: -len(pair[0]))
    return tuple(
        (re.compile(name_pattern(name) + VARIANT.pattern, re.ASCII), model) for name, model in names
    )


def find_gpu_model(text: str) -> GpuModel | None:
    """Return the GPU model with the name `text`, or None if the table does not contain it.

    For a compute capability such as "9.0", "sm_90" or "90", the result is a model without a name.
    """
    match = CAPABILITY.fullmatch(text.strip())
    if match is not None:
        capability = f"{match[1]}.{match[2]}"
        tegra = any(model.tegra for model in load_gpu_models() if model.capability == capability)
        return GpuModel(
            capability=capability, names=(), arch=Arch.ARM64 if tegra else None, tegra=tegra
        )
    name = simplify_name(text)
    if not name or len(text) > LONGEST_NAME:
        return None
    return next((model for pattern, model in _patterns() if pattern.fullmatch(name)), None)


def gpu_list(able: Iterable[str], later: Iterable[str], arch: Arch | None) -> str:
    """Return the GPUs of an image with their compute capabilities, or "" if they are unknown.

    For example, "A100, A30 (8.0), H100, H200 (9.0); the driver compiles some code for 9.0 at first
    use". `able` are the capabilities with machine code, and `later` those for which some code is
    only PTX. GPUs that machines of `arch` cannot have are omitted.
    """
    names = {entry.capability: entry.names.split(", ") for entry in gpus.load_drivers().gpus}
    shown: dict[str, str] = {}
    for capability in _sort_capabilities({*able, *later}):
        models = [
            name
            for name in names.get(capability, ())
            if (model := find_gpu_model(name)) is None or arch is None or model.arch in (None, arch)
        ]
        if models:
            shown[capability] = f"{', '.join(models)} ({capability})"
        elif capability not in names:
            shown[capability] = capability
    compiled = [capability for capability in _sort_capabilities(later) if capability in shown]
    remark = f"; the driver compiles some code for {', '.join(compiled)} at first use"
    return ", ".join(shown.values()) + (remark if compiled else "")


def gpu_span(able: Iterable[str]) -> str:
    """Return the lowest and the highest compute capability, such as "7.5-12.1", for a table."""
    every = _sort_capabilities(able)
    return "-".join(dict.fromkeys((*every[:1], *every[-1:])))


def _sort_capabilities(capabilities: Iterable[str]) -> list[str]:
    return sorted({*capabilities}, key=gpus.version_numbers)


def most_similar_name(text: str) -> str:
    """Return the name in the table that is most similar to `text`, or "" if none is similar."""
    names = {
        simplify_name(name): name
        for model in load_gpu_models()
        for name in model.names
        if "#" not in name
    }
    close = difflib.get_close_matches(simplify_name(text[:LONGEST_NAME]), names, 1, 0.75)
    return names[close[0]] if close else ""


def name_pattern(name: str) -> str:
    """Return a regular expression for a simplified name in the table.

    A series, such as "RTX 40##", also matches without its first word: "4090".
    """
    series = re.fullmatch(r"([a-z]+)(\d\d)##", simplify_name(name))
    return rf"(?:{series[1]})?{series[2]}[1-9]0" if series else simplify_name(name)


def simplify_name(text: str) -> str:
    """Return a name in lower case, without spaces, hyphens and the words in `BRANDS`."""
    words = re.split(r"[\s_/()-]+", text.lower().replace("max-q", "maxq"))
    return "".join(word for word in words if word not in BRANDS)
