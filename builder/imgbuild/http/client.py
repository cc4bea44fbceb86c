"""Downloads pages, small files and parts of large files, and sends uploads.

URLs can contain `user:password@`. After status 408, 425, 429 or 5xx and after a dropped connection,
a request is retried with increasing delays, or after the time in `Retry-After`. Redirects are
followed with the credentials of each server, but never from https to http. Errors and logs contain
no passwords and no queries of URLs.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urljoin, urlsplit

import msgspec

from imgbuild.errors import FetchFailed
from imgbuild.http.credentials import (
    Credentials,
    LoginPair,
    redact_url,
    strip_login,
    url_host,
    url_origin,
)
from imgbuild.http.headers import content_range, parse_integer, parse_retry_after
from imgbuild.http.request import Request
from imgbuild.system.boundary import NONSENSE, convert_read_errors
from imgbuild.system.reporter import SILENT_REPORTER, Reporter

if TYPE_CHECKING:
    import ssl

    from imgbuild.http.session import Response, Session

T = TypeVar("T")
ByteString = bytes  # inside Http, `bytes` is the method
CHUNK = 128 * 1024
# The unencoded file: a compressed response would have other bytes and another length.
IDENTITY_ENCODING = {"Accept-Encoding": "identity"}
_RETRIED_STATUSES = (408, 425, 429, 500, 502, 503, 504)
DENIED_STATUSES = (401, 403)  # missing or insufficient credentials
_REDIRECTS = (301, 302, 303, 307, 308)
_LONGEST_WAIT = 120.0
PAGE_LIMIT = 48 << 20  # bytes of a page, decompressed
FILE_LIMIT = 256 << 20  # bytes of a file read into memory
LARGEST_BODY = 64 << 30  # bytes of a file that is read as a stream
_DECODED_CHUNK = 16 * 1024  # compressed bytes per step, which may expand a thousandfold


class TextPage(msgspec.Struct, frozen=True):
    """A page as text. `url` is the URL after redirects, without credentials."""

    url: str
    text: str
    content_type: str
    status: int


class RequestRefused(FetchFailed):
    """The server rejected the request, and a retry would also fail."""

    def __init__(
        self, message: str, *, status: int, hint: str | None = None, total: int | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.total = total

    @property
    def is_denied(self) -> bool:
        """Whether the server requires credentials or more permissions."""
        return self.status in DENIED_STATUSES


class Authorizer:
    """Provides certificates and credentials for the requests of an `HttpClient`.

    This class uses the system's certificates and the credentials in the URL. Thread-safe.
    """

    def add_allowed_headers(self, request: Request) -> Request:
        """Add the headers that may be sent to the URL of `request`. Repeated after a redirect."""
        return request

    def context(self, request: Request) -> ssl.SSLContext:
        """Return the TLS context for `request`.

        Raises InputError if a certificate file is invalid.
        """
        from imgbuild.http import session

        return session.cached_trust(os.environ)

    def send_authorized(
        self, http: HttpClient, request: Request, login: LoginPair | None
    ) -> Response:
        """Send `request`, with the credentials `login` of the URL.

        The response can have any status.
        """
        return http.send_request(request, login)

    def refusal_error(self, http: HttpClient, request: Request, response: Response) -> Exception:
        """Return the error to raise for a failed response."""
        return http.refusal_error(request, response)


class HttpClient:
    """An HTTP client with retries, redirects and credentials. Thread-safe.

    `attempts` is the maximum number of attempts for each URL. `first_wait` is the first delay
    between attempts in seconds, which is then doubled. `timeout` in seconds applies to the
    connection and to each read. With `offline`, only `file:` URLs are allowed.
    """

    def __init__(
        self,
        *,
        attempts: int = 6,
        first_wait: float = 0.5,
        timeout: tuple[float, float] = (20.0, 60.0),
        offline: bool = False,
        authorizer: Authorizer | None = None,
        reporter: Reporter = SILENT_REPORTER,
    ) -> None:
        self.attempts = attempts
        self.offline = offline
        self.credentials = Credentials(reporter)
        self._authorizer = authorizer or Authorizer()
        self._reporter = reporter
        self._first_wait = first_wait
        self._timeout = timeout
        self._local = threading.local()

    # -- requests of stages

    def text(self, url: str, accept: str = "*/*") -> TextPage:
        """Fetch the page at `url`. Raises FetchFailed, or `RequestRefused` with the status."""

        def _read_page(response: Response) -> TextPage:
            body = self.body(response, PAGE_LIMIT, decode=True)
            kind = response.headers.get("Content-Type", "")
            charset = re.search(r"charset=[\"']?([A-Za-z0-9._-]+)", kind)
            try:
                text = body.decode(charset[1] if charset else "utf-8", "replace")
            except LookupError:
                text = body.decode("utf-8", "replace")
            return TextPage(
                strip_login(response.url),
                text,
                kind.partition(";")[0].strip(),
                response.status_code,
            )

        return self._retry_get(url, {"Accept": accept}, _read_page)

    def fetch_bytes(self, url: str) -> ByteString:
        """Fetch the file at `url`. No content encoding is accepted."""
        return self._retry_get(
            url, IDENTITY_ENCODING, lambda response: self.body(response, FILE_LIMIT)
        )

    def hash_remote_file(self, url: str) -> tuple[str, int]:
        """Compute the SHA-256 (in hex) and the size of the file at `url`."""

        def _hash_body(response: Response) -> tuple[str, int]:
            hasher, size = hashlib.sha256(), 0
            for chunk in self._count_body(response):
                hasher.update(chunk)
                size += len(chunk)
            return hasher.hexdigest(), size

        return self._retry_get(url, IDENTITY_ENCODING, _hash_body)

    def save_file(self, url: str, path: Path, limit: int | None) -> tuple[str, int]:
        """Download the file at `url` to `path`. Returns the SHA-256 (in hex) and the size.

        Raises FetchFailed if the file has more than `limit` bytes.
        """

        def _write_body(response: Response) -> tuple[str, int]:
            hasher, size = hashlib.sha256(), 0
            with path.open("wb") as file:
                for chunk in self._count_body(response):
                    hasher.update(chunk)
                    size += file.write(chunk)
                    if limit is not None and size > limit:
                        message = f"{redact_url(url)}: the server sent more than {limit} bytes"
                        raise FetchFailed(
                            message, hint="the file has changed; run the command again"
                        )
            return hasher.hexdigest(), size

        return self._retry_get(url, IDENTITY_ENCODING, _write_body)

    def body(self, response: Response, limit: int, *, decode: bool = False) -> ByteString:
        """Read the body of a response. Raises FetchFailed if it is longer than `limit` bytes."""
        data = bytearray()
        for chunk in self.chunks(response, decode=decode):
            data += chunk
            if len(data) > limit:
                message = f"{url_host(response.url)} sent a document of more than {limit} bytes"
                raise FetchFailed(message)
        return ByteString(data)

    def fetch_part(self, url: str, start: int, length: int) -> ByteString:
        """Read `length` bytes from offset `start`, even if the server does not support ranges.

        Raises FetchFailed if the file is shorter.
        """

        def _read_part(response: Response) -> bytes:
            first, _ = content_range(response.headers)
            skip = start - (first or 0)
            data = bytearray()
            for chunk in self.chunks(response):
                data += chunk[skip:] if skip < len(chunk) else b""
                skip = max(0, skip - len(chunk))
                if len(data) >= length:
                    break
            if len(data) < length:
                message = f"{redact_url(url)} ends before byte {start + length}"
                raise FetchFailed(message)
            return bytes(data[:length])

        if length == 0:
            return b""
        if not 0 < length <= FILE_LIMIT:
            limit = f"limit {FILE_LIMIT >> 20} MiB"
            message = f"{redact_url(url)}: refusing to read {length} bytes into memory ({limit})"
            raise FetchFailed(message)
        return self._retry_get(
            url, {**IDENTITY_ENCODING, "Range": f"bytes={start}-{start + length - 1}"}, _read_part
        )

    def part_end(self, url: str, length: int) -> tuple[ByteString, int]:
        """Read the last `length` bytes, or the whole file if it is shorter.

        Returns the bytes and the size of the file.
        """

        def _read_end(response: Response) -> tuple[ByteString, int]:
            first, total = content_range(response.headers)
            data, seen = bytearray(), first or 0
            for chunk in self._count_body(response):
                seen += len(chunk)
                data += chunk
                del data[:-length]
            return ByteString(data), total if total is not None else seen

        try:
            return self._retry_get(
                url, {**IDENTITY_ENCODING, "Range": f"bytes=-{length}"}, _read_end
            )
        except RequestRefused as refused:
            if refused.status not in (400, 416, 501):
                raise
        # Some servers support ranges, but not suffix ranges.
        total = self._retry_get(url, IDENTITY_ENCODING, _length, method="HEAD")
        return self.fetch_part(url, max(0, total - length), min(length, total)), total

    # -- downloads

    @contextlib.contextmanager
    def send_once(self, request: Request) -> Iterator[Response]:
        """Send the request once, and yield a successful response with an unread body.

        Raises TransientError or FetchFailed. After a redirect, the body of the request is sent
        again.
        """
        request = self._authorizer.add_allowed_headers(request)
        login = self._login(request)
        first, has_asked = msgspec.structs.replace(request, url=strip_login(request.url)), False
        if self.offline and urlsplit(first.url).scheme != "file":
            message = f"{first.place} is not in the cache, and --offline is set"
            raise FetchFailed(message, hint="run once without --offline")
        here = first
        for _ in range(12):
            response = self._authorizer.send_authorized(self, here, login)
            with contextlib.closing(response):
                if response.status_code in _REDIRECTS and "Location" in response.headers:
                    here, login = self._redirect_request(here, response.headers["Location"], login)
                    continue
                if response.status_code == 401 and not (has_asked or here.anonymous):
                    has_asked, login = True, self.credentials.query_keyring(here.url)
                    if login is not None:
                        continue
                if not 200 <= response.status_code < 300:
                    raise self._authorizer.refusal_error(self, here, response)
                yield response
                return
        message = f"{first.place}: too many redirects"
        raise FetchFailed(message)

    def chunks(self, response: Response, *, decode: bool = False) -> Iterator[ByteString]:
        """Yield the response body in chunks.

        Raises TransientError if the connection ends before the announced length.
        """
        from imgbuild.http import session

        pieces = response.raw.stream(_DECODED_CHUNK if decode else CHUNK, decode_content=decode)
        while True:
            try:
                chunk = next(pieces, None)
            except session.network_errors() as error:
                raise self._convert_error(error, redact_url(response.url)) from None
            if chunk is None:
                return
            yield chunk

    def _count_body(self, response: Response) -> Iterator[ByteString]:
        """Yield the response body in chunks.

        Raises FetchFailed if it exceeds the limit and no length was announced.
        """
        announced = parse_integer(response.headers.get("Content-Length", ""))
        limit = FILE_LIMIT if announced is None else LARGEST_BODY
        seen = 0
        for chunk in self.chunks(response):
            seen += len(chunk)
            if seen > limit:
                message = f"{redact_url(response.url)} has more than {limit} bytes"
                raise FetchFailed(message)
            yield chunk

    def wait_before_retry(
        self, tries: int, wait: float | None, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        """Wait as long as the server requests, or twice as long as before the previous attempt."""
        if wait is not None and wait > 3:
            self._reporter.info(f"a server is busy and requests a delay of {wait:.0f} s")
        spread = random.uniform(0.75, 1.25)  # noqa: S311 - so that many do not come back at once
        growing = min(30.0, self._first_wait * 2.0 ** max(0, tries - 1)) * spread
        sleep(growing if wait is None else wait)

    # -- for authorizers

    def send_request(self, request: Request, login: LoginPair | None) -> Response:
        """Send `request` unchanged with `login`. The response can have any status.

        If there is no response, TransientError is raised, or FetchFailed if a retry cannot help.
        """
        from imgbuild.http import session

        sent = dict(request.headers)
        if login is not None:
            token = base64.b64encode(":".join(login).encode()).decode()
            sent["Authorization"] = f"Basic {token}"
        try:
            return self._session(request).request(
                request.method,
                request.url,
                headers=sent,
                data=request.body() if request.body is not None else None,
                stream=True,
                timeout=(self._timeout[0], request.read_timeout or self._timeout[1]),
                allow_redirects=False,
            )
        except session.network_errors() as error:
            raise self._convert_error(error, request.place) from None

    def refusal_error(self, request: Request, response: Response) -> Exception:
        """Return the error for a failed response.

        It is a TransientError if a retry can help, and otherwise a RequestRefused.
        """
        from imgbuild.http.session import TransientError

        status, reason = response.status_code, self.credentials.scrub_text(response.reason or "")
        if status in _RETRIED_STATUSES:
            return TransientError(
                f"{status} {reason}".strip(), wait=parse_retry_after(response.headers)
            )
        message = f"{request.place}: {status} {reason}".strip()
        hint = None
        if status in DENIED_STATUSES:
            where = url_host(request.url)
            hint = (
                f"set credentials for {where} in netrc, in keyring, or in the URL as"
                " https://USER:PASSWORD@…"
            )
        if status == 407:
            hint = "set credentials for the proxy: HTTPS_PROXY=http://USER:PASSWORD@HOST:PORT"
        return RequestRefused(
            message, status=status, hint=hint, total=content_range(response.headers)[1]
        )

    # -- internals

    def _retry_get(
        self,
        url: str,
        headers: Mapping[str, str],
        read: Callable[[Response], T],
        method: str = "GET",
    ) -> T:
        return self.retry_request(Request(url, headers, method), read)

    def retry_request(self, request: Request, read: Callable[[Response], T]) -> T:
        """Send `request` until `read` can process the response, and return the result of `read`."""
        from imgbuild.http.session import TransientError

        tries = 0
        while True:
            try:
                with (
                    self.send_once(request) as response,
                    convert_read_errors(request.place, hint=NONSENSE),
                ):
                    return read(response)
            except TransientError as transient:
                tries += transient.cost
                self.give_up(request.place, tries, transient.reason, transient.wait)
                self.wait_before_retry(tries, transient.wait)

    def give_up(self, url: str, tries: int, reason: str, wait: float | None) -> None:
        """Raise FetchFailed if no attempts are left, or if the requested delay is too long."""
        message = self.credentials.scrub_text(f"{redact_url(url)}: {reason}")
        if wait is not None and wait > _LONGEST_WAIT:
            hint = f"the server requests a delay of {wait:.0f} s; run the command again later"
            raise FetchFailed(message, hint=hint)
        if tries >= self.attempts:
            raise FetchFailed(
                message, hint="check the network and the proxy, and run the command again"
            )

    def _convert_error(self, error: Exception, place: str) -> Exception:
        # `from None` where this is raised: the original errors contain URLs with passwords.
        from imgbuild.http import session

        for secret in session.proxy_secrets():
            self.credentials.hide_secret(secret)
        plain_error = session.convert_error(error, place)
        if isinstance(plain_error, session.TransientError):
            plain_error.reason = self.credentials.scrub_text(plain_error.reason)
        return plain_error

    def _login(self, request: Request) -> LoginPair | None:
        try:
            url_origin(request.url)
            return None if request.anonymous else self.credentials.find_login(request.url)
        except ValueError:  # invalid brackets or port
            shown = request.url.rpartition("@")[2].partition("?")[0]
            message = f"{shown}: not a supported URL"
            raise FetchFailed(message) from None

    def _session(self, request: Request) -> Session:
        from imgbuild.http import session

        context = self._authorizer.context(request)
        sessions: dict[ssl.SSLContext, Session]
        sessions = self._local.__dict__.setdefault("sessions", {})
        if context not in sessions:
            sessions[context] = session.create_session(context)
        return sessions[context]

    def _redirect_request(
        self, request: Request, location: str, login: LoginPair | None
    ) -> tuple[Request, LoginPair | None]:
        try:
            target = urljoin(request.url, location)
            url_origin(target)
        except ValueError:
            target = "://"
        following = self._authorizer.add_allowed_headers(
            msgspec.structs.replace(request, url=target)
        )
        target_login = self._login(following)
        place, shown = request.place, url_origin(target) if request.shown else redact_url(target)
        if urlsplit(target).scheme not in ("http", "https"):  # in particular a file of this machine
            message = f"{place} redirects to {shown}, which is not an HTTP URL"
            raise FetchFailed(message)
        if urlsplit(request.url).scheme == "https" and urlsplit(target).scheme != "https":
            message = f"{place} redirects to {shown}, which is not encrypted"
            raise FetchFailed(message)
        retained_login = login if url_origin(target) == url_origin(request.url) else None
        return msgspec.structs.replace(
            following, url=strip_login(target)
        ), target_login or retained_login


def _length(response: Response) -> int:
    length = parse_integer(response.headers.get("Content-Length", ""))
    if length is None:
        message = f"{redact_url(response.url)}: the server did not send the size of the file"
        raise FetchFailed(message)
    return length
