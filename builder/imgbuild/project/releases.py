"""Parses CUDA releases in local versions (`+cu124`), URLs of indexes, and image tags."""

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
    """The release of `cu124` ("12.4"), None for another text."""
    match = TAG.fullmatch(tag)
    return f"{match[1]}.{match[2]}" if match else None


def cuda_of_local_version(local: str | None) -> str | None:
    """The release of a local version: `cu124`, `cu128torch2.10`, `cu.13.0.torch.2.11`."""
    if not local:
        return None
    dotted = DOTTED_CUDA.match(local)
    if dotted:
        return f"{dotted[1]}.{dotted[2]}"
    match = re.match(r"cu(\d{2})(\d)(?!\d)", local)
    return f"{match[1]}.{match[2]}" if match else None


def cuda_of_index(url: str) -> str | None:
    """The release in the path of an index: `…/whl/cu124`, `…/0.19.1/cu130`.

    Returns None for the index of a project whose builds are independent of torch.
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
    """`cpu`, `xpu` or `rocm6.3` for an index of PyTorch with such builds, else empty."""
    parts = addresses.url_path(url).split("/") if STACK.search(url) else []
    return next((part for part in parts if OTHER_BUILD.fullmatch(part)), "")
