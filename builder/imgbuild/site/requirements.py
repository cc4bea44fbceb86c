"""Reads the requirements of a catalogue's main packages from METADATA of wheels."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from packaging.requirements import InvalidRequirement
from packaging.version import parse as parse_version

from imgbuild.attest.sbom.packages import Package
from imgbuild.lock.resolution import installed_wheels
from imgbuild.site.model import SiteTarget
from imgbuild.smoke.records import LISTED_PACKAGES
from imgbuild.system.syntax import parse_requirement
from imgbuild.values import Arch, Sha256, environment_markers, normalize_package

# Packages that users name beside the main packages, and whose versions belong to those of torch or
# transformers.
COMPANIONS = (
    "torchvision",
    "torchaudio",
    "xformers",
    "torchao",
    "peft",
    "accelerate",
    "tokenizers",
)
EXTRA = re.compile(r"""\bextra == ["']([A-Za-z0-9._-]+)["']""")


def main_package_requirements(
    records: Mapping[Sha256, Package], targets: Sequence[SiteTarget]
) -> dict[str, dict[str, tuple[str, ...]]]:
    """Return the requirements and extras with versions, by main package and version."""
    main = {
        *LISTED_PACKAGES,
        *COMPANIONS,
        *(package for each in targets if each.lock for package in each.row.pins),
    }
    by_package: dict[str, dict[str, tuple[str, ...]]] = {}
    for lock in (each.lock for each in targets if each.lock):
        for arch, resolution in lock.arch.items():
            for wheel in installed_wheels(resolution):
                name, record = normalize_package(wheel.package), records.get(wheel.sha256)
                if name not in main or record is None:
                    continue
                versions = by_package.setdefault(name, {})
                if wheel.version not in versions:
                    lines = [
                        *_applicable_requirements(record.requires or (), lock.base.python, arch),
                        *_extra_ranges(record.requires or (), main),
                    ]
                    versions[wheel.version] = tuple(sorted({*lines}))
    return dict(sorted(by_package.items()))


def _applicable_requirements(lines: Sequence[str], python: str, arch: Arch) -> Iterator[str]:
    """Yield the requirements that apply without extras and restrict a version."""
    environment = {**environment_markers(python, arch), "extra": ""}
    for line in lines:
        try:
            requirement = parse_requirement(line)
        except InvalidRequirement:
            continue
        applies = requirement.marker is None or requirement.marker.evaluate(environment)
        if applies and requirement.specifier and not requirement.url:
            yield f"{normalize_package(requirement.name)}{requirement.specifier}"


def _extra_ranges(lines: Sequence[str], main: Collection[str]) -> Iterator[str]:
    """The requirements of extras named after a main package, such as "vllm>=0.22; extra vllm".

    These requirements define the supported versions of the main package, with or without the extra.
    """
    for line in lines:
        try:
            requirement = parse_requirement(line)
        except InvalidRequirement:
            continue
        extra = EXTRA.search(str(requirement.marker or ""))
        name = normalize_package(requirement.name)
        named = extra is not None and normalize_package(extra[1]) == name
        if named and name in main and requirement.specifier and not requirement.url:
            yield f"{name}{requirement.specifier}; extra {name}"


def requirements_between(
    requires: Mapping[str, Mapping[str, Sequence[str]]],
) -> list[tuple[str, list[tuple[str, list[str]]]]]:
    """The versions of each main package, newest first, with requirements on main packages."""
    shown = []
    for package, versions in requires.items():
        rows = [
            (version, [line for line in lines if _name(line) in LISTED_PACKAGES])
            for version, lines in versions.items()
        ]
        rows = [(version, lines) for version, lines in rows if lines]
        rows.sort(key=lambda row: parse_version(row[0]), reverse=True)
        if rows:
            shown.append((package, rows))
    return shown


def _name(line: str) -> str:
    return parse_requirement(line.partition(";")[0]).name
