"""Determines which packages of a project come from the indexes in its files.

A package comes from an index if a file of the project assigns the package to it, or if the index
has files of the package that the default index lacks, even if the default index has other files.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from imgbuild.cache.context import Context
from imgbuild.errors import ImgbuildError
from imgbuild.http.client import HttpClient
from imgbuild.index.candidates import best_wheel
from imgbuild.index.pages import IndexAddress, IndexFile, IndexLookup
from imgbuild.index.remote_wheel import read_wheel_metadata
from imgbuild.matrix.model import PackageIndex
from imgbuild.project import releases
from imgbuild.project.model import DeclaredIndex
from imgbuild.resolve import engine_torch
from imgbuild.resolve.demands import PackageDemand
from imgbuild.resolve.feasible import IndexPages, UnmetDemand, allowed_files
from imgbuild.resolve.resolve_request import unused_name
from imgbuild.system import threads
from imgbuild.values import normalize_package
from imgbuild.wheel.tags import WheelTags

DEPTH = 10  # of the requirements of packages of an index
LOOKUP_LIMIT = 100  # packages at most, those of no target first
ATTEMPTS = 2  # the index of a project may be reachable only for its authors


class ProjectIndexes(msgspec.Struct, frozen=True, kw_only=True):
    """The indexes that a project uses, with their names in a matrix and their packages.

    `addresses` are the URLs of `indexes` on this machine. `notes` list the packages of each index.
    `failures` are the indexes that could not be read. Packages of these indexes are in `obstacles`.
    """

    indexes: dict[str, PackageIndex] = {}
    packages: dict[str, str] = {}
    addresses: dict[str, IndexAddress] = {}
    notes: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    obstacles: tuple[UnmetDemand, ...] = ()


class _ProjectIndex:
    """An index in a project's files, which counts as empty after a failure.

    `url` is the URL that is written to the matrix.
    """

    def __init__(self, declared: DeclaredIndex, name: str, folder: Path, http: HttpClient) -> None:
        self.declared, self.name = declared, name
        url = self.url = declared.url
        if url.startswith("file:"):
            path = url.removeprefix("file:")
            url = f"{(folder / path).resolve().as_uri()}/"
            self.url = url if path.startswith("/") else self.url
        self.address = IndexAddress(name=name, address=url, flat=declared.flat, timed=False)
        self.packages: set[str] = set()
        self.failure = ""
        self._indexes = IndexLookup({name: self.address}, {}, name, http)
        self._http = http

    def read(self, packages: Iterable[str]) -> None:
        """Fetch the first page, and only if this succeeds, the others."""
        names = sorted(packages)
        self.files(*names[:1])
        if not self.failure:
            threads.run_for_each(names[1:], lambda name, _: self.files(name), threads=8)

    def files(self, *packages: str) -> tuple[IndexFile, ...]:
        try:
            if not self.failure:
                return tuple(file for name in packages for file in self._indexes.files(name))
        except ImgbuildError as error:
            self.failure = f"{error.message}; {error.hint}" if error.hint else error.message
        return ()

    @property
    def has_upload_times(self) -> bool:
        if self.address.flat or self.failure:
            return False
        address = msgspec.structs.replace(self.address, timed=True)
        indexes = IndexLookup({self.name: address}, {}, self.name, self._http)
        try:
            files = [file for package in self.packages for file in indexes.files(package)]
        except ImgbuildError:
            return False
        return bool(files) and all(file.uploaded is not None for file in files)

    def metadata(self, wheel: IndexFile, context: Context) -> bytes:
        try:
            return read_wheel_metadata(wheel, context.http, context.store)
        except ImgbuildError as error:
            self.failure = error.message
            return b""


def find_project_indexes(
    declared: Sequence[DeclaredIndex],
    demands: Sequence[PackageDemand],
    pages: IndexPages,
    tags: WheelTags,
    *,
    published: Collection[str],
    folder: Path,
    taken: Collection[str] = (),
) -> ProjectIndexes:
    """Return the indexes in `declared` that `demands` need.

    `pages` are those of the default index. Packages in `published` are looked up only if the
    default index does not meet the demand. `folder` is the folder of the project, and `taken`
    contains the names of other indexes.
    """
    http = HttpClient(offline=pages.context.http.offline, attempts=ATTEMPTS)
    names = _unused_names(declared, taken)
    indexes = [_ProjectIndex(each, names[each.url], folder, http) for each in declared]
    by_package = {
        each.package: each
        for each in demands
        if not each.source and each.package not in releases.TORCH
    }
    if not indexes or not by_package:
        return ProjectIndexes()
    for index in indexes:
        index.packages |= by_package.keys() & set(index.declared.packages)
    assigned = {package for index in indexes for package in index.packages}
    general = [index for index in indexes if index.declared.general]
    if general:
        open_names = sorted(
            by_package.keys() - assigned, key=lambda name: (name in published, name)
        )
        looked_up = open_names[:LOOKUP_LIMIT]
        pages.read(looked_up)
        new = {
            package
            for package in looked_up
            if package not in published
            or not allowed_files(by_package[package], pages.files(package))
        }
        _assign_packages(general, new, pages)
        _follow_requirements(general, by_package, {*by_package, *published}, pages, tags)
    for index in indexes:
        index.read(index.packages)
    return _result(indexes, by_package)


def _assign_packages(
    indexes: Sequence[_ProjectIndex], packages: Collection[str], pages: IndexPages
) -> set[str]:
    """Assign each package to the first index with files that the default index lacks."""
    left = set(packages)
    for index in indexes:
        index.read(left)
        of_index = {
            package for package in left if _files_differ(index.files(package), pages, package)
        }
        index.packages |= of_index
        left -= of_index
    return set(packages) - left


def _files_differ(files: Sequence[IndexFile], pages: IndexPages, package: str) -> bool:
    """Return False if the index may be a mirror of the default index."""
    if not files:
        return False
    hashes = {file.name: file.sha256 for file in pages.files(package)}
    return any(
        file.name not in hashes
        or (None not in (file.sha256, hashes[file.name]) and file.sha256 != hashes[file.name])
        for file in files
    )


def _follow_requirements(
    general: Sequence[_ProjectIndex],
    by_package: dict[str, PackageDemand],
    excluded: Collection[str],
    pages: IndexPages,
    tags: WheelTags,
) -> None:
    seen, new = set(excluded), {name for index in general for name in index.packages}
    for _ in range(DEPTH):
        required: set[str] = set()
        for index in general:
            for package in sorted(index.packages & new):
                demand = by_package.get(package, PackageDemand(package=package))
                wheel = _newest_wheel(allowed_files(demand, index.files(package)), tags)
                if wheel is not None:
                    data = index.metadata(wheel, pages.context)
                    needed = engine_torch.required_with_extras(demand, data, tags.markers)
                    required |= {normalize_package(each.name) for each in needed}
        required -= seen | releases.TORCH
        seen |= required
        pages.read(required)
        new = _assign_packages(general, required, pages)
        if not new:
            return


def _newest_wheel(files: Sequence[IndexFile], tags: WheelTags) -> IndexFile | None:
    versions = sorted({file.version for file in files if file.version is not None}, reverse=True)
    wheels = (best_wheel(files, version, tags) for version in versions)
    return next((wheel for wheel in wheels if wheel is not None), None)


def _unused_names(declared: Sequence[DeclaredIndex], taken: Collection[str]) -> dict[str, str]:
    names: dict[str, str] = {}
    for each in declared:
        label = each.name or urlsplit(each.url).hostname or unquote(urlsplit(each.url).path)
        first = "-".join(re.findall(r"[a-z0-9]+", label.lower())) or "index"
        names[each.url] = unused_name(first, (*taken, *names.values()))
    return names


def _result(
    indexes: Sequence[_ProjectIndex], demands: Mapping[str, PackageDemand]
) -> ProjectIndexes:
    used = [index for index in indexes if index.packages and not index.failure]
    rows: dict[str, PackageIndex] = {}
    addresses: dict[str, IndexAddress] = {}
    notes: list[str] = []
    for index in used:
        timed = index.has_upload_times
        rows[index.name] = PackageIndex(
            url=index.url,
            upload_times="index" if timed else "none",
            flat=index.declared.flat,
        )
        addresses[index.name] = msgspec.structs.replace(index.address, timed=timed)
        names = ", ".join(sorted(index.packages))
        notes.append(f"{names}: from the index {index.declared.url} ({index.declared.place})")
    return ProjectIndexes(
        indexes=rows,
        packages={package: index.name for index in used for package in sorted(index.packages)},
        addresses=addresses,
        notes=tuple(notes),
        failures=tuple(
            f"{index.declared.place}: the index {index.declared.url} cannot be read:"
            f" {index.failure}"
            for index in indexes
            if index.failure
        ),
        obstacles=tuple(
            UnmetDemand(
                package=package,
                demand=str(demands[package]),
                cause="index",
                reason=f"the index {index.declared.url} cannot be read: {index.failure}",
                places=demands[package].places,
            )
            for index in indexes
            if index.failure
            for package in sorted(index.packages & demands.keys())
        ),
    )
