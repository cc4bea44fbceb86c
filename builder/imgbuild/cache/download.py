"""Downloads files in parallel into the cache, and checks sizes and hashes.

Interrupted downloads are resumed, because the store keeps partial files by the hash of the complete
file. A file whose size or sha256 differs from the lock is never added.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

import msgspec

from imgbuild.cache.context import Context
from imgbuild.cache.store import NAME, Store
from imgbuild.cache.transfer import partial_bytes
from imgbuild.errors import FetchFailed, ImgbuildError, IntegrityError, WorkFailed
from imgbuild.http.client import IDENTITY_ENCODING, HttpClient, RequestRefused
from imgbuild.http.credentials import url_host
from imgbuild.http.headers import content_range, parse_integer
from imgbuild.http.request import Request
from imgbuild.lock.resolution import LockedFile
from imgbuild.system import files, threads
from imgbuild.system.amounts import format_count, size_text
from imgbuild.system.reporter import ProgressBar, Reporter
from imgbuild.system.threads import StopFlag, StoppedThread
from imgbuild.values import Bytes, Sha256, sha256

_PROGRESS = 1 << 20  # bytes after which a dropped connection counts as a new attempt
GONE_STATUSES = (404, 410)  # the file does not exist on the server, or no longer
KEPT_NOTE = "downloaded data is kept"


class FileRequest(msgspec.Struct, frozen=True):
    """A file to download and its URLs.

    `urls` is called only if the file is missing from the store. `hint` is the remedy if no URL
    serves the file. `shown` replaces the URLs in messages. With `layer`, the file is stored as a
    blob.
    """

    locked: LockedFile
    urls: Callable[[], Sequence[str]]
    hint: str = ""
    shown: str = ""
    layer: bool = False

    def stored(self, store: Store) -> Path | None:
        """Return the path of the file in `store`, or None if it is missing.

        Raises IntegrityError if the size differs from the lock.
        """
        locked = self.locked
        digest = f"sha256:{locked.sha256}"
        path = store.blob(digest) if self.layer else store.file(locked.sha256)
        if path is not None and (size := path.stat().st_size) != locked.size:
            message = (
                f"{locked.file}: expected {locked.size} bytes according to the lock, found {size}"
            )
            raise IntegrityError(message, hint="lock the target again, because the lock was edited")
        return path


def fetch_all(requests: Sequence[FileRequest], context: Context, *, title: str) -> dict[str, Path]:
    """Download the files that the store lacks, and return the paths of all files by sha256.

    Raises FetchFailed if no URL serves a file, IntegrityError if a URL serves a different file,
    WorkFailed if the disk is too small, and Interrupted on Ctrl-C. Partial downloads are kept.
    """
    have: dict[str, Path] = {}
    missing: dict[str, FileRequest] = {}
    for request in requests:
        path = request.stored(context.store)
        if path is not None:
            have[request.locked.sha256] = path
        else:
            missing.setdefault(request.locked.sha256, request)
    if not missing:
        return have
    sizes = {key: request.locked.size for key, request in missing.items()}
    check_space(sizes, context.store)
    # Largest first, so that the last one to finish is small.
    ordered = sorted(missing.values(), key=lambda request: -request.locked.size)
    with _bar(sizes, context, title) as bar:
        paths = threads.run_for_each(
            ordered,
            lambda request, stop: fetch_file(request, context, bar.advance, stop),
            retained=KEPT_NOTE,
        )
    keys = (request.locked.sha256 for request in ordered)
    return have | dict(zip(keys, paths, strict=True))


def fetch_file(
    request: FileRequest, context: Context, advance: Callable[[int], object], stop: StopFlag
) -> Path:
    """Download a file unless the store has it, and return its path.

    `advance` is called with the number of received bytes, which is negative if bytes must be
    downloaded again. If `stop` is set, the download ends early. Raises the same errors as
    `fetch_all`.
    """
    store, locked = context.store, request.locked
    with store.partial(locked.sha256, stop=stop) as partial:
        if partial is None:
            raise StoppedThread
        path = request.stored(store)
        if path is not None:  # another process has added it
            partial.unlink()
            advance(locked.size)
            return path
        with files.plain_errors(store.root), partial.open("r+b", buffering=0) as file:
            Download(request, file, context.http, advance, context.reporter, stop).run()
            store.put_fact(NAME, locked.sha256, locked.file.encode())
            if request.layer:
                return store.add_blob(partial, f"sha256:{locked.sha256}")
            return store.add_file(partial, locked.sha256)


def download_unlocked(url: str, name: str, context: Context) -> LockedFile:
    """Download the file at `url`, whose hash is unknown, into the store.

    `name` becomes the name of the locked file. Raises FetchFailed if the file cannot be fetched,
    and WorkFailed if the disk is too small.
    """
    store, http = context.store, context.http
    limit = None
    if urlsplit(url).scheme != "file":  # a server that ignores ranges sends the complete file
        limit = http.part_end(url, 1)[1]
        check_space({sha256(url.encode()): limit}, store)
    with (
        context.reporter.step(f"fetching {name}"),
        store.scratch() as folder,
        files.plain_errors(store.root),
    ):
        digest, size = http.save_file(url, folder / "file", limit)
        store.put_fact(NAME, digest, name.encode())
        store.add_file(folder / "file", digest)
    return LockedFile(file=name, size=size, sha256=digest)


@contextlib.contextmanager
def _bar(sizes: Mapping[str, int], context: Context, title: str) -> Iterator[ProgressBar]:
    if context.transfer is not None:
        with context.transfer.progress_bar(sizes) as bar:
            yield bar
        return
    size = sum(sizes.values())
    here = partial_bytes(context.store, sizes)
    left = f"{size_text(max(size - here, 0))} to download"
    already = f" ({size_text(here)} already downloaded)" if here else ""
    context.reporter.info(f"{title}: {format_count(len(sizes), 'file')}, {left}{already}")
    with context.reporter.progress(title, size) as bar:
        yield bar


def check_space(missing: Mapping[Sha256, Bytes], store: Store) -> None:
    """Raise WorkFailed if the store's disk is too small for the `missing` files."""
    rest = sum(missing.values()) - partial_bytes(store, missing)
    free = shutil.disk_usage(store.root).free
    if rest > free:
        message = (
            f"{store.root} has {size_text(free)} of free space, but downloads need "
            f"{size_text(rest)}"
        )
        raise WorkFailed(message, hint=files.NO_SPACE_HINT)


class Download:
    """Downloads a file whose first bytes may already be on disk."""

    def __init__(
        self,
        request: FileRequest,
        file: IO[bytes],
        http: HttpClient,
        advance: Callable[[int], object],
        reporter: Reporter,
        stop: StopFlag,
    ) -> None:
        self._request = request
        self._locked = request.locked
        self._file = file
        self._http = http
        self._advance = advance
        self._reporter = reporter
        self._stop = stop
        self._size = 0
        self._hash = hashlib.sha256()

    def run(self) -> None:
        """Complete the file from the first URL that serves it.

        Raises FetchFailed, RequestRefused if the last URL refused the request, or IntegrityError.
        """
        for chunk in iter(lambda: self._file.read(1 << 20), b""):
            self._count_bytes(chunk)
        if self._size > self._locked.size:  # longer than this file
            self._restart_file()
        failures: list[ImgbuildError] = []
        for url in self._request.urls():
            try:
                self._complete_file(Request(url, IDENTITY_ENCODING, shown=self._request.shown))
            except (FetchFailed, IntegrityError) as failure:
                self._reporter.detail(f"{self._locked.file}: {failure.message}")
                failures.append(failure)
            else:
                return
        raise self._failure(failures)

    def _failure(self, failures: Sequence[ImgbuildError]) -> ImgbuildError:
        name, hint = self._locked.file, self._request.hint
        if not failures:
            message = f"{name} is no longer available from any index"
            return FetchFailed(
                message, hint="lock the target again, or use a mirror that has the file"
            )
        statuses = [
            failure.status if isinstance(failure, RequestRefused) else None for failure in failures
        ]
        worst = next(
            (failure for failure in failures if isinstance(failure, IntegrityError)), failures[0]
        )
        reasons = "; ".join(failure.message for failure in failures)
        if hint and all(status in GONE_STATUSES for status in statuses):
            return FetchFailed(f"{name}: {reasons}", hint=hint)
        if len(failures) == 1 or isinstance(worst, IntegrityError):
            return worst
        message = f"could not download {name}: {reasons}"
        if statuses[-1] is not None:
            return RequestRefused(message, status=statuses[-1], hint=worst.hint)
        return FetchFailed(message, hint=worst.hint)

    def _count_bytes(self, chunk: bytes) -> None:
        self._hash.update(chunk)
        self._size += len(chunk)
        self._advance(len(chunk))

    def _restart_file(self) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._advance(-self._size)
        self._size = 0
        self._hash = hashlib.sha256()

    def _complete_file(self, request: Request) -> None:
        """Complete the file with `request`. Raises FetchFailed or IntegrityError on failure."""
        from imgbuild.http.session import TransientError

        tries, furthest, restarted = 0, self._size, False
        while True:
            offset = self._size
            try:
                if self._size < self._locked.size:
                    offset = self._request_missing(request)
                actual = self._hash.hexdigest()
                if actual == self._locked.sha256:
                    return
                self._restart_file()
                if offset == 0 or restarted:
                    expected = f"sha256 {self._locked.sha256}"
                    raise self._mismatch(request, expected, f"sha256 {actual}")
                restarted = True  # the earlier part may be wrong: retry once from the start
            except TransientError as transient:
                tries += transient.cost
                if self._size >= furthest + _PROGRESS:
                    tries, furthest = 0, self._size
                self._http.give_up(request.place, tries, transient.reason, transient.wait)
                self._reporter.detail(f"{self._locked.file}: {transient.reason}; retrying")
                self._http.wait_before_retry(max(1, tries), transient.wait, self._stop.wait)
                self._stop.check()

    def _request_missing(self, request: Request) -> int:
        """Request the missing bytes. Returns the offset at which the response was written."""
        more = {"Range": f"bytes={self._size}-"} if self._size else {}
        ranged = msgspec.structs.replace(request, headers={**request.headers, **more})
        try:
            with self._http.send_once(ranged) as response:
                start, total = content_range(response.headers)
                if self._size and (response.status_code != 206 or start != self._size):
                    self._restart_file()  # the server ignores ranges or sends another one
                    if response.status_code == 206:
                        return self._request_missing(request)
                offset, length = (
                    self._size,
                    parse_integer(response.headers.get("Content-Length", "")),
                )
                if total is None and length is not None:
                    total = offset + length
                self._check_total(request, total)
                self._receive_chunks(request, self._http.chunks(response))
        except RequestRefused as refused:
            if refused.status != 416 or not self._size:
                raise
            self._check_total(request, refused.total)
            self._restart_file()
            return self._request_missing(request)
        return offset

    def _receive_chunks(self, request: Request, chunks: Iterable[bytes]) -> None:
        from imgbuild.http.session import TransientError

        for chunk in chunks:
            self._stop.check()
            if self._size + len(chunk) > self._locked.size:
                self._restart_file()
                raise self._mismatch(request, f"{self._locked.size} bytes", "more")
            self._file.write(chunk)
            self._count_bytes(chunk)
        # without a Content-Length the end may be a dropped connection
        if self._size < self._locked.size:
            reason = "the connection was closed early"
            raise TransientError(reason)

    def _check_total(self, request: Request, total: int | None) -> None:
        if total is not None and total != self._locked.size:
            raise self._mismatch(request, f"{self._locked.size} bytes", f"{total} bytes")

    def _mismatch(self, request: Request, expected: str, actual: str) -> IntegrityError:
        message = (
            f"{self._locked.file} from {url_host(request.url)}: expected {expected}, found {actual}"
        )
        hint = "the server has another file under this name, or a proxy modified it"
        return IntegrityError(message, hint=hint)
