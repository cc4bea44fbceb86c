"""Determines whether a GPU runs code, and the minimum driver for a CUDA release.

The table of drivers is `data/audit/drivers.yaml`. Machine code runs on its architecture and on
later architectures of the same major version. With the suffix "a", it runs on its architecture
only, and with "f" also on later architectures of the same family. The driver compiles PTX for its
architecture and any later architecture.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import NamedTuple

import msgspec

from imgbuild.audit.source.facts import GpuCode
from imgbuild.system import files, yaml_data

FILE = "data/audit/drivers.yaml"
_ARCH = re.compile(r"(sm|compute)_([0-9]+)([0-9])([af]?)")


class DriverRelease(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A CUDA release ("12.4"), the driver published with it (if known), and its PTX version."""

    cuda: str
    driver: str = ""
    ptx: str


class GpuModels(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A compute capability ("9.0") and the GPUs that have it."""

    capability: str
    names: str


class KernelLibraries(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A shell pattern for the paths of libraries in a wheel, whose GPU code is always required."""

    file: str
    why: str


class Drivers(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The content of `data/audit/drivers.yaml`."""

    majors: dict[str, str]
    releases: tuple[DriverRelease, ...]
    gpus: tuple[GpuModels, ...]
    kernels: tuple[KernelLibraries, ...]

    def oldest_driver(self, cuda: str) -> str:
        """Return the minimum driver for programs of a CUDA release ("12.4"), or "" if unknown."""
        return self.majors.get(cuda.partition(".")[0], "")

    def release_driver(self, cuda: str) -> str:
        """Return the driver published with a CUDA release, or "" if unknown."""
        return next(
            (release.driver for release in self.releases if release.cuda == minor_release(cuda)), ""
        )

    def driver_for_ptx(self, ptx: str) -> str:
        """Return the minimum driver that compiles a PTX version, or "" if unknown."""
        required = version_numbers(ptx)
        return next(
            (
                release.driver
                for release in self.releases
                if version_numbers(release.ptx) >= required
            ),
            "",
        )

    def newest_release(self, driver: str) -> str:
        """Return the newest CUDA release that a driver supports, or "" if there is none."""
        releases = [
            release.cuda
            for release in self.releases
            if not is_older(driver, self.oldest_driver(release.cuda))
        ]
        return releases[-1] if releases else ""

    def is_kernels(self, file: str) -> bool:
        """Return whether the GPU code of a file is always required."""
        return any(fnmatchcase(file, entry.file) for entry in self.kernels)


class GpuArch(NamedTuple):
    """A GPU architecture in the notation of compilers: sm_90a is (False, 9, 0, "a")."""

    ptx: bool
    major: int
    minor: int
    suffix: str


@lru_cache(maxsize=1)
def load_drivers() -> Drivers:
    """Read the bundled list of driver releases and their CUDA versions."""
    return yaml_data.load_yaml_data(files.data("audit/drivers.yaml"), Drivers)


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the components of a dotted version as integers."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def is_older(release: str, other: str) -> bool:
    """Return whether a driver or release is older than another, or False if either is unknown ("").

    A driver without a minor version ("580") counts as the newest of its branch.
    """
    given = version_numbers(release)
    return bool(release and other) and given < version_numbers(other)[: len(given)]


def minor_release(cuda: str) -> str:
    """Return a CUDA release without its patch number: "12.4" for "12.4.1"."""
    return ".".join(cuda.split(".")[:2])


def parse_arch(arch: str) -> GpuArch | None:
    """Return the parts of "sm_90a" or "compute_120f", or None for other text."""
    match = _ARCH.fullmatch(arch)
    if match is None:
        return None
    return GpuArch(match[1] == "compute", int(match[2]), int(match[3]), match[4])


def can_run(code: GpuCode, capability: str) -> bool:
    """Return whether a GPU can run the code directly or, if it is PTX, after compilation."""
    arch = parse_arch(code.arch)
    if arch is None:
        return False
    required = version_numbers(capability)
    target = (arch.major, arch.minor)
    if arch.suffix == "a":
        return target == required
    if arch.ptx and not arch.suffix:
        return target <= required
    return arch.major == required[0] and target <= required


def general_architectures(codes: Sequence[GpuCode]) -> list[GpuCode]:
    """Return the code whose architecture has at least half as many units as the most frequent one.

    An architecture for which a library contains only a few kernels is thus excluded.
    """
    most = max((code.units for code in codes), default=0)
    return [code for code in codes if code.units * 2 >= most]


def machine_code(codes: Sequence[GpuCode], capability: str) -> bool:
    """Return whether a library has machine code that a GPU can run."""
    return any(not code.ptx and can_run(code, capability) for code in general_architectures(codes))


def covers_gpu(codes: Sequence[GpuCode], capability: str) -> bool:
    """Return whether a library has machine code for a GPU, or PTX for the driver to compile."""
    return any(can_run(code, capability) for code in general_architectures(codes))
