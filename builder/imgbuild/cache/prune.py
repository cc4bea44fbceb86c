"""Removes the least recently used entries and damaged entries from the cache."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from imgbuild.cache import facts
from imgbuild.cache.settings import size_limit
from imgbuild.cache.store import NAME, SIZE, Store
from imgbuild.errors import InputError
from imgbuild.system import files, known_hashes
from imgbuild.system.boundary import open_regular
from imgbuild.system.folder import regular_file, try_lock


class CacheEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the cache. `kind` is file, blob, unpacked, root, kernels, fact or partial.

    `used` is in seconds since the epoch. `path` is relative to the cache. `label` is the file name
    of an input, or the kind of a fact.
    """

    kind: str
    sha256: str
    label: str
    size: int
    used: float
    in_use: bool
    path: str


class Removal(msgspec.Struct, frozen=True, kw_only=True):
    """A result of pruning: entries and bytes removed, bytes left, and bytes in use."""

    removed: int
    freed: int
    left: int
    in_use: int


# The kind of an entry, its top folder, and the depth of entries below it.
_PLACES = (
    ("file", "files", 2),
    ("blob", "blobs", 2),
    ("unpacked", "unpacked", 2),
    ("root", "roots", 2),
    ("kernels", "kernels", 1),
    ("fact", "facts", 3),
    ("partial", "partial", 1),
)
_FOLDERS = ("root", "unpacked", "kernels")
_TURN = {"root": 0, "unpacked": 1, "fact": 3}  # 2: all others


def list_entries(store: Store) -> list[CacheEntry]:
    """Return all entries, least recently used first."""
    leased = store.leased_paths()
    cache_entries = []
    for kind, top, depth in _PLACES:
        right = stat.S_ISDIR if kind in _FOLDERS else stat.S_ISREG
        folder = store.root / top
        for path in () if folder.is_symlink() else _paths_below(str(folder), depth):
            with contextlib.suppress(FileNotFoundError):
                status = os.lstat(path)
                if right(status.st_mode):
                    cache_entries.append(_entry(store, kind, path, status, leased))
    return sorted(cache_entries, key=lambda entry: (entry.used, entry.path))


def _paths_below(folder: str, depth: int) -> Iterator[str]:
    """Yield the paths `depth` levels below `folder`. Links are neither included nor followed.

    Paths are strings for speed, because a cache can contain tens of thousands of facts.
    """
    listed: list[str] = []
    with (
        # Removed in the meantime, owned by another user, or a file.
        contextlib.suppress(FileNotFoundError, PermissionError, NotADirectoryError),
        os.scandir(folder) as content,
    ):
        listed = [item.path for item in content if not item.is_symlink()]
    for path in listed:
        if depth == 1:
            yield path
        else:
            yield from _paths_below(path, depth - 1)


def _entry(
    store: Store, kind: str, path: str, status: os.stat_result, leased: set[str]
) -> CacheEntry:
    *_, fact_kind, _, name = path.split("/")
    place = path.removeprefix(f"{store.root}/")
    size = status.st_size
    if kind == "kernels":
        size = files.unshared_size(Path(path))
    elif kind in _FOLDERS:
        size = int(Path(path, SIZE).read_text(encoding="ascii"))
    if kind == "fact":
        label = fact_kind
    else:
        label = (store.fact(NAME, name) or b"").decode("utf-8", "replace")
    return CacheEntry(
        kind=kind,
        sha256=name,
        label=label,
        size=size,
        used=status.st_mtime,
        in_use=_is_busy(Path(path)) if kind == "partial" else place in leased,
        path=place,
    )


def _is_busy(path: Path) -> bool:
    with _claim_partial(path) as mine:
        return not mine


@contextlib.contextmanager
def _claim_partial(path: Path) -> Iterator[bool]:
    """Lock the partial file at `path`. Yields False if another process holds the lock."""
    try:
        descriptor = regular_file(path, os.O_RDWR)
    except (FileNotFoundError, InputError):
        yield False
        return
    try:
        yield try_lock(descriptor) and files.same_file(descriptor, path)
    finally:
        os.close(descriptor)


def prune_cache(store: Store, limit: int) -> Removal:
    """Remove the least recently used entries until at most `limit` bytes are left.

    Entries in use by a live process are kept regardless of the limit. Roots are removed first,
    because they contain hard links to files of unpacked layers. Unpacked layers are removed next,
    because they can be created again from layers. Facts are removed last, because they are small
    and slow to compute.
    """
    store.remove_leftovers()
    removed = freed = 0
    with files.plain_errors(store.root), store.exclusive_access():
        cache_entries = list_entries(store)
        left = sum(entry.size for entry in cache_entries)
        for entry in sorted(cache_entries, key=lambda entry: _TURN.get(entry.kind, 2)):
            if left <= limit and not (limit == 0 and entry.size == 0):
                break
            if not entry.in_use and _remove_entry(store, entry):
                removed, freed, left = removed + 1, freed + entry.size, left - entry.size
    used = sum(entry.size for entry in cache_entries if entry.in_use)
    return Removal(removed=removed, freed=freed, left=left, in_use=used)


def _remove_entry(store: Store, entry: CacheEntry) -> bool:
    path = store.root / entry.path
    if entry.kind == "partial":
        with _claim_partial(path) as mine:
            if mine:
                path.unlink()
            return mine
    if entry.kind in _FOLDERS:
        # The user may have removed it.
        with store.scratch() as scratch, contextlib.suppress(FileNotFoundError):
            path.rename(scratch / "unpacked")  # atomic, even if the process is killed
    else:
        with known_hashes.user_known_hashes().relinking(
            path
        ):  # a layout may have a link to the same file
            path.unlink(missing_ok=True)
    return True


def clear_cache(store: Store) -> Removal:
    """Remove all entries that are not in use by a live process."""
    return prune_cache(store, 0)


def trim_cache(store: Store) -> Removal | None:
    """Limit the cache to $IMGBUILD_CACHE_SIZE at the end of a command.

    Returns None if this variable is unset. Entries that this process has used can be removed, too.
    Files of killed processes are always removed.
    """
    limit = size_limit()
    if limit is None:
        store.remove_leftovers()  # a command that had nothing to do has not used the cache
        return None
    store.release()
    return prune_cache(store, limit)


def verify_entries(store: Store, advance: Callable[[int], None]) -> list[CacheEntry]:
    """Hash every file and blob, and remove those that do not match their names.

    Returns the removed entries. `advance` is called with the number of bytes in each read.
    """
    damaged = []
    for entry in list_entries(store):
        path = store.root / entry.path
        if entry.kind in ("file", "blob"):
            with contextlib.suppress(FileNotFoundError):
                if _hash(path, advance) != entry.sha256:
                    store.drop_damaged(path)
                    damaged.append(entry)
        elif entry.kind == "fact" and facts.is_damaged(path):
            path.unlink(missing_ok=True)
            damaged.append(entry)
    return damaged


def _hash(path: Path, advance: Callable[[int], None]) -> str:
    hashed = hashlib.sha256()
    with open(path, "rb", opener=open_regular) as file:
        while chunk := file.read(1 << 20):
            hashed.update(chunk)
            advance(len(chunk))
    return hashed.hexdigest()
