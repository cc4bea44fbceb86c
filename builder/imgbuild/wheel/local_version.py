"""Reads the CUDA and torch releases of a wheel from its local version.

Wheels of flash-attn, causal-conv1d, mamba-ssm and FlashInfer have labels such as
`cu12torch2.6cxx11abiFALSE`. PyTorch's own packages and vLLM have labels such as `cu124`, and PyG's
packages have labels such as `pt26cu124`.
"""

from __future__ import annotations

import re

import msgspec

CUDA = re.compile(r"(?<![a-z])cu(1[0-9])([0-9])?(?![0-9])")
TORCH = re.compile(r"torch([0-9]+\.[0-9]+)|(?<![a-z])pt([0-9])\.?([0-9]{1,2})(?=[^0-9]|\Z)")
CXX11 = re.compile(r"cxx11abi(true|false)")


class LocalVersionLabel(msgspec.Struct, frozen=True, kw_only=True):
    """The CUDA release ("12" or "12.4") and torch release ("2.6") of a compiled wheel, or "".

    `cxx11` is whether the wheel uses the C++11 ABI, or None if unknown.
    """

    cuda: str = ""
    torch: str = ""
    cxx11: bool | None = None

    def __bool__(self) -> bool:
        return self != LocalVersionLabel()

    @property
    def requires(self) -> tuple[str, ...]:
        """The requirement for torch, as in METADATA, if any."""
        return (f"torch=={self.torch}.*",) if self.torch else ()


def local_version_label(version: str) -> LocalVersionLabel:
    """Parse the local version label, which is the part of `version` after "+"."""
    local = version.partition("+")[2].lower()
    cuda, torch, cxx11 = CUDA.search(local), TORCH.search(local), CXX11.search(local)
    return LocalVersionLabel(
        cuda="" if cuda is None else ".".join(filter(None, cuda.groups())),
        torch="" if torch is None else torch[1] or f"{torch[2]}.{torch[3]}",
        cxx11=None if cxx11 is None else cxx11[1] == "true",
    )


def torch_cxx11(version: str) -> bool | None:
    """Return whether PyTorch's own x86_64 wheel uses the C++11 ABI, or None for other builds.

    Builds for manylinux_2_28 use the C++11 ABI: CUDA 12.6 in torch 2.6, and all builds since torch
    2.7. Source: https://github.com/pytorch/pytorch/issues/123649.
    """
    match = re.fullmatch(r"([0-9]+)\.([0-9]+)\.[0-9]+(?:\+cu([0-9]{3}))?", version)
    if match is None:
        return None
    release = int(match[1]), int(match[2])
    return release >= (2, 7) or (release == (2, 6) and match[3] == "126")
