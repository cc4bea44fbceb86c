"""Determines the CUDA release of each torch version from METADATA.

METADATA of all versions is read in parallel and cached by the hash of the wheel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec
from packaging.requirements import Requirement
from packaging.version import Version

from imgbuild.index import cuda_releases
from imgbuild.index.catalogue import FileCatalogue
from imgbuild.index.pages import IndexFile
from imgbuild.project import releases
from imgbuild.system.threads import StopFlag, run_for_each
from imgbuild.values import normalize_package

TORCH = "torch"
# Each release of these is built for one torch; the first pinned one is used.
ENGINES = ("vllm", "sglang", "torchvision", "torchaudio", "xformers")
RUNTIME = "nvidia-cuda-runtime"
READERS = 8


class TorchBuild(msgspec.Struct, frozen=True, kw_only=True):
    """A version of torch, and its CUDA release (major.minor) or None for a CPU build.

    `evidence` is the requirement or local version that shows the release.
    """

    version: Version
    cuda: str | None
    evidence: str

    def __str__(self) -> str:
        built = f"CUDA {self.cuda}" if self.cuda else "a CPU build"
        return f"torch {self.version} ({built}: {self.evidence})"


def torch_build(version: Version, requires: Iterable[Requirement]) -> TorchBuild:
    """Determine the build of torch `version` from its active requirements."""
    if cuda := releases.cuda_of_local_version(version.local):
        return TorchBuild(version=version, cuda=cuda, evidence=f"+{version.local}")
    needed = list(requires)
    for requirement in needed:
        name = normalize_package(requirement.name)
        if name in (cuda_releases.METAPACKAGE, RUNTIME) or name.startswith(f"{RUNTIME}-cu"):
            release = exact_release(requirement)
            if release is not None:
                evidence = f"requires {name}{requirement.specifier}"
                return TorchBuild(version=version, cuda=release, evidence=evidence)
    if cuda_releases.is_cpu_build(version, needed):
        return TorchBuild(version=version, cuda=None, evidence="requires no CUDA library")
    return TorchBuild(version=version, cuda=None, evidence="has no CUDA release")


def exact_release(requirement: Requirement) -> str | None:
    """Return the CUDA release in an exact requirement, such as "12.4" for `==12.4.127`.

    Return None if the requirement is not exact.
    """
    for item in requirement.specifier:
        if item.operator == "==":
            return ".".join(item.version.split(".")[:2])
    return None


def torch_builds(
    catalogue: FileCatalogue, read: Callable[[IndexFile], bytes]
) -> tuple[TorchBuild, ...]:
    """Return all final builds of torch that the target can use, newest first.

    `read` returns METADATA of a wheel.
    """
    versions = sorted(
        {
            offer.wheel.version
            for offer in catalogue.offered_files(TORCH)
            if offer.wheel.version is not None and not offer.wheel.version.is_prerelease
        },
        reverse=True,
    )

    def _read_build(version: Version, _: StopFlag) -> TorchBuild | None:
        offer = catalogue.chosen(TORCH, version)
        if offer is None:
            return None
        requires = cuda_releases.active_requirements(
            read(offer.wheel), catalogue.rules.tags.markers
        )
        return torch_build(version, requires)

    builds = run_for_each(versions, _read_build, threads=READERS)
    return tuple(build for build in builds if build is not None)


def matching_specifier(allowed: Sequence[Version], versions: Iterable[Version]) -> str:
    """Return a specifier that matches exactly the versions `allowed` among `versions`.

    The bounds contain no local versions ("+cu124"), which only `==` and `!=` accept.
    """
    low, high = Version(min(allowed).public), Version(max(allowed).public)
    gaps = sorted(v for v in versions if low <= Version(v.public) <= high and v not in allowed)
    return ",".join([f">={low}", f"<={high}", *(f"!={v}" for v in gaps)])


def cuda_summary(torch_builds: Sequence[TorchBuild]) -> str:
    """Return the CUDA release of each version range.

    An example is "2.11.0 to 2.14.1: CUDA 13.0, up to 2.10.0: CPU builds".
    """
    runs: list[list[TorchBuild]] = []
    for build in torch_builds:
        if runs and runs[-1][0].cuda == build.cuda:
            runs[-1].append(build)
        else:
            runs.append([build])
    parts = []
    for run in runs:
        span = f"{run[-1].version} to {run[0].version}" if len(run) > 1 else f"{run[0].version}"
        parts.append(f"{span}: {f'CUDA {run[0].cuda}' if run[0].cuda else 'CPU builds'}")
    return ", ".join(parts)
