"""Parses CUDA releases in local versions (`+cu124`), index URLs and image tags."""

from __future__ import annotations

import re

from imgbuild.project import addresses

# Packages of PyTorch's own index: there the local version names the CUDA release alone, and
# the images have the same version as built for their own release.
TORCH = frozenset({"torch", "torchvision", "torchaudio", "torchtext", "torchdata", "torchao"})
TAG = re.compile(r"cu(\d{2})(\d)")
# Versions of the wheels of some indexes: `2.8.3+cu.13.0.torch.2.11`.
DOTTED_CUDA = re.compile(r"cu\.(\d{2})\.(\d)(?:\.|$)")
# Pages of one project, such as https://abetlen.github.io/llama-cpp-python/whl/cu121. Their wheels
# are for different CUDA releases than the image, unless they are built for one torch.
PAGES = ".github.io"
STACK = re.compile(r"torch|vllm|sglang|flashinfer", re.IGNORECASE)
OTHER_BUILD = re.compile(r"cpu|xpu|rocm[\d.]*")  # parts of the paths of PyTorch's indexes


def cuda_of_tag(tag: str) -> str | None:
    """Convert a tag such as `cu124` to a CUDA release ("12.4"), or return None."""
    match = TAG.fullmatch(tag)
    return f"{match[1]}.{match[2]}" if match else None


def cuda_of_local_version(local: str | None) -> str | None:
    """Return the CUDA release in a local version, such as `cu124` or `cu128torch2.10`."""
    if not local:
        return None
    dotted = DOTTED_CUDA.match(local)
    if dotted:
        return f"{dotted[1]}.{dotted[2]}"
    match = re.match(r"cu(\d{2})(\d)(?!\d)", local)
    return f"{match[1]}.{match[2]}" if match else None


def cuda_of_index(url: str) -> str | None:
    """Return the CUDA release in an index URL, such as `…/whl/cu124` or `…/0.19.1/cu130`.

    Return None for indexes of projects whose builds do not depend on torch.
    """
    parts = addresses.split_url(url)
    if parts and (parts.hostname or "").endswith(PAGES) and not STACK.search(url):
        return None
    for part in addresses.url_path(url).split("/"):
        release = cuda_of_tag(part)
        if release:
            return release
    return None


def other_build(url: str) -> str:
    """Return the build of a PyTorch index without CUDA, such as `cpu` or `rocm6.3`, or ""."""
    parts = addresses.url_path(url).split("/") if STACK.search(url) else []
    return next((part for part in parts if OTHER_BUILD.fullmatch(part)), "")
