"""Stores files and layers by hash in a cache on disk.

    files/ab/SHA256          input files: wheels, debs, sdists
    blobs/sha256/SHA256      layers
    unpacked/USER/SHA256     folders with the files of layers, owned by the user with this ID
    roots/USER/SHA256        root file systems of images, as hard links to unpacked files
    kernels/SHA256           the kernels that an image compiled at run time
    facts/KIND/ab/SHA256     small data derived from inputs, with a checksum
    partial/SHA256           interrupted downloads, locked while resumed
    scratch/ID/, live/ID     the temporary folder and the lock file of a live process
    locks/NAME               locks between processes

The folders are writable only by this user. Folders of other users and links below the root are
rejected, so that nobody else can redirect a checked path. A shared cache is a folder like /tmp
(mode 1777, owned by root) that contains a cache `user-ID/` for each user. A file in another user's
cache is copied and hashed before it is used.

A file or blob is hashed before it is used, unless it has not changed since it was last hashed (see
`system.known_hashes`). A damaged entry is removed with a warning. A file that another user owns or
can write to is replaced by a copy, which is hashed.

Files are flushed to disk and then renamed, so that after a kill or a power failure, a file is
complete or missing. Leftovers in `scratch/` are removed by the next process, because the kernel
releases the locks of dead processes. A process writes the names of entries in use to its locked
`live/ID`, and pruning keeps these entries.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Literal

from imgbuild.cache import facts, processes, sharing
from imgbuild.cache.facts_file import installed_facts
from imgbuild.cache.settings import default_root, size_limit
from imgbuild.errors import InputError, IntegrityError
from imgbuild.system import files, known_hashes
from imgbuild.system.boundary import open_regular, read_regular_file
from imgbuild.system.folder import copy_and_hash, is_private, make_private, regular_file
from imgbuild.system.reporter import SILENT_REPORTER, Reporter
from imgbuild.values import DIGEST_PATTERN, SHA256_PATTERN, sha256

FORMAT = b"1\n"
SIZE = "size"  # the file in the folder of a layer or root with its size in bytes
FolderKind = Literal["unpacked", "roots"]  # of a layer, of an image
NAME = "name"  # the kind of fact that stores the file name of an input, for display
_TAG = (
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# This file marks a cache that backups may omit: https://bford.info/cachedir/\n"
)
LOCK_NAME = 80  # characters of a lock's name in its file name; a hash replaces the rest


class Store:
    """A cache folder. Safe for concurrent threads, forked children and processes."""

    def __init__(self, root: Path, reporter: Reporter = SILENT_REPORTER) -> None:
        self.root = root
        self._reporter = reporter
        self._live: tuple[str, int] | None = None
        self._leased: set[str] = set()
        self._lock = threading.RLock()
        self._known = known_hashes.user_known_hashes()
        self._shared: Path | None = None  # the folder with the caches of all users
        self._modeless = False  # a file system without modes

    @classmethod
    def open(cls, root: Path | None = None, reporter: Reporter = SILENT_REPORTER) -> Store:
        """Open the cache at `root` (default: `default_root`), and create it if missing.

        Raises InputError if the cache is not writable or has the format of another version of
        imgbuild, or if $IMGBUILD_CACHE_SIZE is invalid.
        """
        size_limit()
        store = cls(Path(root).absolute() if root is not None else default_root(), reporter)
        with files.plain_errors(store.root):
            store.root, store._shared = sharing.prepare_cache(store.root, reporter)
            store._write_mark("CACHEDIR.TAG", _TAG.encode())
            store._write_mark("FORMAT", FORMAT)
        if read_regular_file(store.root / "FORMAT", len(FORMAT)) != FORMAT:
            message = f"the cache at {store.root} was created by another version of imgbuild"
            raise InputError(
                message, hint="set IMGBUILD_CACHE to another folder, or remove this folder"
            )
        return store

    # -- files and blobs

    def file(self, sha256: str) -> Path | None:
        """Return the path of the input file, or None. It is not pruned until this process ends."""
        return self._use_entry(self._file(sha256))

    def blob(self, digest: str) -> Path | None:
        """Return the path of the layer, or None. It is not pruned until this process ends."""
        return self._use_entry(self._blob(digest))

    def add_file(self, temporary: Path, sha256: str) -> Path:
        """Move `temporary`, whose hash was checked, into the cache. Returns the new path."""
        return self._add_entry(temporary, self._file(sha256))

    def add_blob(self, temporary: Path, digest: str) -> Path:
        """Move `temporary`, whose digest was checked, into the cache. Returns the new path."""
        return self._add_entry(temporary, self._blob(digest))

    def add_bytes(self, data: bytes, sha256: str) -> Path:
        """Add the input file `data`, whose hash was checked, to the cache. Returns the new path."""
        with self.scratch() as folder:
            (folder / "file").write_bytes(data)
            return self.add_file(folder / "file", sha256)

    def unpacked(self, digest: str, *, kind: FolderKind = "unpacked") -> Path | None:
        """Return the folder of a layer or root, or None. It is not pruned until this process ends.

        Raises InputError if another user owns the folder or its parent.
        """
        path = self._unpacked_path(digest, kind)
        self._checked_path(path.parent, make=False)
        for folder in (path.parent, path):
            self._require_own(folder)
        if not self._is_present(path):
            return None
        os.utime(path)
        return path

    def add_unpacked(
        self, folders: Mapping[str, Path], *, kind: FolderKind = "unpacked"
    ) -> dict[str, Path]:
        """Move folders of layers or roots from `scratch` into the cache.

        Returns the new paths by digest.
        """
        paths = {digest: self._unpacked_path(digest, kind) for digest in folders}
        with files.plain_errors(self.root):
            for folder in folders.values():
                (folder / SIZE).write_text(str(files.unshared_size(folder)), encoding="ascii")
                folder.chmod(0o700)
        os.sync()  # a power failure must not leave a name without the bytes of its files
        with files.plain_errors(self.root), files.lock_file(self._locks("entries"), shared=True):
            for digest, path in paths.items():
                self._lease_path(path)
                self._checked_path(path.parent).mkdir(mode=0o700, exist_ok=True)
                self._require_own(path.parent)
                try:
                    folders[digest].rename(path)
                except OSError as error:
                    if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                        raise  # otherwise another process was faster
        return paths

    def kernel_folder(self, digest: str, *, make: bool = True) -> Path:
        """Return the folder for kernels that the image with this manifest compiles at run time.

        With `make`, the folder is created, private to this user, and not pruned until this process
        ends. Raises InputError if another user owns the folder.
        """
        path = self.root / "kernels" / digest.removeprefix("sha256:")
        if make:
            with (
                files.plain_errors(self.root),
                files.lock_file(self._locks("entries"), shared=True),
            ):
                self._lease_path(path)
                self._checked_path(path).mkdir(mode=0o700, exist_ok=True)
                self._require_own(path)
                os.utime(path)
        return path

    def drop_file(self, sha256: str) -> None:
        """Remove an input file that is no longer needed, unless another process uses it."""
        path = self._checked_path(self._file(sha256), make=False)
        with self.exclusive_access(), self._known.relinking(path):  # a blob may be the same file
            if path.relative_to(self.root).as_posix() not in self.leased_paths(
                current_process=False
            ):
                path.unlink(missing_ok=True)

    def drop_damaged(self, path: Path, expected_stat: os.stat_result | None = None) -> None:
        """Remove a damaged file or blob, even if it is in use.

        With `expected_stat`, the file is kept if another process has replaced it.
        """
        with self.exclusive_access(), contextlib.suppress(FileNotFoundError):
            if expected_stat is None or os.path.samestat(expected_stat, path.lstat()):
                path.unlink()

    def exclusive_access(self) -> contextlib.AbstractContextManager[None]:
        """Return a lock that blocks lookups and additions by all processes."""
        return files.lock_file(self._locks("entries"))

    def _file(self, sha256: str) -> Path:
        if re.fullmatch(SHA256_PATTERN, sha256) is None:
            message = f"not a lower-case hexadecimal SHA-256: {sha256!r}"
            raise ValueError(message)
        return self.root / "files" / sha256[:2] / sha256

    def _blob(self, digest: str) -> Path:
        if re.fullmatch(DIGEST_PATTERN, digest) is None:
            message = f"not an OCI digest: {digest!r}"
            raise ValueError(message)
        return self.root / "blobs" / "sha256" / digest.removeprefix("sha256:")

    def _unpacked_path(self, digest: str, kind: FolderKind) -> Path:
        # Files belong to the user who unpacked them, and other users must not link them.
        return self.root / kind / str(os.geteuid()) / self._blob(digest).name

    def _add_entry(self, temporary: Path, path: Path, *, checked: bool = True) -> Path:
        with files.plain_errors(self.root):
            if temporary.stat().st_dev != self.root.stat().st_dev:
                with self.scratch() as folder:
                    near = Path(shutil.copyfile(temporary, folder / "copy"))
                    temporary.unlink()
                    return self._add_entry(near, path, checked=False)
            status = temporary.stat()
            with files.lock_file(self._locks("entries"), shared=True):
                self._lease_path(path)
                files.move_file(temporary, self._checked_path(path))
            if checked:
                self._known.record_hash(path, path.name, status)
        return path

    def _use_entry(self, path: Path) -> Path | None:
        if not self._is_present(path) and not self._copy_from_others(path):
            return None
        with files.plain_errors(self.root), contextlib.suppress(FileNotFoundError):
            expected_stat = path.lstat()
            if self._is_intact(path, expected_stat):
                # not set by another process in the meantime
                if time.time() - path.lstat().st_mtime > 60:
                    self._known.touch(path)
                return path
            self._remove_damaged(path, expected_stat)
        return None

    def _is_intact(self, path: Path, expected_stat: os.stat_result) -> bool:
        """Return whether the entry at `path` matches its hash and is writable only by this user."""
        if not stat.S_ISREG(expected_stat.st_mode):
            return False
        if is_private(expected_stat) or (self._modeless and expected_stat.st_uid == os.geteuid()):
            return self._known.matches(path, path.name)
        with open(path, "rb", opener=open_regular) as file:
            right = self._copy_file(file, path)
        if right:
            self._modeless = not is_private(path.lstat())
        return right

    def _copy_from_others(self, path: Path) -> bool:
        """Copy the entry `path` from another user's cache.

        Returns False if no user has the entry.
        """
        if self._shared is None:
            return False
        name = path.relative_to(self.root).as_posix()
        return any(
            self._copy_file(file, path)
            for file in sharing.open_files_of_others(self._shared, self.root, name)
        )

    def _copy_file(self, file: BinaryIO, path: Path) -> bool:
        with self.scratch() as folder:
            with (folder / "copy").open("xb") as target:
                right = copy_and_hash(file, target) == path.name
            if right:
                self._add_entry(folder / "copy", path)
        return right

    def _is_present(self, path: Path) -> bool:
        # The lease is written and the file looked up under one shared lock, which `prune` holds
        # exclusively.
        with files.plain_errors(self.root), files.lock_file(self._locks("entries"), shared=True):
            if not os.path.lexists(self._checked_path(path, make=False)):
                return False
            self._lease_path(path)
        return True

    def _remove_damaged(self, path: Path, expected_stat: os.stat_result) -> None:
        name = (self.fact(NAME, path.name) or b"").decode("utf-8", "replace")
        shown = f"{path} ({name})" if name else f"{path}"
        try:
            self.drop_damaged(path, expected_stat)
        except OSError as error:
            message = f"{shown} is damaged and cannot be removed: {error.strerror}"
            hint = "remove the file as its owner, or set IMGBUILD_CACHE to another folder"
            raise IntegrityError(message, hint=hint) from error
        self._reporter.warn(f"removed {shown}, which is damaged; it will be fetched or built again")

    def _require_own(self, folder: Path) -> None:
        """Remove `folder` if other users can write to it.

        Raises InputError if another user owns the folder.
        """
        if not files.is_own(folder, hint="remove it, or set IMGBUILD_CACHE to another folder"):
            self._reporter.warn(
                f"removed {folder}, which was writable by other users; it will be unpacked again"
            )
            with self.scratch() as scratch, files.plain_errors(self.root):
                folder.rename(scratch / "unpacked")  # atomic, even if the process is killed

    # -- facts

    def fact(self, kind: str, key: str) -> bytes | None:
        """Return the data stored by `put_fact`, or None if it is missing or damaged.

        Facts stored by other users are ignored, because they are not trusted. Missing facts are
        looked up in the facts installed with imgbuild.
        """
        stored = facts.read_fact(facts.fact_path(self.root, kind, key))
        return stored if stored is not None else installed_facts().fact(kind, key)

    def put_fact(self, kind: str, key: str, data: bytes) -> None:
        """Store small derived data. Existing data is replaced."""
        path = facts.fact_path(self.root, kind, key)
        with files.plain_errors(self.root):
            self._checked_path(path)
            facts.write_fact(path, data, self._process_folder())

    # -- temporary folders and locks

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """Yield a temporary folder on the cache's disk, which is removed even after a kill."""
        with files.plain_errors(self.root):
            folder = Path(tempfile.mkdtemp(dir=self._process_folder()))
        try:
            with files.name_full_disk(self.root):
                yield folder
        finally:
            files.remove_tree(folder)

    @contextlib.contextmanager
    def hold_lock(self, name: str) -> Iterator[None]:
        """Wait for the lock `name`, which all processes and threads share, and hold it.

        Not reentrant.
        """
        # readable names for users who inspect the folder
        shown = re.sub(r"[^A-Za-z0-9._-]", "_", name)[:LOCK_NAME]
        path = self._locks(f"user-{shown}-{sha256(name.encode())[:16]}")
        with files.plain_errors(self.root):
            descriptor = files.open_locked(path)
            if descriptor is None:
                self._reporter.info(f"waiting for another imgbuild process ({name})")
                descriptor = regular_file(path, os.O_RDWR)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def partial(self, sha256: str, *, stop: Callable[[], bool]) -> Iterator[Path | None]:
        """Yield the partial download of a file or blob, locked by this process.

        Waits while another process downloads the file. Afterwards, the complete file can be in the
        cache. Yields None if `stop` returns True. `add_file` and `add_blob` move the download into
        the cache.
        """
        with files.plain_errors(self.root):
            path = self._checked_path(self.root / "partial" / self._file(sha256).name)
            descriptor = files.open_locked(path)
            while descriptor is None and not stop():
                time.sleep(0.1)
                descriptor = files.open_locked(path)
            if descriptor is not None and not is_private(os.fstat(descriptor)):
                path.unlink()  # another user may have it open
                os.close(descriptor)
                descriptor = files.open_locked(path)
        if descriptor is None:
            yield None
            return
        try:
            yield path
        finally:
            os.close(descriptor)

    def _locks(self, name: str) -> Path:
        return self._checked_path(self.root / "locks" / name)

    def _checked_path(self, path: Path, *, make: bool = True) -> Path:
        """Check that this user owns the folders of `path`. With `make`, create missing folders."""
        with contextlib.suppress(FileNotFoundError):
            make_private(self.root, *path.relative_to(self.root).parts[:-1], make=make)
        return path

    def _write_mark(self, name: str, data: bytes) -> None:
        if not (self.root / name).exists():
            temporary = self.root / f".{name}.{secrets.token_hex(8)}"
            with temporary.open("xb") as file:
                file.write(data)
            temporary.replace(self.root / name)

    def _process_folder(self) -> Path:
        folder = self.root / "scratch" / self._process_file()[0]
        return self._checked_path(folder / "new").parent

    def _process_file(self) -> tuple[str, int]:
        with self._lock:
            if self._live is None:
                identity, descriptor = "", None
                while descriptor is None:
                    # Before it is locked, another process may remove it as a leftover.
                    identity = secrets.token_hex(8)
                    descriptor = files.open_locked(
                        self._checked_path(self.root / "live" / identity)
                    )
                    if descriptor is None:
                        (self.root / "live" / identity).unlink(missing_ok=True)
                self._live = (identity, descriptor)
                weakref.finalize(
                    self,
                    processes.remove_process_files,
                    self.root,
                    identity,
                    descriptor,
                    os.getpid(),
                )
                self.remove_leftovers()
            return self._live

    def _lease_path(self, path: Path) -> None:
        name = path.relative_to(self.root).as_posix()
        with self._lock:
            if name not in self._leased:
                os.write(self._process_file()[1], name.encode() + b"\n")
                self._leased.add(name)

    def release(self) -> None:
        """Allow `prune` to remove the entries that this process has used so far."""
        with self._lock:
            self._leased.clear()
            if self._live is not None:
                os.truncate(self._live[1], 0)

    def leased_paths(self, *, current_process: bool = True) -> set[str]:
        """Return the paths below the root that live processes use.

        If `current_process` is False, paths that only this process uses are omitted.
        """
        names = set(self._leased) if current_process else set()
        return names | processes.leased_paths(
            self.root, None if self._live is None else self._live[0]
        )

    def remove_leftovers(self) -> None:
        """Remove files of dead processes."""
        processes.remove_leftovers(self.root, None if self._live is None else self._live[0])
