"""Uploads blobs in one request or in chunks, or mounts them.

Only one chunk of a blob is in memory at a time. A blob is first sent in one PUT request. If the
connection drops, or the blob is too large for one request, the number of received bytes is queried.
The rest of this blob and all later blobs are then sent in chunks, because docker-registry discards
the bytes of a dropped request. After an inconsistent response, a new upload is started.
"""

# A separate module: a protocol.
from __future__ import annotations

import contextlib
import enum
import io
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import urlencode

import msgspec

from imgbuild.errors import FetchFailed, ImgbuildError, IntegrityError, WorkFailed
from imgbuild.http.client import RequestRefused
from imgbuild.http.credentials import url_origin
from imgbuild.http.headers import parse_integer
from imgbuild.http.request import Request
from imgbuild.registry import blobs, hosts
from imgbuild.registry.authorizer import RegistryRefused, pull_scope, push_scope
from imgbuild.registry.image_reference import Repository
from imgbuild.registry.transport import RegistryHttp
from imgbuild.system.threads import StoppedThread
from imgbuild.values import Digest

if TYPE_CHECKING:
    from imgbuild.http.session import Response

PIECE = 128 * 1024
CHUNK = 32 * 1024 * 1024  # after a dropped connection; limits the loss by the next one
COPY_TIMEOUT = 300.0  # seconds: some registries copy a complete blob before they respond
OCTETS = {"Content-Type": "application/octet-stream"}
_PROGRESS = 1 << 20


class UploadOutcome(enum.StrEnum):
    """Whether a blob was uploaded or already existed."""

    PRESENT = "present"
    UPLOADED = "uploaded"


class BlobSource(msgspec.Struct, frozen=True):
    """A blob to upload. Each call of `open` returns a new reader that starts at an offset."""

    digest: Digest
    size: int
    open: Callable[[int], BinaryIO]


class UploadBody:
    """A part of a source as a request body. Bytes are counted as they are sent."""

    def __init__(
        self, source: BlobSource, start: int, length: int, advance: Callable[[int], object]
    ) -> None:
        self._source = source
        self._start = start
        self._length = length
        self._advance = advance

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[bytes]:
        left = self._length
        try:
            with contextlib.closing(self._source.open(self._start)) as reader:
                while left:
                    piece = reader.read(min(PIECE, left))
                    if not piece:
                        source = self._source
                        message = f"{source.digest} has fewer than the expected {source.size} bytes"
                        raise IntegrityError(
                            message,
                            hint="the file changed during the upload; create the file again",
                        )
                    left -= len(piece)
                    self._advance(len(piece))
                    yield piece
        except OSError as error:  # otherwise it would be treated as a network error
            message = f"cannot read {self._source.digest}: {error.strerror or error}"
            raise WorkFailed(message) from error


def upload_blob(
    http: RegistryHttp,
    repository: Repository,
    source: BlobSource,
    *,
    advance: Callable[[int], object],
    chunk: int | None,
) -> UploadOutcome:
    """Upload `source`, unless `repository` has the blob.

    Raises FetchFailed if the registry does not accept the blob, and IntegrityError if the stored
    blob differs from `source`.
    """
    there = blobs.blob_size(http, repository, source.digest, push=True)
    if there is not None:
        _same_size(repository, source, there)
        advance(source.size)
        return UploadOutcome.PRESENT
    _BlobUpload(http, repository, source, advance, chunk).run()
    return UploadOutcome.UPLOADED


def mount_blob(
    http: RegistryHttp, repository: Repository, digest: Digest, size: int, other: Repository
) -> bool:
    """Mount a blob from the repository `other`. Returns False if the registry does not mount it.

    Raises IntegrityError if the stored blob has a different size.
    """
    if other.host != repository.host or other == repository:
        return False
    source = BlobSource(digest, size, lambda _: io.BytesIO())
    return _BlobUpload(http, repository, source, lambda _: None, None).mount(other)


class _BlobUpload:
    """An upload of a blob.

    The registry has received `_sent` bytes. `_counted` bytes were reported.
    """

    def __init__(
        self,
        http: RegistryHttp,
        repository: Repository,
        source: BlobSource,
        advance: Callable[[int], object],
        chunk: int | None,
    ) -> None:
        self._http = http
        self._repository = repository
        self._source = source
        self._advance = advance
        self._chunk = CHUNK if chunk is None and repository.host in http.fragile else chunk
        self._location: str | None = None
        self._sent = 0
        self._counted = 0
        self._resumed = False
        self._minimum = 0
        self._shown = f"upload of {source.digest} to {repository}"
        self._scopes: tuple[str, ...] = (push_scope(repository.name),)
        # The endpoint that accepts it, regardless of redirects.
        self._server = http.capable_endpoints(repository.host, hosts.PUSH)[0].address

    def run(self) -> None:
        try:
            self._send_with_retries()
        except (ImgbuildError, StoppedThread):
            self._cancel_upload()
            raise

    def _send_with_retries(self) -> None:
        from imgbuild.http.session import TransientError

        tries, furthest = 0, 0
        while True:
            wait = None
            try:
                if self._location is None:
                    self._begin_upload({})
                self._send_rest()
                self._check_digest()
                return
            except TransientError as transient:
                tries += transient.cost
                reason, wait = transient.reason, transient.wait
            except RegistryRefused as refused:
                tries += 1
                reason = self._retry_reason(refused)
            if self._sent >= furthest + _PROGRESS:
                tries, furthest = 0, self._sent
            self._http.client.give_up(self._shown, tries, reason, wait)
            self._http.reporter.detail(f"{self._shown}: {reason}; retrying")
            self._advance(0)  # raises if another thread has failed
            self._http.client.wait_before_retry(max(1, tries), wait)
            self._advance(0)
            if self._is_stored():
                return
            self._recover_upload()

    def mount(self, other: Repository) -> bool:
        self._scopes = (push_scope(self._repository.name), pull_scope(other.name))
        try:
            mounted = self._begin_upload({"mount": self._source.digest, "from": other.name})
        except RequestRefused as refused:
            self._http.reporter.detail(
                f"{refused.message}; uploading the layer instead of mounting it from {other}"
            )
            mounted = False
        self._scopes = (push_scope(self._repository.name),)
        if mounted and self._is_stored():
            return True
        self._cancel_upload()
        return False

    # -- start

    def _begin_upload(self, query: dict[str, str]) -> bool:
        """Start an upload. Returns whether the registry reports that the blob exists."""
        query_string = f"?{urlencode(query)}" if query else ""
        path = f"{self._repository.name}/blobs/uploads/{query_string}"
        request = self._request("POST", path, {"Content-Length": "0"})

        def _read_start(response: Response) -> bool:
            if response.status_code == 201:
                return True
            self._minimum = parse_integer(response.headers.get("OCI-Chunk-Min-Length", "")) or 0
            self._location = self._http.location_url(response, self._shown)
            return False

        self._set_count(0)
        self._sent, self._resumed = 0, False
        return self._http.send_request(self._repository.host, hosts.PUSH, request, _read_start)

    # -- upload

    def _send_rest(self) -> None:
        if self._chunk is None:
            self._finish_upload(0, self._source.size)
            return
        while self._sent < self._source.size:
            length = max(self._chunk or CHUNK, self._minimum)
            self._patch(min(length, self._source.size - self._sent))
        self._finish_upload(self._source.size, 0)

    def _patch(self, length: int) -> None:
        end = self._sent + length
        headers = {**OCTETS, "Content-Range": f"{self._sent}-{end - 1}"}
        request = self._part_request("PATCH", self._location or "", headers, self._sent, length)
        with self._http.client.send_once(request) as response:
            self._location = self._http.location_url(response, self._shown)
            received = _confirmed_size(response)
        if received is not None and not self._sent < received <= end:
            message = f"reports {received} received bytes after {end} bytes were sent"
            raise _ImpossibleResponse(message)
        self._sent = end if received is None else received
        self._set_count(self._sent)

    def _finish_upload(self, start: int, length: int) -> None:
        place = self._location or ""
        place += f"{'&' if '?' in place else '?'}{urlencode({'digest': self._source.digest})}"
        request = self._part_request("PUT", place, OCTETS, start, length)
        with self._http.client.send_once(request) as response:
            reported = response.headers.get("Docker-Content-Digest", "").strip()
        if reported.startswith("sha256:") and reported != self._source.digest:
            message = f"{self._shown}: the registry reports that it stored {reported}"
            raise IntegrityError(
                message, hint="no tag was set; contact the registry's administrator"
            )

    def _part_request(
        self, method: str, place: str, headers: dict[str, str], start: int, length: int
    ) -> Request:
        def _body() -> UploadBody | bytes:
            self._set_count(start)
            return UploadBody(self._source, start, length, self._count_bytes) if length else b""

        plain = self._request(method, place, {**headers, "Content-Length": str(length)})
        return msgspec.structs.replace(plain, body=_body, read_timeout=COPY_TIMEOUT)

    def _request(self, method: str, place: str, headers: dict[str, str]) -> Request:
        return Request(
            place, headers, method, shown=self._shown, scopes=self._scopes, server=self._server
        )

    # -- failures

    def _retry_reason(self, refused: RegistryRefused) -> str:
        """Return the reason to retry, or raise the error if a retry cannot help."""
        if isinstance(refused, _ImpossibleResponse):
            self._cancel_upload()
        elif refused.status == 413 and self._chunk is None:
            self._chunk = CHUNK  # one request is too large for the registry or a proxy
        elif "DIGEST_INVALID" in refused.codes:
            self._cancel_upload()
            if not self._resumed:
                message = f"{self._shown}: the registry received different bytes: {refused.reason}"
                hint = "the file does not match its digest; create the file again"
                raise IntegrityError(message, hint=hint)
            # otherwise the offset reported by the registry may be wrong: restart
        elif refused.status not in (404, 410, 416) or self._location is None:
            raise refused
        return refused.reason

    def _is_stored(self) -> bool:
        size = blobs.blob_size(self._http, self._repository, self._source.digest, push=True)
        if size is None:
            return False
        _same_size(self._repository, self._source, size)
        self._set_count(self._source.size)
        return True

    def _recover_upload(self) -> None:
        from imgbuild.http.session import TransientError

        self._chunk = self._chunk or CHUNK
        self._http.fragile.add(self._repository.host)
        if self._location is None:
            return
        request = self._request("GET", self._location, {})
        try:
            with self._http.client.send_once(request) as response:
                received = _confirmed_size(response)
                with contextlib.suppress(FetchFailed):  # the header may be missing later
                    self._location = self._http.location_url(response, self._shown)
        except (TransientError, RequestRefused):
            received = None
        if not received or received > self._source.size:
            self._cancel_upload()
            return
        self._sent, self._resumed = received, True
        self._set_count(received)

    def _cancel_upload(self) -> None:
        """Cancel the upload if its URL is on the server on which the upload was started."""
        from imgbuild.http.session import TransientError

        place, self._location = self._location, None
        if place is not None and url_origin(place) == url_origin(self._server):
            request = self._request("DELETE", place, {})
            with (
                contextlib.suppress(TransientError, FetchFailed),
                self._http.client.send_once(request),
            ):
                pass

    def _check_digest(self) -> None:
        if not self._is_stored():
            message = f"{self._shown}: the registry accepted the upload, but does not have the blob"
            raise IntegrityError(
                message, hint="no tag was set; contact the registry's administrator"
            )

    def _count_bytes(self, amount: int) -> None:
        self._counted += amount
        self._advance(amount)

    def _set_count(self, place: int) -> None:
        if place != self._counted:
            self._count_bytes(place - self._counted)


class _ImpossibleResponse(RegistryRefused):
    def __init__(self, message: str) -> None:
        super().__init__(message, status=416)
        self.reason = message


def _confirmed_size(response: Response) -> int | None:
    """Return the number of received bytes in the Range header, or None if it is missing.

    "0-0" is treated as 0 bytes, as in most registries. If a registry means one byte, the only
    effect is that the upload is restarted.
    """
    text = response.headers.get("Range", "").strip().removeprefix("bytes=")
    last = parse_integer(text.removeprefix("0-")) if text.startswith("0-") else None
    return last and last + 1


def _same_size(repository: Repository, source: BlobSource, actual: int) -> None:
    if actual != source.size:
        message = f"{repository} has {actual} bytes as {source.digest} (expected {source.size})"
        raise IntegrityError(
            message,
            hint="the storage of the registry is damaged; contact the registry's administrator",
        )
