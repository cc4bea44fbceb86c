"""Stores hashes of files, so that a file is hashed again only if it has changed.

A record maps device, inode, size, mtime and ctime of a file to its hash. Programs cannot set the
ctime, and every change of content, links or mode updates it. The records are in a folder that only
the user can access: $XDG_STATE_HOME/imgbuild or ~/.local/state/imgbuild. Without such a folder,
files are hashed each time. Files that other users own or can write to are never recorded, because a
write through a memory mapping can leave the times unchanged. Small files are hashed each time,
because the use of a record would take longer. Corruption below the file system, such as a flipped
bit on the disk, does not update the ctime. Therefore, `imgbuild cache verify` hashes all files.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import stat
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from io import BufferedReader
from pathlib import Path

from imgbuild.errors import ImgbuildError
from imgbuild.system.boundary import open_regular
from imgbuild.system.files import xdg_folder
from imgbuild.system.folder import is_private
from imgbuild.values import Sha256

NAME = "known-hashes-1.sqlite"  # a new format gets a new number
LIMIT = 20_000  # records; the oldest are dropped
SMALL_FILE = 256 * 1024  # bytes; hashed in 0.2 ms, and a record takes 1 to 20 ms
TICK_NS = 20_000_000  # more than a kernel's step between two timestamps
READINGS = 5  # of a file that others use meanwhile
WAIT_SECONDS = 5.0  # for another process that writes records
_TABLE = "create table if not exists known (file text primary key, state text, sha256 text)"
_INSERT = "insert or replace into known values (?, ?, ?)"
_DROP_OLDEST = "delete from known where rowid <= (select max(rowid) from known) - ?"
_CORRUPT_CODES = (11, 26)  # SQLITE_CORRUPT, SQLITE_NOTADB


class KnownHashes:
    """The hashes recorded in `folder`, or in memory if `folder` is None.

    Threads and processes can share the records. If the folder or its database cannot be accessed,
    no error is raised, and files are hashed instead.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._memory: dict[str, tuple[str, Sha256]] = {}  # file → state, hash
        self._loaded = False
        self._lock = threading.Lock()

    def matches(self, path: Path, sha256: Sha256) -> bool:
        """Return whether the file at `path` has the hash `sha256`.

        The file is hashed if no record matches. Raises OSError if it cannot be opened, and
        IntegrityError if it is not a regular file.
        """
        with open(path, "rb", opener=open_regular) as file:
            return self.matches_file(file, sha256)

    def matches_file(self, file: BufferedReader, sha256: Sha256) -> bool:
        """Return whether an open file, at its beginning, has the hash `sha256`.

        If the times of the file change during the read, it is read again, because another process
        may have used it. Returns False if the times change each time.
        """
        for _ in range(READINGS):
            before = os.fstat(file.fileno())
            if (recorded := self._look_up_hash(before)) is not None:
                return recorded == sha256
            file.seek(0)
            started = time.time_ns()
            actual = hashlib.file_digest(file, "sha256").hexdigest()
            after = os.fstat(file.fileno())
            # A change within the clock tick in which reading began would not be visible.
            if _state(before) == _state(after) and started - before.st_ctime_ns > TICK_NS:
                self._record(after, actual)
            if _content(before) == _content(after):
                return actual == sha256
        return False

    def record_hash(self, path: Path, sha256: Sha256, seen: os.stat_result | None = None) -> None:
        """Record that the file at `path`, which no other process changes, has the hash `sha256`.

        If `seen` is set, the hash is recorded only if the file still has this status.
        """
        with contextlib.suppress(OSError):
            before = path.stat()
            if not _is_recorded(before):
                return
            if seen and (_file(seen), _content(seen)) != (_file(before), _content(before)):
                return
            age = time.time_ns() - before.st_ctime_ns
            if 0 <= age <= TICK_NS:
                time.sleep((TICK_NS - age) / 1e9)
            # A negative age: the clock of the file server is ahead.
            if age >= 0 and _state(before) == _state(path.stat()):
                self._record(before, sha256)

    @contextlib.contextmanager
    def relinking(self, file: Path | int) -> Iterator[None]:
        """Keep the record of a path or descriptor while the links to the file change in the block.

        The record is dropped if other users can change the file.
        """
        try:
            descriptor = (
                os.dup(file)
                if isinstance(file, int)
                else os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            )
        except OSError:
            yield
            return
        try:
            before = os.fstat(descriptor)
            sha256 = self._look_up_hash(before)
            yield
            after = os.fstat(descriptor)
            if sha256 is not None and _content(before) == _content(after) and after.st_nlink:
                self._record(after, sha256)
        finally:
            os.close(descriptor)

    def touch(self, path: Path) -> None:
        """Set the time of last use of the file at `path`, and keep its record."""
        before = path.stat()
        sha256 = self._look_up_hash(before)
        # Whole microseconds, rare in the kernel's clock, so that a write in between is visible.
        now = time.time_ns() // 1000 * 1000
        os.utime(path, ns=(now, now))
        after = path.stat()
        if sha256 is not None and (after.st_size, after.st_mtime_ns) == (before.st_size, now):
            self._record(after, sha256)

    def _look_up_hash(self, status: os.stat_result) -> Sha256 | None:
        if not _is_recorded(status):
            return None
        self._load_rows()
        if (recorded := self._hash_in_memory(status)) is None:
            # Another process may have recorded it since.
            query = "select file, state, sha256 from known where file = ?"
            self._keep_rows(self._run_transaction([(query, (_file(status),))]))
            recorded = self._hash_in_memory(status)
        return recorded

    def _load_rows(self) -> None:
        with self._lock:
            loaded, self._loaded = self._loaded, True
        if not loaded:
            self._keep_rows(self._run_transaction([("select file, state, sha256 from known", ())]))

    def _hash_in_memory(self, status: os.stat_result) -> Sha256 | None:
        with self._lock:
            state, sha256 = self._memory.get(_file(status), ("", ""))
        return sha256 if state == _state(status) else None

    def _keep_rows(self, rows: Iterable[tuple[str, ...]]) -> None:
        with self._lock:
            self._memory.update({file: (state, sha256) for file, state, sha256 in rows})

    def _record(self, status: os.stat_result, sha256: Sha256) -> None:
        if _is_recorded(status):
            values = (_file(status), _state(status), sha256)
            self._keep_rows([values])
            self._run_transaction(
                [(_TABLE, ()), (_INSERT, values), (_DROP_OLDEST, (LIMIT,))], make=True
            )

    def _run_transaction(
        self, statements: Sequence[tuple[str, tuple[object, ...]]], *, make: bool = False
    ) -> list[tuple[str, ...]]:
        """Run `statements` in one transaction.

        Returns the rows of the last statement, or an empty list on failure. With `make`, a missing
        database is created.
        """
        place = None if self._folder is None else self._folder / NAME
        if place is None or not _is_safe(place.parent, make=make):
            return []
        if not make and not os.path.lexists(place):
            return []
        rows: list[tuple[str, ...]] = []
        try:
            import sqlite3
        except ImportError:  # a Python that was built without it
            return []
        try:
            with contextlib.closing(
                sqlite3.connect(place, timeout=WAIT_SECONDS, isolation_level=None)
            ) as database:
                # Records may be lost in a power failure: files are hashed again then.
                database.execute("pragma synchronous = off")
                database.text_factory = functools.partial(str, encoding="utf-8", errors="replace")
                database.execute("begin immediate" if make else "begin")
                for statement, values in statements:
                    rows = database.execute(statement, values).fetchall()
                database.execute("commit")
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _CORRUPT_CODES:
                with contextlib.suppress(OSError):
                    place.unlink()
            return []
        return rows


def user_known_hashes() -> KnownHashes:
    """Return the records of the current user. Each folder has one shared object."""
    return _open_database(state_folder(), os.geteuid())


@functools.cache
def _open_database(folder: Path | None, _: int) -> KnownHashes:
    return KnownHashes(folder)


def state_folder() -> Path | None:
    """Return $XDG_STATE_HOME/imgbuild or ~/.local/state/imgbuild.

    Returns None if there is no home folder.
    """
    try:
        return xdg_folder("XDG_STATE_HOME", ".local/state") / "imgbuild"
    except ImgbuildError:
        return None


def _is_safe(folder: Path, *, make: bool) -> bool:
    """Return whether `folder` exists and no other user can enter it.

    With `make`, a missing folder is created.
    """
    try:
        if make and not folder.exists():
            above = next(each for each in folder.parents if each.exists())
            if os.geteuid() == 0 != above.stat().st_uid:
                return False  # sudo with the home of a user, who could not enter it later
            folder.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)
        status = folder.lstat()
    except OSError:
        return False
    exclusive = status.st_uid == os.geteuid() and not status.st_mode & 0o077
    return exclusive and stat.S_ISDIR(status.st_mode)


def _is_recorded(status: os.stat_result) -> bool:
    """Return whether the file is large enough for a record and no other user can change it."""
    return status.st_size > SMALL_FILE and is_private(status)


def _file(status: os.stat_result) -> str:
    return f"{status.st_dev}:{status.st_ino}"


def _content(status: os.stat_result) -> tuple[int, int]:
    """Return the fields that a change of the content, but not of links, changes."""
    return status.st_size, status.st_mtime_ns


def _state(status: os.stat_result) -> str:
    return f"{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}"
