"""Downloads files by size and sha256 into the store, with four threads.

A download that was interrupted continues from its last byte: the partial file is kept in the store
under the hash of the whole. A file with another size or sha256 than the lock's is never added, and
the error names the server.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import msgspec

from imgbuild.cache.context import Context
from imgbuild.cache.store import NAME, Store
from imgbuild.cache.transfer import begun
from imgbuild.errors import (
    FetchFailed,
    ImgbuildError,
    IntegrityError,
    Interrupted,
    Signal,
    WorkFailed,
)
from imgbuild.http.client import Http, Refused
from imgbuild.http.credentials import host
from imgbuild.http.headers import content_range, number
from imgbuild.lock.resolution import LockedFile
from imgbuild.system import files
from imgbuild.system.amounts import count, size_text
from imgbuild.system.reporter import ProgressBar

__all__ = ["FileRequest", "Http", "Refused", "fetch_all"]

THREADS = 4
_PROGRESS = 1 << 20  # bytes after which a broken connection counts as a new start

GONE = (404, 410)  # the server does not have it, or not any more


class FileRequest(msgspec.Struct, frozen=True):
    """A file to download, and where from. `urls` is called only if the store lacks it.

    `hint` is what to do if no address has it.
    """

    locked: LockedFile
    urls: Callable[[], Sequence[str]]
    hint: str = ""


class _Stopped(Signal):
    """Another thread failed or the user stopped the work: this one ends quietly."""


def fetch_all(requests: Sequence[FileRequest], context: Context, *, title: str) -> dict[str, Path]:
    """Download all `wants` into the store; returns the path of each by its sha256.

    FetchFailed if no address gives a file, IntegrityError if one gives another file, WorkFailed if
    the disk is too small, Interrupted on Ctrl-C; what arrived until then is kept.
    """
    have: dict[str, Path] = {}
    missing: dict[str, FileRequest] = {}
    for request in requests:
        path = _present(request.locked, context)
        if path is not None:
            have[request.locked.sha256] = path
        else:
            missing.setdefault(request.locked.sha256, request)
    if missing:
        sizes = {key: request.locked.size for key, request in missing.items()}
        check_space(missing, sum(sizes.values()), context.store)
        with _bar(sizes, context, title) as bar:
            have.update(_Pool(list(missing.values()), context, bar).run())
    return have


@contextlib.contextmanager
def _bar(sizes: Mapping[str, int], context: Context, title: str) -> Iterator[ProgressBar]:
    """The bar of these files alone, or of all downloads of the run."""
    if context.transfer is not None:
        with context.transfer.bar(sizes) as bar:
            yield bar
        return
    size = sum(sizes.values())
    here = begun(context.store, sizes)
    left = f"{size_text(max(size - here, 0))} to download"
    already = f" ({size_text(here)} already here)" if here else ""
    context.reporter.info(f"{title}: {count(len(sizes), 'file')}, {left}{already}")
    with context.reporter.progress(title, size) as bar:
        yield bar


def _present(locked: LockedFile, context: Context) -> Path | None:
    path = context.store.file(locked.sha256)
    if path is not None and (size := path.stat().st_size) != locked.size:
        message = f"{locked.file}: the lock says {locked.size} bytes, the file has {size}"
        raise IntegrityError(message, hint="the lock was edited by hand: make it again")
    return path


def check_space(missing: Iterable[str], size: int, store: Store) -> None:
    """WorkFailed if the store's disk is too small for `size` bytes of files with these hashes."""
    rest = size - begun(store, missing)
    free = shutil.disk_usage(store.root).free
    if rest > free:
        message = (
            f"{store.root} needs {size_text(rest)} for downloads and has {size_text(free)} free"
        )
        raise WorkFailed(message, hint=files.NO_SPACE_HINT)


class _Pool:
    """Daemon threads that empty one list: an executor would wait for slow reads at Ctrl-C."""

    def __init__(self, requests: list[FileRequest], context: Context, bar: ProgressBar) -> None:
        # Largest first, so that the last to finish is a small one; taken from the end.
        self._requests = sorted(
            requests, key=lambda request: (request.locked.size, request.locked.file)
        )
        self._context = context
        self._bar = bar
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._have: dict[str, Path] = {}
        self._failure: BaseException | None = None

    def run(self) -> dict[str, Path]:
        """Download all of it: sha256 → path; the first failure, or Interrupted, if not."""
        count = min(THREADS, len(self._requests))
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(count)]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.2)
        except KeyboardInterrupt:
            self._stop.set()
            for thread in threads:
                thread.join(1.0)
            message = "stopped; what was downloaded is kept"
            raise Interrupted(message, hint="run it again to go on from there") from None
        if self._failure is not None:
            raise self._failure
        return self._have

    def _work(self) -> None:
        while not self._stop.is_set():
            with self._lock:
                if not self._requests:
                    return
                request = self._requests.pop()
            try:
                download = _Download(request, self._context, self._bar, self._stop)
                path = download.run(request.urls)
                with self._lock:
                    self._have[request.locked.sha256] = path
            except _Stopped:
                return
            except BaseException as failure:  # noqa: BLE001 - the main thread raises it
                with self._lock:
                    self._failure = self._failure or failure
                self._stop.set()
                return


class _Download:
    """One file on its way."""

    def __init__(
        self, request: FileRequest, context: Context, bar: ProgressBar, stop: threading.Event
    ) -> None:
        self._locked = request.locked
        self._hint = request.hint
        self._store = context.store
        self._http = context.http
        self._reporter = context.reporter
        self._bar = bar
        self._stop = stop
        self._size = 0
        self._hash = hashlib.sha256()

    def run(self, urls: Callable[[], Sequence[str]]) -> Path:
        """Download the file from the first of `urls` that has it: its path in the store."""
        locked, store = self._locked, self._store
        while True:
            with store.partial(locked.sha256, stop=self._stop.is_set) as partial:
                if partial is not None:
                    with files.plain_errors(store.root), partial.open("r+b", buffering=0) as file:
                        self._read(file)
                        self._try_all(urls(), file)
                        store.put_fact(NAME, locked.sha256, locked.file.encode())
                        return store.add_file(partial, locked.sha256)
            path = store.file(locked.sha256)
            if path is not None:
                self._bar.advance(locked.size)
                return path
            self._check_stop()

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise _Stopped

    def _read(self, file: IO[bytes]) -> None:
        """Continue an earlier run's file; one that is too long is not a part of this file."""
        for chunk in iter(lambda: file.read(1 << 20), b""):
            self._count(chunk)
        if self._size > self._locked.size:
            self._restart(file)

    def _count(self, chunk: bytes) -> None:
        self._hash.update(chunk)
        self._size += len(chunk)
        self._bar.advance(len(chunk))

    def _restart(self, file: IO[bytes]) -> None:
        file.seek(0)
        file.truncate()
        self._bar.advance(-self._size)
        self._size = 0
        self._hash = hashlib.sha256()

    def _try_all(self, urls: Sequence[str], file: IO[bytes]) -> None:
        failures: list[ImgbuildError] = []
        for url in urls:
            try:
                self._try(url, file)
            except (FetchFailed, IntegrityError) as failure:
                self._reporter.detail(f"{self._locked.file}: {failure.message}")
                failures.append(failure)
            else:
                return
        if not failures:
            message = f"{self._locked.file}: no index still has it"
            raise FetchFailed(message, hint="make the lock again, or name a mirror that has it")
        worst = next((one for one in failures if isinstance(one, IntegrityError)), failures[0])
        if self._hint and all(isinstance(one, Refused) and one.status in GONE for one in failures):
            message = f"{self._locked.file}: " + "; ".join(one.message for one in failures)
            raise FetchFailed(message, hint=self._hint)
        if len(failures) == 1 or isinstance(worst, IntegrityError):
            raise worst
        message = f"{self._locked.file}: it could not be downloaded: " + "; ".join(
            f.message for f in failures
        )
        raise FetchFailed(message, hint=worst.hint)

    def _try(self, url: str, file: IO[bytes]) -> None:
        """Complete `file` from `url`; FetchFailed or IntegrityError if it cannot."""
        from imgbuild.http.session import Transient

        tries, furthest, restarted = 0, self._size, False
        while True:
            begun = self._size
            try:
                if self._size < self._locked.size:
                    begun = self._append(url, file)
                found = self._hash.hexdigest()
                if found == self._locked.sha256:
                    return
                self._restart(file)
                if begun == 0 or restarted:
                    raise self._mismatch(url, f"sha256 {self._locked.sha256}", f"sha256 {found}")
                restarted = True  # the older part may be what is wrong: once more, from the start
            except Transient as transient:
                tries += transient.cost
                if self._size >= furthest + _PROGRESS:
                    tries, furthest = 0, self._size
                self._http.give_up(url, tries, transient.reason, transient.wait)
                self._reporter.detail(f"{self._locked.file}: {transient.reason}; trying again")
                self._http.pause(max(1, tries), transient.wait, self._stop.wait)
                self._check_stop()

    def _append(self, url: str, file: IO[bytes]) -> int:
        """Request the missing bytes; returns the offset from which the answer was used."""
        # The bytes of the file on the server, without an encoding: these are hashed.
        headers = {"Accept-Encoding": "identity"}
        if self._size:
            headers["Range"] = f"bytes={self._size}-"
        try:
            with self._http.open(url, headers) as response:
                start, total = content_range(response.headers)
                if self._size and (response.status_code != 206 or start != self._size):
                    self._restart(file)  # the server ignores ranges, or gives another one
                    if response.status_code == 206:
                        return self._append(url, file)
                begun, length = self._size, number(response.headers.get("Content-Length", ""))
                if total is None and length is not None:
                    total = begun + length
                self._check_total(url, total)
                self._receive(url, self._http.chunks(response), file)
        except Refused as refused:
            if refused.status != 416 or not self._size:
                raise
            self._check_total(url, refused.total)
            self._restart(file)
            return self._append(url, file)
        return begun

    def _receive(self, url: str, chunks: Iterable[bytes], file: IO[bytes]) -> None:
        from imgbuild.http.session import Transient

        for chunk in chunks:
            self._check_stop()
            if self._size + len(chunk) > self._locked.size:
                self._restart(file)
                raise self._mismatch(url, f"{self._locked.size} bytes", "more")
            file.write(chunk)
            self._count(chunk)
        if self._size < self._locked.size:  # no length was announced: the end may be a broken line
            reason = "the connection ended early"
            raise Transient(reason)

    def _check_total(self, url: str, total: int | None) -> None:
        if total is not None and total != self._locked.size:
            raise self._mismatch(url, f"{self._locked.size} bytes", f"{total} bytes")

    def _mismatch(self, url: str, expected: str, found: str) -> IntegrityError:
        message = f"{self._locked.file} from {host(url)}: expected {expected}, found {found}"
        return IntegrityError(
            message, hint="the server's file is not the locked one, or a proxy changed it"
        )
