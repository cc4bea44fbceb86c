"""Locates the files of a lock, whose URLs are looked up only when files are fetched.

The lock contains no URLs. Wheels are looked up by name and SHA-256 on the page of the package in
the locked index, and Debian packages on mirrors. Wheels that were built from an sdist are built
again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property, partial
from pathlib import Path

import msgspec

from imgbuild.assemble.mirror_items import Input
from imgbuild.cache.context import Context
from imgbuild.cache.download import FileRequest, fetch_all
from imgbuild.deb import apt
from imgbuild.errors import LockStale
from imgbuild.http.client import HttpClient
from imgbuild.index.pages import GIT_ADDRESS, PROJECT, IndexFile, IndexLookup, index_addresses
from imgbuild.lock import published
from imgbuild.lock.lock_file import Lock
from imgbuild.lock.resolution import Deb, LockedFile, PythonArchive
from imgbuild.matrix.model import Base, DebianBase, Matrix, Target
from imgbuild.solve import direct, sdists, standalone, uv
from imgbuild.solve.build_root import host_root
from imgbuild.values import Sha256


def is_near(file: IndexFile) -> bool:
    """Return whether `file` is in the local file system, possibly in a git repository."""
    return file.url.removeprefix(GIT_ADDRESS).startswith("file:")


class LocatedFiles(msgspec.Struct, frozen=True):
    """The sources of a lock's files, as defined by the lock and the matrix.

    `remote` are downloaded from a server. `ingredients` are the sdists and build requirements of
    wheels to build.
    """

    remote: frozenset[Sha256] = frozenset()
    ingredients: frozenset[Sha256] = frozenset()


class LockSources:
    """The sources of the files in `lock`. Indexes are opened when the first URL is needed."""

    def __init__(self, lock: Lock, matrix: Matrix, context: Context) -> None:
        self._lock = lock
        self._matrix = matrix
        self._context = context

    @cached_property
    def indexes(self) -> IndexLookup:
        """The indexes in the lock.

        Raises LockStale if the matrix no longer has the target.
        """
        return open_indexes(self._lock, self._matrix, self._context.http)

    def locate(self, requested: Collection[Sha256]) -> LocatedFiles:
        """Locate the files with the hashes `requested`, without sending a request.

        A wheel needs no server if it is in a folder that the matrix defines as an index. A wheel to
        build needs no server if the sdist, the build requirements and the packages of the root
        folder are in such a folder or in the cache. An index whose URL is configured in uv is
        treated as a server. Raises LockStale if the matrix no longer has the target.
        """
        if not requested:
            return LocatedFiles()
        located = index_addresses(self._matrix, _target(self._lock, self._matrix), str)
        near = {PROJECT, *(name for name, place in located.items() if place.is_local)}
        by_address = direct_files(self._lock, self._matrix)
        here = {file.sha256 for files in by_address.values() for file in files if is_near(file)}
        # Without packages for this machine's architecture they are requested from Debian's archive.
        debs = host_debs(self._lock)
        archive = host_python(self._lock)
        rooted = bool(debs) and all(map(self._has_file, (*debs, *([archive] if archive else []))))
        remote, parts = set(requested), set[Sha256]()
        for resolution in self._lock.arch.values():
            remote -= {wheel.sha256 for wheel in resolution.wheels if wheel.index in near}
            remote -= here
            for built in resolution.built:
                needed: list[tuple[str, LockedFile]] = [(built.index, built.sdist)]
                needed += [(wheel.index, wheel) for wheel in built.requires]
                near_files = here | {each.sha256 for index, each in needed if index in near}
                remote -= near_files
                if built.wheel.sha256 in requested:
                    parts |= {each.sha256 for _, each in needed}
                if rooted and all(
                    each.sha256 in near_files or self._has_file(each) for _, each in needed
                ):
                    remote.discard(built.wheel.sha256)
        return LocatedFiles(frozenset(remote), frozenset(parts))

    def fetch_files(self, items: Sequence[Input]) -> None:
        """Fetch files from indexes and archives into the store, for all architectures.

        The files can include sdists and build requirements. Raises FetchFailed if a file is not
        available, and IntegrityError if a file does not match the lock.
        """
        if all(item.layer for item in items):
            return
        lock, indexes = self._lock, self.indexes
        base = matrix_base(lock, self._matrix)
        hint = (
            "Debian's archives remove superseded files; add a permanent archive, such as a "
            f"dated snapshot, to matrix.yaml, or run: imgbuild lock {lock.target}"
        )
        requests: dict[Sha256, FileRequest] = {}
        for resolution in lock.arch.values():
            parts: list[tuple[str, LockedFile]] = []
            parts += [(wheel.package, wheel) for wheel in resolution.wheels]
            parts += [part for built in resolution.built for part in sdists.recipe_inputs(built)]
            for package, locked in parts:
                urls = partial(indexes.file_urls, package, locked)
                requests[locked.sha256] = FileRequest(locked, urls)
            for built in resolution.built:
                if any(item.sha256 == built.sdist.sha256 for item in items):
                    sdists.fetch_tree(built, indexes, self._context)
            if isinstance(base, DebianBase):
                for deb in resolution.debs:
                    requests[deb.sha256] = FileRequest(deb, partial(apt.deb_urls, deb, base), hint)
        for archive, named in python_archives(lock, base):
            requests[archive.sha256] = standalone.archive_request(archive, named)
        files = [requests[item.sha256] for item in items if item.sha256 in requests]
        fetch_all(files, self._context, title=f"fetching {lock.target}")

    def rebuild_wheels(self, items: Sequence[Input]) -> None:
        """Rebuild wheels from locked inputs. Raises the same errors as `sdists.rebuild_wheel`."""
        lock, context = self._lock, self._context
        hashes = {item.sha256 for item in items}
        lost = {
            built.wheel.sha256: built
            for resolution in lock.arch.values()
            for built in resolution.built
            if built.wheel.sha256 in hashes
        }
        base, user, arch = matrix_base(lock, self._matrix), lock.settings.user, sdists.host_arch()
        hint = "lock the target again; the build is not reproducible, or used a different Python"
        root = host_root(base, user, arch, context, host_debs(lock), host_python(lock))
        for built in lost.values():
            sdists.rebuild_wheel(built, self.indexes, root(), lock.base.python, context, hint=hint)

    def _has_file(self, locked: LockedFile) -> bool:
        return self._context.store.file(locked.sha256) is not None


def host_debs(lock: Lock) -> tuple[Deb, ...]:
    """Return the Debian packages of `lock` for this machine's architecture, if any."""
    resolution = lock.arch.get(sdists.host_arch())
    return resolution.debs if resolution is not None else ()


def host_python(lock: Lock) -> PythonArchive | None:
    """Return the standalone Python of `lock` for this machine's architecture, or None."""
    resolution = lock.arch.get(sdists.host_arch())
    return resolution.python or None if resolution is not None else None


def python_archives(lock: Lock, base: Base) -> list[tuple[PythonArchive, list[str]]]:
    """Return each Python archive of `lock`, with its URLs in the matrix and the lock."""
    source = base.standalone_python if isinstance(base, DebianBase) else None
    named = source.archives if source is not None else {}
    archives = ((arch, resolution.python) for arch, resolution in lock.arch.items())
    return [
        (archive, list(dict.fromkeys(url for url in (named.get(arch), locked.get(arch)) if url)))
        for locked in [lock.base.standalone or {}]
        for arch, archive in archives
        if archive
    ]


def open_indexes(lock: Lock, matrix: Matrix, http: HttpClient) -> IndexLookup:
    """Return the indexes in `lock`. Raises LockStale if the matrix lacks the target."""
    located = index_addresses(matrix, _target(lock, matrix), uv.default_index)
    files = direct_files(lock, matrix)
    return IndexLookup(located, lock.indexes, matrix.default_index, http, files)


def direct_files(lock: Lock, matrix: Matrix) -> dict[str, tuple[IndexFile, ...]]:
    """Return the wheels and git archives that `lock` references by URL, by package."""
    if lock.project is None:
        return {}
    locked = [
        *((wheel.package, wheel) for each in lock.arch.values() for wheel in each.wheels),
        *((built.package, built.sdist) for each in lock.arch.values() for built in each.built),
    ]
    files = (
        (package, IndexFile(name=item.file, url="", sha256=item.sha256, size=item.size))
        for package, item in locked
    )
    return direct.files_from_lock(lock.project.sources, files, project_folder(lock, matrix))


def project_folder(lock: Lock, matrix: Matrix) -> Path | None:
    """Return the folder of the locked project, or None if the matrix does not define it."""
    item = published.project_row(matrix, lock.target)
    return item.folder if item is not None else None


def _target(lock: Lock, matrix: Matrix) -> Target:
    target = matrix.targets.get(lock.target)
    if target is None:
        message = (
            f"the indexes of {lock.target} are unknown, because the matrix does not have this "
            "target"
        )
        raise LockStale(message, hint="add the target again, or remove its folder from images/")
    return target


def matrix_base(lock: Lock, matrix: Matrix) -> Base:
    """Return the base of `lock` in the current matrix, in which the base can have another name."""
    return matrix.bases[_target(lock, matrix).base]
