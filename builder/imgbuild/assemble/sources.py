"""Where a lock's files are: addresses are looked up for a fetch, never kept in the lock.

A wheel is looked up by name and sha256 on its package's page in the index that the lock names, a
Debian package on the mirrors; a wheel built from an sdist is built again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property, partial

import msgspec

from imgbuild.cache.context import Context
from imgbuild.cache.download import FileRequest, Http, fetch_all
from imgbuild.deb import apt
from imgbuild.errors import IntegrityError, LockStale
from imgbuild.index.pages import Indexes, places
from imgbuild.lock.lock import Lock
from imgbuild.lock.resolution import BuiltWheel, Deb, LockedFile, Resolution
from imgbuild.matrix.model import Base, DebianBase, Matrix, Target
from imgbuild.solve import sdists, uv
from imgbuild.solve.build_root import host_root
from imgbuild.values import Sha256


class Located(msgspec.Struct, frozen=True):
    """Where files of a lock come from, as far as the lock and the matrix say.

    `remote` are those that a server has to be asked for, `ingredients` what wheels among them are
    built from: sdists and build requirements.
    """

    remote: frozenset[Sha256] = frozenset()
    ingredients: frozenset[Sha256] = frozenset()


class LockSources:
    """The sources of the files of `lock`. Indexes are opened when the first address is needed."""

    def __init__(self, lock: Lock, matrix: Matrix, context: Context) -> None:
        self._lock = lock
        self._matrix = matrix
        self._context = context

    @cached_property
    def indexes(self) -> Indexes:
        """The indexes that the lock names; LockStale if the matrix no longer has its target."""
        return open_indexes(self._lock, self._matrix, self._context.http)

    def locate(self, due: Collection[Sha256]) -> Located:
        """Where the files with the hashes `due` come from; no server is asked.

        No server is needed for a wheel in a folder that the matrix names, nor for one that can be
        built from what such folders and the cache have: its sdist, its build requirements, and the
        packages of its root folder. An index whose address the matrix leaves to uv counts as a
        server. LockStale as for `indexes`.
        """
        if not due:
            return Located()
        located = places(self._matrix, _target(self._lock, self._matrix), str)
        near = {name for name, place in located.items() if place.local}
        # Without packages for this machine's architecture Debian's archive is asked for them.
        debs = host_debs(self._lock)
        rooted = bool(debs) and all(self._has(deb) for deb in debs)
        remote, parts = set(due), set[Sha256]()
        for resolution in self._lock.arch.values():
            remote -= {wheel.sha256 for wheel in resolution.wheels if wheel.index in near}
            for built in resolution.built:
                needed: list[tuple[str, LockedFile]] = [(built.index, built.sdist)]
                needed += [(wheel.index, wheel) for wheel in built.requires]
                remote -= {each.sha256 for index, each in needed if index in near}
                if built.wheel.sha256 in due:
                    parts |= {each.sha256 for _, each in needed}
                if rooted and all(index in near or self._has(each) for index, each in needed):
                    remote.discard(built.wheel.sha256)
        return Located(frozenset(remote), frozenset(parts))

    def addresses(self, package: str, locked: LockedFile) -> list[str]:
        """As `addresses`, in the indexes of the lock."""
        return addresses(package, locked, self.indexes)

    def fetch(self, due: Collection[Sha256]) -> None:
        """Fetch the files with the hashes `due`, of all architectures, into the store.

        Among them may be sdists and what builds them. FetchFailed if one is not available,
        IntegrityError if one is not what the lock says.
        """
        lock, matrix, resolutions = self._lock, self._matrix, tuple(self._lock.arch.values())
        hint = (
            "Debian's archives drop files that an update replaces: name one that keeps them in"
            f" matrix.yaml, such as a dated snapshot, or run: imgbuild lock {lock.target}"
        )
        debs = debian_urls(lock, matrix)
        wants = list(wanted(resolutions, due, self.indexes, debs, hint))
        wants += ingredients(resolutions, due, self.indexes)
        fetch_all(wants, self._context, title=f"fetching {lock.target}")
        lost = {
            built.wheel.sha256: built
            for resolution in resolutions
            for built in resolution.built
            if built.wheel.sha256 in due and not self._has(built.wheel)
        }
        if lost:
            self._rebuild(list(lost.values()))

    def _has(self, locked: LockedFile) -> bool:
        return self._context.store.file(locked.sha256) is not None

    def _rebuild(self, lost: Sequence[BuiltWheel]) -> None:
        """Build wheels from locked inputs again; IntegrityError if the bytes differ."""
        lock, context = self._lock, self._context
        base, user, own = _base(lock, self._matrix), lock.settings.user, sdists.host_arch()
        with host_root(base, user, own, context, host_debs(lock)) as root:
            for built in lost:
                one = Resolution(wheels=(), built=(built,))
                parts = {built.sdist.sha256, *(wheel.sha256 for wheel in built.requires)}
                wants = list(ingredients([one], parts, self.indexes))
                fetch_all(wants, context, title=f"fetching what builds {built.package}")
                made = sdists.make(built, root(), lock.base.python, context)
                if made != built.wheel:
                    message = (
                        f"{built.package} {built.version} built from its sdist has sha256"
                        f" {made.sha256}, the lock says {built.wheel.sha256}"
                    )
                    hint = "its build is not reproducible, or used another Python: lock it again"
                    raise IntegrityError(message, hint=hint)


def host_debs(lock: Lock) -> tuple[Deb, ...]:
    """The Debian packages of `lock` for this machine's architecture; empty if it is not for it."""
    own = lock.arch.get(sdists.host_arch())
    return own.debs if own is not None else ()


def open_indexes(lock: Lock, matrix: Matrix, http: Http) -> Indexes:
    """The indexes that `lock` names; LockStale if the matrix no longer has its target."""
    located = places(matrix, _target(lock, matrix), uv.default_index)
    return Indexes(located, lock.indexes, matrix.default_index, http)


def _target(lock: Lock, matrix: Matrix) -> Target:
    target = matrix.targets.get(lock.target)
    if target is None:
        message = f"the matrix has no target {lock.target}, so its indexes are not known"
        raise LockStale(message, hint="add it again, or remove its folder from images/")
    return target


def _base(lock: Lock, matrix: Matrix) -> Base:
    """The base of `lock` as the matrix has it, there perhaps by another name."""
    return matrix.bases[_target(lock, matrix).base]


def debian_urls(lock: Lock, matrix: Matrix) -> Callable[[Deb], Sequence[str]]:
    """A function that gives the addresses of a deb of `lock`."""
    base = _base(lock, matrix)
    return lambda deb: apt.urls(deb, base) if isinstance(base, DebianBase) else []


def wanted(
    resolutions: Iterable[Resolution],
    due: Collection[Sha256],
    indexes: Indexes,
    debs: Callable[[Deb], Sequence[str]],
    hint: str = "",
) -> Iterable[FileRequest]:
    """What to download of `resolutions`; each file once. No address is looked up yet.

    `hint` is what to do if no mirror has a Debian package.
    """
    seen: set[Sha256] = set()
    for resolution in resolutions:
        for wheel in resolution.wheels:
            if wheel.sha256 in due and wheel.sha256 not in seen:
                seen.add(wheel.sha256)
                yield FileRequest(
                    locked=wheel, urls=partial(addresses, wheel.package, wheel, indexes)
                )
        for deb in resolution.debs:
            if deb.sha256 in due and deb.sha256 not in seen:
                seen.add(deb.sha256)
                yield FileRequest(locked=deb, urls=partial(debs, deb), hint=hint)


def ingredients(
    resolutions: Iterable[Resolution], due: Collection[Sha256], indexes: Indexes
) -> Iterable[FileRequest]:
    """Those of `due` that wheels are built from: sdists, and what their builds require."""
    for resolution in resolutions:
        for built in resolution.built:
            parts = [(built.package, built.sdist)]
            parts += [(wheel.package, wheel) for wheel in built.requires]
            for package, locked in parts:
                if locked.sha256 in due:
                    yield FileRequest(
                        locked=locked, urls=partial(addresses, package, locked, indexes)
                    )


def addresses(package: str, locked: LockedFile, indexes: Indexes) -> list[str]:
    """Where the index of `package` has `locked`: same name, and same sha256 if it says one.

    Empty if the index has no such file any more; IntegrityError if it has different bytes under
    that name.
    """
    named = [file for file in indexes.files(package) if file.name == locked.file]
    found = [file.url for file in named if file.sha256 in (None, locked.sha256)]
    if named and not found:
        place = indexes.place(package)
        message = (
            f"{locked.file} on the index {place.name} has sha256 {named[0].sha256},"
            f" the lock says {locked.sha256}"
        )
        raise IntegrityError(
            message, hint="the file was replaced on the index; it was not downloaded"
        )
    return found
