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
EXTRA = re.compile(r"""\bextra *== *["']([A-Za-z0-9._-]+)["']""")


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
                    lines = _version_requirements(
                        record.requires or (), lock.base.python, arch, main
                    )
                    versions[wheel.version] = tuple(sorted({*lines}))
    return dict(sorted(by_package.items()))


def _version_requirements(
    lines: Sequence[str], python: str, arch: Arch, main: Collection[str]
) -> Iterator[str]:
    """Yield the requirements that restrict a version, and those of extras named after a package.

    Extras of main packages, such as "vllm>=0.22; extra vllm", define the supported versions of the
    package, with or without the extra. Requirements of other extras are omitted.
    """
    environment = {**environment_markers(python, arch), "extra": ""}
    for line in lines:
        extra = EXTRA.search(line)
        if extra and " or " not in line and line[:1].lower() != extra[1][0].lower():
            continue  # of another extra; most lines are, and are not parsed
        try:
            requirement = parse_requirement(line)
        except InvalidRequirement:
            continue
        if not requirement.specifier or requirement.url:
            continue
        name = normalize_package(requirement.name)
        if requirement.marker is None or requirement.marker.evaluate(environment):
            yield f"{name}{requirement.specifier}"
        elif extra and name in main and normalize_package(extra[1]) == name:
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
