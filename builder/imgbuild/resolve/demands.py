"""Combines all lines of a project's files on a package into one demand, for one Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

import msgspec
from packaging.specifiers import Specifier, SpecifierSet
from packaging.version import Version

from imgbuild.project import addresses
from imgbuild.project.model import (
    Declarations,
    DeclaredRequirement,
    FilePlace,
    exact_version,
    marker_holds,
)
from imgbuild.values import normalize_package


class PackageDemand(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A package, the accepted versions, and the lines that require them.

    `spec` has no local parts: a build for a CUDA release counts as its public version. `installed`
    is false for a package that is bounded but not required. `locked` means that the version is from
    a lock file. `source` is a URL or the path of a folder, or "" for a package from an index.
    `conda` means that only the Conda dependencies of a file list the package.
    """

    package: str
    spec: str = ""
    places: tuple[FilePlace, ...] = ()
    installed: bool = True
    locked: bool = False
    extras: tuple[str, ...] = ()
    source: str = ""
    conda: bool = False

    @cached_property
    def versions(self) -> SpecifierSet:
        """The parsed `spec`."""
        return SpecifierSet(self.spec)

    def allows_version(self, version: str | Version) -> bool:
        """Return whether `version` is accepted, even if it is a pre-release."""
        return self.versions.contains(version, prereleases=True)

    @property
    def pin(self) -> str | None:
        """The only accepted version, or None for a range."""
        return exact_version(self.versions)

    def __str__(self) -> str:
        extras = f"[{','.join(self.extras)}]" if self.extras else ""
        if self.source:
            return f"{self.package}{extras} @ {self.source}"
        return f"{self.package}{extras}{self.spec}"


def package_demands(
    declared: Declarations, markers: Mapping[str, str]
) -> tuple[PackageDemand, ...]:
    """Return the demands of `declared` on a machine with `markers` (PEP 508), sorted by package.

    An override takes precedence over all other lines, and a lock file over ranges. The project's
    own packages and the packages that it excludes are omitted.
    """
    lines: dict[str, list[DeclaredRequirement]] = {}
    for item in declared.requirements:
        if item.applies_to(markers):
            lines.setdefault(item.package, []).append(item)
    left_out = {
        *(normalize_package(item.name) for item in declared.packages),
        *(item.name for item in declared.excluded if marker_holds(item.marker, markers)),
    }
    return tuple(
        _join_demands(package, items)
        for package, items in sorted(lines.items())
        if package not in left_out
    )


def cuda_releases(declared: Declarations, markers: Mapping[str, str]) -> tuple[str, ...]:
    """Return the CUDA releases in the files on a machine with `markers`, without duplicates."""
    names = (item.name for item in declared.cuda if marker_holds(item.marker, markers))
    return tuple(dict.fromkeys(names))


def required_cuda(declared: Declarations) -> set[str]:
    """Return the CUDA releases in the files, except those in the names of images."""
    images = {item.place for item in declared.images}
    return {item.name for item in declared.cuda if item.place not in images}


def _join_demands(package: str, items: list[DeclaredRequirement]) -> PackageDemand:
    overrides = [item for item in items if item.kind == "override"]
    locked = [item for item in items if item.locked]
    deciding = overrides or locked or items
    specs = {str(each) for item in deciding for each in _public_bounds(item)}
    sources = [item.parsed_requirement.url or item.path for item in deciding]
    return PackageDemand(
        package=package,
        spec=",".join(sorted(specs, key=lambda text: (text[0] != ">", text))),
        places=tuple(dict.fromkeys(item.place for item in deciding)),
        installed=any(item.kind == "requirement" for item in items),
        locked=bool(locked) and not overrides,
        extras=tuple(sorted({extra for item in items for extra in item.parsed_requirement.extras})),
        source=next((source for source in sources if source), ""),
        conda=all(item.conda for item in items),
    )


def _public_bounds(item: DeclaredRequirement) -> Iterable[Specifier]:
    """Return the bounds in a line, or the version in the file name of a wheel."""
    requirement = item.parsed_requirement
    if requirement.url is not None:
        version = addresses.wheel_version(requirement.url)
        return [Specifier(f"=={version.public}")] if version is not None else []
    return [_strip_local(each) for each in requirement.specifier]


def _strip_local(specifier: Specifier) -> Specifier:
    text = specifier.version
    try:
        public = Version(text).public if "+" in text else text
        operator = "==" if specifier.operator == "===" else specifier.operator
        return Specifier(f"{operator}{public}")
    except ValueError:
        return specifier
