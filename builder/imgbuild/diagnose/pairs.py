"""Reads compatible versions from `data/diagnose/facts/pairs.yaml`."""

from __future__ import annotations

from functools import lru_cache

import msgspec
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from imgbuild.system import files, yaml_data


class VllmBuild(msgspec.Struct, frozen=True, kw_only=True):
    """The version of torch for which releases of vllm were compiled."""

    versions: str
    torch: str
    cuda: str


class TorchWheel(msgspec.Struct, frozen=True, kw_only=True):
    """A version of torch on PyPI. `cxx11` means that it was compiled with the C++11 ABI."""

    version: str
    cuda: str
    cxx11: bool
    torchvision: str


class VersionPairs(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the data file."""

    vllm: tuple[VllmBuild, ...]
    torch: tuple[TorchWheel, ...]

    def torch_of_vllm(self, vllm: Version) -> TorchWheel | None:
        """Return the torch for which a vllm was compiled."""
        for build in self.vllm:
            if vllm in SpecifierSet(build.versions, prereleases=True):
                return self.torch_wheel(Version(build.torch))
        return None

    def torch_wheel(self, torch: Version) -> TorchWheel | None:
        """Return the wheel of a version of torch, or None if the table does not contain it."""
        return next(
            (each for each in self.torch if Version(each.version) == Version(torch.base_version)),
            None,
        )

    def vllm_for(self, torch: Version) -> str:
        """Return the range of vllm versions that were compiled for a torch, or "" if unknown."""
        release = torch.release
        return next(
            (each.versions for each in self.vllm if Version(each.torch).release == release), ""
        )


@lru_cache(maxsize=1)
def load_pairs() -> VersionPairs:
    """Load the bundled table."""
    return yaml_data.load_yaml_data(files.data("diagnose/facts/pairs.yaml"), VersionPairs)
