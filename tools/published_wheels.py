"""Opens wheels and source archives on uv's default index to read only the necessary files."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Callable, Hashable, Iterable

from packaging.version import Version

from imgbuild.http.client import HttpClient
from imgbuild.index.pages import IndexAddress, IndexFile, IndexLookup
from imgbuild.index.remote_wheel import BlockCache, RemoteFile
from imgbuild.solve import uv


def default_indexes(http: HttpClient) -> IndexLookup:
    """Return the default index of uv as the only index."""
    place = IndexAddress(name="default", address=uv.default_index())
    return IndexLookup({place.name: place}, {}, place.name, http)


def open_wheel(file: IndexFile, http: HttpClient, block: int) -> zipfile.ZipFile:
    """Open a wheel of which only the required blocks of `block` bytes are downloaded."""
    remote = RemoteFile(file.url, BlockCache(http, block=block, limit=64))
    return zipfile.ZipFile(io.BufferedReader(remote, 1 << 16))


def open_sdist(file: IndexFile, http: HttpClient) -> tarfile.TarFile:
    """Return a source archive, which is downloaded while it is read."""
    remote = RemoteFile(file.url, BlockCache(http, block=4 << 20, limit=64))
    return tarfile.open(fileobj=io.BufferedReader(remote, 1 << 20), mode="r|gz")


def first_wheels(
    every: Iterable[IndexFile], oldest: Version, key: Callable[[Version], Hashable]
) -> dict[Version, IndexFile]:
    """Return a wheel of the first final version for each `key`, sorted by version.

    Versions older than `oldest` are ignored. A wheel for x86_64 is preferred.
    """
    wheels: dict[Version, IndexFile] = {}
    for file in every:
        version = file.version
        if not file.is_wheel or version is None or version.is_prerelease:
            continue
        if version >= oldest and (version not in wheels or "x86_64" in file.name):
            wheels[version] = file
    first: dict[Hashable, Version] = {}
    for version in sorted(wheels):
        first.setdefault(key(version), version)
    return {version: wheels[version] for version in first.values()}


def minor_release(version: Version) -> tuple[int, ...]:
    """Return the minor release of a version."""
    return version.release[:2]
