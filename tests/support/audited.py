"""Creates small package sets for tests of the audit, as real wheels with given sources."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from imgbuild.audit.packages.library import Library
from imgbuild.audit.packages.package_set import PackageSet, open_package_set
from imgbuild.cache.store import Store
from imgbuild.lock.resolution import Wheel
from imgbuild.report import Finding
from imgbuild.values import Arch
from tests.support import wheels

Value = TypeVar("Value", bound=msgspec.Struct)
Files = Mapping[str, str | bytes]


def wheel(
    folder: Path, package: str, version: str, files: Files, *, metadata: str = ""
) -> tuple[Wheel, Path]:
    """A wheel of `package` on disk. `metadata` is added to its METADATA."""
    folder.mkdir(parents=True, exist_ok=True)
    name = package.replace("-", "_")
    contents = {
        path: data if isinstance(data, bytes) else data.encode() for path, data in files.items()
    }
    head = wheels.minimal_metadata(package, version) + metadata.encode()
    contents[f"{name}-{version}.dist-info/METADATA"] = head
    path = wheels.write_wheel(folder, contents, name=name, version=version)
    data = path.read_bytes()
    locked_wheel = Wheel(
        package=package,
        version=version,
        index="pypi",
        file=path.name,
        size=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
    )
    return locked_wheel, path


def package_set(
    folder: Path,
    packages: Mapping[str, Files],
    *,
    metadata: Mapping[str, str] | None = None,
    python: str = "3.11",
    arch: Arch = Arch.X86_64,
    glibc: str = "2.36",
    partial: bool = False,
    unread_versions: Mapping[str, str] | None = None,
    library: Library | None = None,
    kind: type[PackageSet] = PackageSet,
) -> PackageSet:
    """A package set of `packages`, which maps "name==version" to the files of a wheel."""
    paths: dict[str, Path] = {}
    locked_wheels = []
    for pinned, files in packages.items():
        package, _, version = pinned.partition("==")
        added = (metadata or {}).get(pinned, "")
        locked_wheel, path = wheel(
            folder / "wheels", package, version or "1.0", files, metadata=added
        )
        paths[locked_wheel.sha256] = path
        locked_wheels.append(locked_wheel)
    return open_package_set(
        locked_wheels,
        library or Library(Store.open(folder / "cache"), processes=1),
        python=python,
        arch=arch,
        glibc=glibc,
        locate=lambda item: paths[item.sha256],
        partial=partial,
        unread_versions=unread_versions,
        kind=kind,
    )


def with_changes(value: Value, **changes: object) -> Value:
    """A copy of the value with some fields changed."""
    return msgspec.structs.replace(value, **changes)


def finding_subjects(findings: Iterable[Finding]) -> list[str]:
    """The missing or rejected name, option or package of each finding."""
    return [finding.evidence.subject if finding.evidence else "" for finding in findings]
