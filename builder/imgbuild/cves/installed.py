"""Lists an image's packages by their names in advisories: PyPI, Debian sources and CPython."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from packaging.version import Version

from imgbuild.attest.sbom import purl
from imgbuild.attest.sbom.packages import Package
from imgbuild.deb import debian_version
from imgbuild.errors import InputError
from imgbuild.lock.lock_file import Lock
from imgbuild.lock.resolution import Deb, installed_wheels
from imgbuild.system.syntax import parse_version
from imgbuild.values import Arch, Sha256, normalize_package

PYPI = "PyPI"
GIT = "GIT"  # OSV's ecosystem of packages identified by a repository and its tags
CPYTHON = "cpython"
# Its tags and commits are in CPython's own advisories (PSF-…) and in CVEs about it.
REPOSITORIES = {CPYTHON: "https://github.com/python/cpython"}
# Debian's suites by the number that advisories use.
RELEASES = {"bullseye": "11", "bookworm": "12", "trixie": "13", "forky": "14"}
REBUILT = re.compile(r"\+b[0-9]+\Z")  # the suffix of a binary package that was rebuilt


class InstalledSource(msgspec.Struct, frozen=True, kw_only=True):
    """A package of an image, with its name in advisories.

    `ecosystem` is the OSV ecosystem: PyPI, Debian:12, or GIT for a standalone Python. Like versions
    in advisories, `version` has no local part such as `+cu124`. `files` are the wheel, debs or
    archive, and `purls` are their package URLs. `binaries` are names and versions of debs.
    """

    ecosystem: str
    name: str
    version: str
    files: tuple[str, ...] = ()
    purls: tuple[str, ...] = ()
    binaries: tuple[tuple[str, str], ...] = ()

    @property
    def key(self) -> tuple[str, str, str]:
        """The ecosystem, name and version."""
        return self.ecosystem, self.name, self.version

    def lowest_fix(self, versions: Iterable[str]) -> str:
        """Return the lowest of `versions` above the installed version, or "" if there is none.

        Invalid versions are ignored.
        """
        order = version_order(self.ecosystem)
        current = order(self.version)
        later = []
        for version in versions:
            try:
                if version and order(version) > current:
                    later.append(version)
            except ValueError:
                continue
        return min(later, key=order, default="")


def version_order(ecosystem: str) -> Callable[[str], Any]:
    """Return the sort key of versions in `ecosystem`. It raises ValueError for invalid versions."""
    return Version if ecosystem in (PYPI, GIT) else debian_version.version_key


def installed_sources(
    lock: Lock, arch: Arch, records: Mapping[Sha256, Package]
) -> tuple[InstalledSource, ...]:
    """Return the packages of `lock` for `arch`, sorted.

    `records` contains the source packages of debs. Without a record, the source package is named
    after the folder in the archive, and has the version of the deb. Raises InputError for an
    unknown suite.
    """
    resolution = lock.arch[arch]
    files_by_source: dict[tuple[str, str, str], list[tuple[str, str]]] = {}
    for wheel in installed_wheels(resolution):
        key = (PYPI, normalize_package(wheel.package), public_version(wheel.version))
        named = purl.pypi_purl(wheel.package, wheel.version, "")
        files_by_source.setdefault(key, []).append((wheel.file, named))
    binaries: dict[tuple[str, str, str], list[tuple[str, str]]] = {}
    release = _release(lock) if resolution.debs else ""
    for deb in resolution.debs:
        source, version = _source(deb, records.get(deb.sha256))
        named = purl.deb_purl(deb.package, deb.version, "", release="", source="")
        key = (f"Debian:{release}", source, version)
        files_by_source.setdefault(key, []).append((deb.package, named))
        binaries.setdefault(key, []).append((deb.package, deb.version))
    if archive := resolution.python:
        url = (lock.base.standalone or {}).get(arch, "")
        named = purl.generic_purl(CPYTHON, archive.version, url=url, sha256=archive.sha256)
        key = (GIT, CPYTHON, archive.version)
        files_by_source[key] = [(archive.file, named)]
        binaries[key] = [("python", archive.version)]  # as scanners of programs name it
    return tuple(
        InstalledSource(
            ecosystem=ecosystem,
            name=name,
            version=version,
            files=tuple(file for file, _ in sorted(files)),
            purls=tuple(named for _, named in sorted(files)),
            binaries=tuple(sorted(binaries.get((ecosystem, name, version), ()))),
        )
        for (ecosystem, name, version), files in sorted(files_by_source.items())
    )


def unknown_parts(lock: Lock, arch: Arch) -> tuple[str, ...]:
    """Describe the parts of the image whose packages are not in the lock."""
    if lock.arch[arch].base_manifest is None:
        return ()
    return (f"{lock.base.image}: the lock contains its layers, but not its packages",)


def _release(lock: Lock) -> str:
    if lock.base.suite in RELEASES:
        return RELEASES[lock.base.suite]
    message = f"unknown suite {lock.base.suite!r} of the base {lock.base.name} of {lock.target}"
    hint = f"use one of the Debian suites {', '.join(RELEASES)}"
    raise InputError(message, hint=hint)


def _source(deb: Deb, record: Package | None) -> tuple[str, str]:
    name = (record.source if record else deb.file.split("/")[-2]) or deb.package
    version = (record.source_version if record else "") or REBUILT.sub("", deb.version)
    return name, version


def public_version(version: str) -> str:
    """Return `version` without the local part, or unchanged if it is not valid by PEP 440."""
    parsed = parse_version(version)
    return version if parsed is None else parsed.public
