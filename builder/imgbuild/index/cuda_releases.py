"""Restricts the NVIDIA wheels of a target to one CUDA release, and checks the result.

The components of each release are the requirements in METADATA of the metapackage `cuda-toolkit`.
The cut-off date of a target does not apply to this package, because the components of a release do
not change.
"""

from __future__ import annotations

import email.parser
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from imgbuild.system.syntax import marker_applies, valid_requirement
from imgbuild.values import normalize_package

METAPACKAGE = "cuda-toolkit"
# A marker that is false without this extra.
EXTRA_MARKER = re.compile(r""";(?!.*\bor\b).*\bextra *== *["']([^"']+)["']""")
MAJOR_PACKAGE = re.compile(r"^(?P<base>nvidia-.+?)(?:-cu(?P<major>[0-9]{2}))?$")


class CudaRelease(msgspec.Struct, frozen=True, kw_only=True):
    """A CUDA release ("12.4.1"), and the versions of its component packages."""

    version: str
    components: Mapping[str, str]

    @property
    def constraints(self) -> list[str]:
        """The requirement lines that pin all components to the release."""
        return [f"{name}{spec}" for name, spec in sorted(self.components.items())]


def parse_requirements(metadata: bytes) -> list[Requirement]:
    """Return the requirements in METADATA, without invalid lines."""
    return [
        item
        for line in requirement_lines(metadata)
        if (item := valid_requirement(line)) is not None
    ]


@functools.lru_cache(maxsize=1000)  # the same files are read for each target and each lookup
def requirement_lines(metadata: bytes) -> tuple[str, ...]:
    """Return the lines of `Requires-Dist` in METADATA."""
    message = email.parser.BytesHeaderParser().parsebytes(metadata)
    return tuple(map(str, message.get_all("Requires-Dist", [])))


def active_requirements(
    metadata: bytes, markers: Mapping[str, str], extras: Iterable[str] = ()
) -> list[Requirement]:
    """Return the requirements in METADATA that apply with `markers` and `extras`."""
    names = ("", *extras)
    extra_names = set(map(normalize_package, names))
    # Most lines are of other extras: these need not be parsed.
    lines = (
        line
        for line in requirement_lines(metadata)
        if (match := EXTRA_MARKER.search(line)) is None
        or normalize_package(match[1]) in extra_names
    )
    return [
        item
        for line in lines
        if (item := valid_requirement(line)) is not None
        and marker_applies(item.marker, markers, names)
    ]


def parse_release(version: str, metadata: bytes) -> CudaRelease:
    """Parse the release that METADATA of `cuda-toolkit` `version` declares."""
    minor = ".".join(version.split(".")[:2])
    components = {
        normalize_package(requirement.name): str(_narrow_range(requirement.specifier, minor))
        for requirement in parse_requirements(metadata)
        if requirement.specifier and requirement.name.lower().startswith("nvidia-")
    }
    return CudaRelease(version=version, components=components)


def _narrow_range(spec: SpecifierSet, minor: str) -> SpecifierSet:
    """Limit a range that starts in CUDA `minor` to this minor version.

    Since 13.0.3, the metapackage allows nvJitLink of any later CUDA 13, but a target must have one
    release.
    """
    starts = any(item.operator == ">=" and item.version.startswith(f"{minor}.") for item in spec)
    return spec & SpecifierSet(f"=={minor}.*") if starts else spec


def releases_of_minor(versions: Iterable[Version], cuda: str) -> list[Version]:
    """Return the final patch releases of `cuda` ("12.4") in `versions`, newest first."""
    minor = tuple(int(part) for part in cuda.split("."))
    return sorted(
        {v for v in versions if not v.is_prerelease and v.release[:2] == minor}, reverse=True
    )


def first_compatible(
    candidates: Iterable[Version],
    read: Callable[[Version], bytes],
    torch: Iterable[Requirement],
) -> tuple[CudaRelease | None, tuple[str, ...]]:
    """Return the first release that torch allows, and the reasons against the others.

    Some versions of torch (2.7.0) use components of several patch releases. In this case, the
    result is the nearest patch release, with torch's versions of the components that differ. If
    torch allows no release, the result is None with the reasons against all candidates.
    """
    torch_requirements = list(torch)
    reasons: list[str] = []
    passed: list[CudaRelease] = []
    for candidate in candidates:
        cuda_release = parse_release(str(candidate), read(candidate))
        against = [text for item in torch_requirements if (text := _conflicts(item, cuda_release))]
        if not against:
            return cuda_release, tuple(reasons)
        reasons.append(f"CUDA {candidate}: {'; '.join(against[:3])}")
        passed.append(cuda_release)
    return _nearest_patch(passed, torch_requirements), tuple(reasons)


def _nearest_patch(
    releases: Sequence[CudaRelease], torch: Sequence[Requirement]
) -> CudaRelease | None:
    """Return the release with the fewest components that torch does not allow.

    These components have torch's versions instead. Return None if torch requires a component that
    no release has.
    """
    best: tuple[int, CudaRelease] | None = None
    for cuda_release in releases:
        differing = [requirement for requirement in torch if _conflicts(requirement, cuda_release)]
        elsewhere = [other for other in releases if other is not cuda_release]
        if not all(any(_has_component(other, item) for other in elsewhere) for item in differing):
            continue
        if best is None or len(differing) < best[0]:
            torch_versions = {
                normalize_package(item.name): str(item.specifier) for item in differing
            }
            mended = CudaRelease(
                version=cuda_release.version,
                components={**cuda_release.components, **torch_versions},
            )
            best = (len(differing), mended)
    return best[1] if best else None


def _has_component(cuda_release: CudaRelease, requirement: Requirement) -> bool:
    listed = normalize_package(requirement.name) in cuda_release.components
    return listed and _conflicts(requirement, cuda_release) is None


def _conflicts(requirement: Requirement, cuda_release: CudaRelease) -> str | None:
    name = normalize_package(requirement.name)
    if name == METAPACKAGE:
        fits = requirement.specifier.contains(cuda_release.version)
        return None if fits else f"torch requires {METAPACKAGE} {requirement.specifier}"
    component = cuda_release.components.get(name)
    if component is None:
        return None
    exact = [item.version for item in requirement.specifier if item.operator == "=="]
    if all(SpecifierSet(component).contains(version.removesuffix(".*")) for version in exact):
        return None
    return f"torch requires {name} {requirement.specifier}, but the release has {component}"


def is_cpu_build(version: Version, torch: Iterable[Requirement]) -> bool:
    """Return whether torch requires no NVIDIA wheels and its version has no +cuNNN."""
    if version.local and version.local.startswith("cu"):
        return False
    names = {normalize_package(requirement.name) for requirement in torch}
    return not any(name.startswith("nvidia-") or name == METAPACKAGE for name in names)


def release_violations(cuda_release: CudaRelease, chosen: Mapping[str, str]) -> tuple[str, ...]:
    """Return messages about packages in `chosen` that belong to another CUDA release."""
    major = cuda_release.version.split(".")[0]
    bases = {_base(name)[0] for name in cuda_release.components}
    broken = []
    for name, version in sorted(chosen.items()):
        spec = cuda_release.components.get(name)
        base, of_major = _base(name)
        if spec is not None and not SpecifierSet(spec).contains(version):
            broken.append(
                f"{name} {version} is not part of CUDA {cuda_release.version}, which contains "
                f"{spec}"
            )
        elif spec is None and base in bases and of_major not in (None, major):
            broken.append(
                f"{name} {version} is for CUDA {of_major}, but the target has CUDA {major}"
            )
    return tuple(broken)


def packages_outside_release(
    cuda_release: CudaRelease, chosen: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the packages in `chosen` that have a CUDA version but are not part of the release."""
    minor = ".".join(cuda_release.version.split(".")[:2]) + "."
    return tuple(
        f"{name} {version}"
        for name, version in sorted(chosen.items())
        if name.startswith("nvidia-cuda-")
        and name not in cuda_release.components
        and not version.startswith(minor)
    )


def _base(name: str) -> tuple[str, str | None]:
    match = MAJOR_PACKAGE.match(name)
    return (match["base"], match["major"]) if match else (name, None)
