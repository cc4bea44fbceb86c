"""Where a lock's files are: addresses are looked up for a fetch, never kept in the lock.

Comes in: a lock and the hashes of files that the store lacks. Goes out: these files in the store.
A wheel is looked for by name and sha256 on its package's page in the index that the lock names, a
Debian package on the mirrors; a wheel built from an sdist is built again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

from imgbuild.cache.context import Context
from imgbuild.cache.download import Http, Want, fetch_all
from imgbuild.cache.store import Store
from imgbuild.deb import apt
from imgbuild.errors import IntegrityError, LockStale
from imgbuild.index.pages import Indexes, places
from imgbuild.lock.lock import Lock
from imgbuild.lock.resolution import Built, Deb, Locked, Resolution
from imgbuild.matrix.model import Base, DebianBase, Matrix, Target
from imgbuild.solve import sdists, uv
from imgbuild.solve.build_root import host_root
from imgbuild.values import Sha256


def fetch(lock: Lock, due: Collection[Sha256], matrix: Matrix, context: Context) -> None:
    """Bring the files of `lock` with the hashes `due` into the store, whatever their architecture.

    Among them may be sdists and what builds them. FetchFailed if one cannot be had, IntegrityError
    if one is not what the lock says.
    """
    resolutions = tuple(lock.arch.values())
    indexes = open_indexes(lock, matrix, context.http)
    wants = list(wanted(resolutions, due, indexes, debian_urls(lock, matrix)))
    wants += ingredients(resolutions, due, indexes)
    fetch_all(wants, context, title=f"fetching {lock.target}")
    lost = {
        built.wheel.sha256: built
        for resolution in resolutions
        for built in resolution.built
        if built.wheel.sha256 in due and context.store.file(built.wheel.sha256) is None
    }
    if lost:
        rebuild(list(lost.values()), lock, matrix, indexes, context)


def made_of(lock: Lock, due: Collection[Sha256]) -> set[Sha256]:
    """The sdists and build requirements of those of `due` that are built from sdists."""
    return {
        item.sha256
        for resolution in lock.arch.values()
        for built in resolution.built
        if built.wheel.sha256 in due
        for item in (built.sdist, *built.requires)
    }


def far(lock: Lock, due: Collection[Sha256], matrix: Matrix, store: Store) -> set[Sha256]:
    """Those of `due` for which a server has to be asked.

    None has to be for a wheel in a folder that the matrix names, nor for one that can be built of
    what such folders and `store` have: its sdist, what it requires, and the packages of the root
    that it is built under. An index whose address the matrix leaves to uv counts as a server.
    """
    located = places(matrix, _target(lock, matrix), str)
    near = {name for name, place in located.items() if place.local}
    # Without packages of this machine's architecture a build asks Debian's archive which these are.
    debs = host_debs(lock)
    rooted = bool(debs) and all(store.file(deb.sha256) is not None for deb in debs)
    found = set(due)
    for resolution in lock.arch.values():
        found -= {wheel.sha256 for wheel in resolution.wheels if wheel.index in near}
        for built in resolution.built:
            needed: list[tuple[str, Locked]] = [(built.index, built.sdist)]
            needed += [(wheel.index, wheel) for wheel in built.requires]
            found -= {each.sha256 for index, each in needed if index in near}
            if rooted and all(
                index in near or store.file(each.sha256) is not None for index, each in needed
            ):
                found.discard(built.wheel.sha256)
    return found


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
    """A function that gives the addresses of a deb of `lock`; reads apt's configuration once."""
    base = _base(lock, matrix)
    mirrors: list[str] = []

    def _urls(deb: Deb) -> Sequence[str]:
        if not mirrors and isinstance(base, DebianBase):
            mirrors.extend(apt.mirrors(base))
        return apt.urls(deb, mirrors)

    return _urls


def wanted(
    resolutions: Iterable[Resolution],
    due: Collection[Sha256],
    indexes: Indexes,
    debs: Callable[[Deb], Sequence[str]],
) -> Iterable[Want]:
    """What to download of `resolutions`; each file once. No address is looked up yet."""
    seen: set[Sha256] = set()
    for resolution in resolutions:
        for wheel in resolution.wheels:
            if wheel.sha256 in due and wheel.sha256 not in seen:
                seen.add(wheel.sha256)
                yield Want(locked=wheel, urls=partial(addresses, wheel.package, wheel, indexes))
        for deb in resolution.debs:
            if deb.sha256 in due and deb.sha256 not in seen:
                seen.add(deb.sha256)
                yield Want(locked=deb, urls=partial(debs, deb))


def ingredients(
    resolutions: Iterable[Resolution], due: Collection[Sha256], indexes: Indexes
) -> Iterable[Want]:
    """Those of `due` that wheels are built from: sdists, and what their builds require."""
    for resolution in resolutions:
        for built in resolution.built:
            parts = [(built.package, built.sdist)]
            parts += [(wheel.package, wheel) for wheel in built.requires]
            for package, locked in parts:
                if locked.sha256 in due:
                    yield Want(locked=locked, urls=partial(addresses, package, locked, indexes))


def addresses(package: str, locked: Locked, indexes: Indexes) -> list[str]:
    """Where the index of `package` has `locked`: same name, and same sha256 if it says one.

    Empty if the index has no such file any more; IntegrityError if it has other bytes by that name.
    """
    named = [file for file in indexes.files(package) if file.name == locked.file]
    found = [file.url for file in named if file.sha256 in (None, locked.sha256)]
    if named and not found:
        place = indexes.place(package)
        message = (
            f"{locked.file} on the index {place.name} has sha256 {named[0].sha256},"
            f" the lock says {locked.sha256}"
        )
        raise IntegrityError(message, hint="the file was replaced; nothing of it was fetched")
    return found


def rebuild(
    lost: Sequence[Built],
    lock: Lock,
    matrix: Matrix,
    indexes: Indexes,
    context: Context,
) -> None:
    """Build wheels of sdists again from locked inputs; IntegrityError if other bytes come out."""
    base, user, own = _base(lock, matrix), lock.settings.user, sdists.host_arch()
    with host_root(base, user, own, context, host_debs(lock)) as root:
        for built in lost:
            one = Resolution(wheels=(), built=(built,))
            parts = {built.sdist.sha256, *(wheel.sha256 for wheel in built.requires)}
            wants = list(ingredients([one], parts, indexes))
            fetch_all(wants, context, title=f"fetching what builds {built.package}")
            made = sdists.make(built, root(), lock.base.python, context)
            if made != built.wheel:
                message = (
                    f"{built.package} {built.version} built from its sdist has sha256"
                    f" {made.sha256}, the lock says {built.wheel.sha256}"
                )
                hint = "its build is not reproducible, or another Python built it: lock it anew"
                raise IntegrityError(message, hint=hint)
