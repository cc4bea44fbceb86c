"""Writes `images/packages.json`, which lists licences and requirements of input files.

Each wheel or Debian package is read once, while it is in the cache, and recorded by sha256. Records
are added and never changed, as in `layers.json`. SBOMs are created from lock, digests and this
file. Data about packages without a record is unknown.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
from packaging.requirements import InvalidRequirement

from imgbuild import codec
from imgbuild.attest.sbom import licences
from imgbuild.cache.store import Store
from imgbuild.deb import archive
from imgbuild.deb.control import Clause, parse_clauses
from imgbuild.errors import IntegrityError, LockStale
from imgbuild.index.remote_wheel import FACT as METADATA
from imgbuild.lock.lock_file import Lock
from imgbuild.lock.resolution import Deb, Wheel, installed_wheels
from imgbuild.system import decoding
from imgbuild.system.syntax import parse_requirement
from imgbuild.system.threads import run_for_each
from imgbuild.values import Sha256, normalize_package, sha256
from imgbuild.wheel.metadata import read_metadata

PACKAGES_FORMAT = 1
FACT = "package-2"  # a separate format number: increased when more is read of a file
NAME = re.compile(r"[^\s;<>=!~@()\[]+")  # at the start of a requirement
READERS = 2  # threads that unpack debs; the decompressors run in parallel


class Package(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    rename={"license_text": "words", "copyright_package": "see", "provides": "gives"},
):
    """The metadata of a wheel or Debian package.

    `licence` is an SPDX expression, or "" if the declared text `license_text` is not one.
    `copyright_package` is the package that contains the copyright file. `source` and
    `source_version` identify the Debian source package. `requires` contains the requirements of a
    wheel. It is None in older records, which list package names in `needs`. For a Debian package,
    `needs` contains the dependencies (`mawk | awk`), and `provides` the names that it provides.
    """

    file: str
    licence: str = ""
    license_text: str = ""
    copyright_package: str = ""
    source: str = ""
    source_version: str = ""
    requires: tuple[str, ...] | None = None
    needs: tuple[str, ...] = ()
    provides: tuple[str, ...] = ()

    @property
    def is_current(self) -> bool:
        """True if the record has all fields of the current format."""
        return self.requires is not None or not self.file.endswith(".whl")


class SbomPackages(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `packages.json`."""

    format: int = PACKAGES_FORMAT
    packages: dict[Sha256, Package] = {}


def packages_path(images: Path) -> Path:
    """Return the path of packages.json in the folder `images`."""
    return images / "packages.json"


def read_packages(images: Path) -> SbomPackages:
    """Read the records in the folder `images`, or return an empty value if there are none."""
    path = packages_path(images)
    return parse_sbom_packages(path.read_bytes(), str(path)) if path.is_file() else SbomPackages()


def recorded_packages(folders: Iterable[Path]) -> dict[Sha256, Package]:
    """Return the records in all `folders` that have the current format."""
    return {
        key: package
        for images in dict.fromkeys(folders)
        for key, package in read_packages(images).packages.items()
        if package.is_current
    }


def parse_sbom_packages(data: bytes, file: str) -> SbomPackages:
    """Decode the packages in `data`, the content of `file`.

    Raises InputError if it is invalid, and LockStale if it has another format.
    """
    hint = "restore the file from git, or delete it and lock again"
    packages = codec.decode(data, SbomPackages, file=file, what="list of packages", hint=hint)
    if packages.format != PACKAGES_FORMAT:
        message = f"{file}: unsupported format {packages.format} (expected {PACKAGES_FORMAT})"
        raise LockStale(
            message,
            hint="use the version of imgbuild that wrote the file, or delete it and lock again",
        )
    return packages


def packages_of_lock(sbom_packages: SbomPackages, lock: Lock) -> SbomPackages:
    """Restrict `sbom_packages` to files in `lock`, and to requirements that the lock satisfies."""
    files = {
        key: sbom_packages.packages[key]
        for key, _ in sorted(dict(_files(lock)).items(), key=lambda item: item[0])
        if key in sbom_packages.packages
    }
    there = {normalize_package(item.package) for _, item in _files(lock)}
    there |= {normalize_package(given) for package in files.values() for given in package.provides}
    return SbomPackages(
        packages={
            key: msgspec.structs.replace(
                package,
                requires=package.requires and _lines_requiring(there, package.requires),
                needs=_lines_requiring(there, package.needs),
            )
            for key, package in files.items()
        }
    )


def _lines_requiring(there: set[str], lines: Iterable[str]) -> tuple[str, ...]:
    return tuple(line for line in lines if there & named_packages(line))


def merge_sbom_packages(
    sbom_packages: SbomPackages, new_packages: Mapping[Sha256, Package]
) -> SbomPackages:
    """Merge records. Raises IntegrityError if two records of a file differ."""
    packages = dict(sbom_packages.packages)
    for key, package in new_packages.items():
        recorded = packages.get(key)
        if recorded is None or not recorded.is_current:
            packages[key] = package
        elif recorded != package:
            message = f"{key} was recorded as {recorded}, but is now {package}"
            raise IntegrityError(message, hint="delete images/packages.json and lock again")
    return SbomPackages(packages=dict(sorted(packages.items())))


def record_packages(images: Path, lock: Lock, store: Store) -> None:
    """Record the metadata of the files in `lock` that are in the cache."""
    with store.hold_lock(f"records-{sha256(str(images).encode())}"):
        sbom_packages = read_packages(images)
        pending = [
            (key, item)
            for key, item in _files(lock)
            if key not in sbom_packages.packages or not sbom_packages.packages[key].is_current
        ]
        if new_packages := look_up_packages(pending, store):
            codec.write_document(
                packages_path(images),
                merge_sbom_packages(sbom_packages, new_packages),
                below=images.parent,
            )


def look_up_packages(
    files: Iterable[tuple[Sha256, Wheel | Deb]], store: Store
) -> dict[Sha256, Package]:
    """Read the metadata of `files` that are in the cache, and cache the results."""
    items = dict(files)
    packages = run_for_each(
        list(items.values()), lambda item, _: _cached_package(item, store), threads=READERS
    )
    return {
        key: package for key, package in zip(items, packages, strict=True) if package is not None
    }


def _files(lock: Lock) -> Iterable[tuple[Sha256, Wheel | Deb]]:
    for resolution in lock.arch.values():
        needed = [wheel for built in resolution.built for wheel in built.requires]
        items: tuple[Wheel | Deb, ...] = (*installed_wheels(resolution), *needed, *resolution.debs)
        yield from ((item.sha256, item) for item in items)


def _cached_package(item: Wheel | Deb, store: Store) -> Package | None:
    cached = store.fact(FACT, item.sha256)
    if cached is not None:
        return decoding.decode_json(cached, Package)
    package = _deb_package(item, store) if isinstance(item, Deb) else _wheel_package(item, store)
    if package is not None:
        store.put_fact(FACT, item.sha256, msgspec.json.encode(package))
    return package


def _wheel_package(wheel: Wheel, store: Store) -> Package | None:
    data = store.fact(METADATA, wheel.sha256)
    if data is None:
        path = store.file(wheel.sha256)
        if path is None:
            return None
        with path.open("rb") as file:
            data = read_metadata(file, wheel.file)
    return package_from_metadata(wheel.file, data.decode(errors="replace"))


def package_from_metadata(file: str, text: str) -> Package:
    """Parse the metadata of the wheel `file` from `text`, the content of METADATA."""
    stated = licences.metadata_licence(text)
    return Package(
        file=file,
        licence=stated.expression,
        license_text=stated.license_text,
        requires=tuple(dict.fromkeys(_requirements(text))),
    )


def _requirements(text: str) -> Iterable[str]:
    for line in licences.parse_headers(text).get_all("Requires-Dist", []):
        with contextlib.suppress(InvalidRequirement):  # uv accepts these, or has rejected the wheel
            yield str(parse_requirement(" ".join(line.split())))


def named_packages(line: str) -> set[str]:
    """Return the packages in a line of `requires` or `needs`."""
    return {
        normalize_package(match[0])
        for alternative in line.split(" | ")
        if (match := NAME.match(alternative))
    }


def _deb_package(deb: Deb, store: Store) -> Package | None:
    path = store.file(deb.sha256)
    if path is None:
        return None
    control, notice = archive.read_control(path), archive.read_notice(path, deb.package)
    source, _, version = control.get("Source", "").partition(" ")
    relations = (control.get(field, "") for field in ("Pre-Depends", "Depends"))
    return Package(
        file=deb.file,
        licence=licences.copyright_licence(notice.text).expression,
        copyright_package=notice.package,
        source=source,
        source_version=version.strip("()"),
        needs=tuple(
            dict.fromkeys(_names(clause) for text in relations for clause in parse_clauses(text))
        ),
        provides=tuple(_names(clause) for clause in parse_clauses(control.get("Provides", ""))),
    )


def _names(clause: Clause) -> str:
    return " | ".join(relation.name for relation in clause)
