"""Defines the wheels, Debian packages and base of one target on one architecture.

`solve` creates these values, and `lock` stores them.
"""

from __future__ import annotations

import msgspec

from imgbuild.matrix.fields import (
    Day,
    DebianArch,
    DebianPackage,
    DebianVersion,
    FilePath,
    Line,
    LockedVersion,
    MediaType,
    Name,
    Package,
    PythonPatch,
    VariableName,
    WheelFile,
)
from imgbuild.values import Digest, FileSize, Sha256


class LockedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A locked file, whose URL is looked up when the file is fetched."""

    file: FilePath
    size: FileSize
    sha256: Sha256


class Wheel(LockedFile, frozen=True, kw_only=True):
    """A wheel. `index` is the name of its index, or "built" for a wheel built from an sdist."""

    file: WheelFile
    package: Package
    version: LockedVersion
    index: Name


class BuiltWheel(msgspec.Struct, frozen=True, kw_only=True):
    """A wheel built from an sdist: the inputs of the build, and the expected wheel."""

    package: Package
    version: LockedVersion
    index: Name
    sdist: LockedFile
    env: dict[VariableName, Line]
    requires: tuple[Wheel, ...]
    wheel: LockedFile


class Deb(LockedFile, frozen=True, kw_only=True):
    """A Debian package. `file` is the path in the Debian archive (`pool/main/…`)."""

    package: DebianPackage
    version: DebianVersion
    arch: DebianArch


class RegistryLayer(msgspec.Struct, frozen=True, kw_only=True):
    """A layer of a registry image, which is used unchanged. `media_type` is the OCI media type."""

    digest: Digest
    size: FileSize
    diff_id: Digest
    media_type: MediaType = "application/vnd.oci.image.layer.v1.tar+gzip"

    @property
    def as_locked_file(self) -> LockedFile:
        """Return the blob of the layer as a file."""
        key = self.digest.removeprefix("sha256:")
        return LockedFile(file=f"layers/{key}", size=self.size, sha256=key)


class PythonArchive(LockedFile, frozen=True, kw_only=True):
    """The archive of a standalone build of CPython. `version` includes the patch release."""

    version: PythonPatch


class Resolution(msgspec.Struct, frozen=True, kw_only=True):
    """All inputs of an image on one architecture, sorted by package.

    `base_files` contains etc/passwd and etc/group of a registry base, to which imgbuild adds the
    image's user. `security` is the date ("2026-11-22") of Debian's security suite, or unset if the
    suite was not used. `tools` are the Debian packages in a separate layer above the base. `python`
    is the archive of a standalone build, or unset if the base has an interpreter.
    """

    wheels: tuple[Wheel, ...]
    built: tuple[BuiltWheel, ...] = ()
    debs: tuple[Deb, ...] = ()
    base_layers: tuple[RegistryLayer, ...] = ()
    base_manifest: Digest | None = None
    base_files: dict[FilePath, str] = {}
    security: Day | msgspec.UnsetType = msgspec.UNSET
    tools: tuple[DebianPackage, ...] | msgspec.UnsetType = msgspec.UNSET
    python: PythonArchive | msgspec.UnsetType = msgspec.UNSET

    @property
    def versions(self) -> dict[str, str]:
        """The versions of all Python packages, by name."""
        versions = {wheel.package: wheel.version for wheel in self.wheels}
        return versions | {built.package: built.version for built in self.built}


def installed_wheels(resolution: Resolution) -> tuple[Wheel, ...]:
    """Return all wheels to install, including those built from sdists, sorted by package."""
    built = (
        Wheel(
            package=item.package,
            version=item.version,
            index="built",
            file=item.wheel.file,
            size=item.wheel.size,
            sha256=item.wheel.sha256,
        )
        for item in resolution.built
    )
    return tuple(sorted((*resolution.wheels, *built), key=lambda wheel: wheel.package))
