"""Reads the code and METADATA of packages that are published only as an sdist."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec
from packaging.version import Version

from imgbuild.audit.packages.sdist_code import code_wheel
from imgbuild.cache.context import Context
from imgbuild.cache.download import FileRequest, fetch_all
from imgbuild.errors import IntegrityError
from imgbuild.index.candidates import is_sdist
from imgbuild.index.catalogue import SdistBuilder
from imgbuild.index.pages import IndexFile, IndexLookup
from imgbuild.index.remote_wheel import lock_file
from imgbuild.lock.resolution import LockedFile, Wheel
from imgbuild.solve.sdist_wheel import wheel_metadata


class SdistPins(msgspec.Struct, frozen=True, kw_only=True):
    """The wheels built from sdists, their locations, and the errors of failed builds by package."""

    wheels: tuple[tuple[Wheel, Path], ...] = ()
    refused: dict[str, str] = {}

    @property
    def packages(self) -> frozenset[str]:
        """The names of the packages that were read."""
        return frozenset(wheel.package for wheel, _ in self.wheels)


def read_sdists(pins: Iterable[str], indexes: IndexLookup, context: Context) -> SdistPins:
    """Read the code of the pins (`name==version`) that have an sdist."""
    sdists: dict[str, tuple[str, LockedFile, str]] = {}
    for pin in pins:
        package, _, version = pin.partition("==")
        file = _sdist(indexes.files(package), Version(version))
        if file is not None:
            sdists[package] = version, lock_file(file, context.http), file.url
    requests = [FileRequest(locked, lambda url=url: [url]) for _, locked, url in sdists.values()]  # type: ignore[misc]
    paths = fetch_all(requests, context, title="sdists")
    wheels = []
    refused = {}
    for package, (version, locked, _) in sdists.items():
        try:
            sdist = paths[locked.sha256]
            wheels.append(
                code_wheel(package, version, locked.sha256, lambda at=sdist: at, context.store)  # type: ignore[misc]
            )
        except IntegrityError as error:
            refused[package] = error.message
    return SdistPins(wheels=tuple(wheels), refused=refused)


def metadata_reader(context: Context) -> SdistBuilder:
    """Return a function that reads METADATA of an sdist without building it.

    If it cannot be read, it lists no requirements.
    """

    def _read(package: str, sdist: IndexFile) -> bytes:
        version = str(sdist.version)
        try:
            locked = lock_file(sdist, context.http)
            request = FileRequest(locked, lambda: [sdist.url])
            path = fetch_all([request], context, title=f"fetching {sdist.name}")[locked.sha256]
            _, wheel = code_wheel(package, version, locked.sha256, lambda: path, context.store)
        except IntegrityError:
            return f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n".encode()
        return wheel_metadata(wheel)

    return _read


def _sdist(files: Iterable[IndexFile], version: Version) -> IndexFile | None:
    matching = (
        index_file for index_file in files if is_sdist(index_file) and index_file.version == version
    )
    return next(
        (index_file for index_file in matching if not index_file.name.endswith(".zip")), None
    )
