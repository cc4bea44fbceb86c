"""Requests to servers: pages, small files, parts of large ones, and bodies to send.

Addresses may contain `user:password@`. A request is repeated, with growing pauses, after 408, 425,
429, 5xx and broken connections, and after as long as `Retry-After` asks for. Redirects are followed
with the login of each server, never from https to http. No error and no log shows a password or the
query of an address.
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
from imgbuild.http.credentials import Credentials, Login, bare, host, origin, redact
from imgbuild.http.headers import content_range, number, retry_after
from imgbuild.http.request import Request
from imgbuild.system.boundary import NONSENSE, reading
from imgbuild.system.reporter import SILENT, Reporter

if TYPE_CHECKING:
    import ssl

    from imgbuild.http.session import Response, Session

T = TypeVar("T")
Octets = bytes  # inside Http, `bytes` is the method
CHUNK = 128 * 1024
# The body of the file on the server: a compressed one would have other bytes and another length.
PLAIN = {"Accept-Encoding": "identity"}
_RETRIED = (408, 425, 429, 500, 502, 503, 504)
DENIED = (401, 403)  # for want of a login, or of one that may do this
_REDIRECTS = (301, 302, 303, 307, 308)
_LONGEST_WAIT = 120.0
PAGE_LIMIT = 48 << 20  # bytes of a page, inflated
FILE_LIMIT = 256 << 20  # bytes of what is read into memory
LARGEST = 64 << 30  # bytes of a file that is only read through
_DECODED = 16 * 1024  # bytes inflated at once: a thousand times as many may come out


class TextPage(msgspec.Struct, frozen=True):
    """A page as text. `url` is where it came from after redirects, without a login."""

    url: str
    text: str
    content_type: str
    status: int


class Refused(FetchFailed):
    """The server answered with a status that trying again will not change."""

    def __init__(
        self, message: str, *, status: int, hint: str | None = None, total: int | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.total = total

    @property
    def denied(self) -> bool:
        """Whether the server requires a login, or one with more rights."""
        return self.status in DENIED


class Authorizer:
    """How `Http` sends a request: with which certificates and login, and what an answer means.

    Here, with the system's certificates and the login of the address. Safe for several threads.
    """

    def addressed(self, request: Request) -> Request:
        """`request` as it may go to its address, at first and where a redirect leads it."""
        return request

    def context(self, request: Request) -> ssl.SSLContext:
        """The certificates for `request`; InputError for an invalid file."""
        from imgbuild.http import session

        return session.shared_trust(os.environ)

    def answer(self, http: Http, request: Request, login: Login | None) -> Response:
        """The answer to `request`, of any status. `login` is that of its address."""
        return http.exchange(request, login)

    def refusal(self, http: Http, request: Request, response: Response) -> Exception:
        """The error for an answer that reports a failure."""
        return http.refusal(request, response)


class Http:
    """An HTTP client that retries, follows redirects and knows logins. Safe for several threads.

    `attempts` bounds the tries for each address, `first_wait` (seconds) the first pause between
    them, which doubles; `timeout` is for the connection and for each read, in seconds. `offline`
    allows `file:` addresses only.
    """

    def __init__(
        self,
        *,
        attempts: int = 6,
        first_wait: float = 0.5,
        timeout: tuple[float, float] = (20.0, 60.0),
        offline: bool = False,
        authorizer: Authorizer | None = None,
        reporter: Reporter = SILENT,
    ) -> None:
        self.attempts = attempts
        self.offline = offline
        self.credentials = Credentials(reporter)
        self._authorizer = authorizer or Authorizer()
        self._reporter = reporter
        self._first_wait = first_wait
        self._timeout = timeout
        self._local = threading.local()

    # -- what stages use

    def text(self, url: str, accept: str = "*/*") -> TextPage:
        """The page at `url`. FetchFailed (`Refused` with its status) for anything but success."""

        def _read(response: Response) -> TextPage:
            body = self.body(response, PAGE_LIMIT, decode=True)
            kind = response.headers.get("Content-Type", "")
            charset = re.search(r"charset=[\"']?([A-Za-z0-9._-]+)", kind)
            try:
                text = body.decode(charset[1] if charset else "utf-8", "replace")
            except LookupError:
                text = body.decode("utf-8", "replace")
            return TextPage(
                bare(response.url), text, kind.partition(";")[0].strip(), response.status_code
            )

        return self._retrying(url, {"Accept": accept}, _read)

    def bytes(self, url: str) -> Octets:
        """All bytes of the file at `url`, without an encoding."""
        return self._retrying(url, PLAIN, lambda response: self.body(response, FILE_LIMIT))

    def fingerprint(self, url: str) -> tuple[str, int]:
        """SHA-256 in hex and size of the file at `url`, which is not kept in memory."""

        def _read(response: Response) -> tuple[str, int]:
            hasher, size = hashlib.sha256(), 0
            for chunk in self._counted(response):
                hasher.update(chunk)
                size += len(chunk)
            return hasher.hexdigest(), size

        return self._retrying(url, PLAIN, _read)

    def save(self, url: str, path: Path) -> tuple[str, int]:
        """Write the file at `url` to `path`; its SHA-256 in hex and its size."""

        def _read(response: Response) -> tuple[str, int]:
            hasher, size = hashlib.sha256(), 0
            with path.open("wb") as file:
                for chunk in self._counted(response):
                    hasher.update(chunk)
                    size += file.write(chunk)
            return hasher.hexdigest(), size

        return self._retrying(url, PLAIN, _read)

    def body(self, response: Response, limit: int, *, decode: bool = False) -> Octets:
        """The body of an answer; FetchFailed if it is longer than `limit`."""
        data = bytearray()
        for chunk in self.chunks(response, decode=decode):
            data += chunk
            if len(data) > limit:
                message = f"{host(response.url)} sends more than {limit} bytes as a document"
                raise FetchFailed(message)
        return Octets(data)

    def part(self, url: str, start: int, length: int) -> Octets:
        """`length` bytes at `start`, also without ranges; FetchFailed if the file is shorter."""

        def _read(response: Response) -> bytes:
            first, _ = content_range(response.headers)
            skip = start - (first or 0)
            data = bytearray()
            for chunk in self.chunks(response):
                data += chunk[skip:] if skip < len(chunk) else b""
                skip = max(0, skip - len(chunk))
                if len(data) >= length:
                    break
            if len(data) < length:
                message = f"{redact(url)} ends before byte {start + length}"
                raise FetchFailed(message)
            return bytes(data[:length])

        if length == 0:
            return b""
        if not 0 < length <= FILE_LIMIT:
            limit = f"limit {FILE_LIMIT >> 20} MiB"
            message = f"{redact(url)}: refusing to read {length} bytes into memory ({limit})"
            raise FetchFailed(message)
        return self._retrying(url, {**PLAIN, "Range": f"bytes={start}-{start + length - 1}"}, _read)

    def part_end(self, url: str, length: int) -> tuple[Octets, int]:
        """The last `length` bytes (all, if there are fewer) and the size of the whole file."""

        def _read(response: Response) -> tuple[Octets, int]:
            first, total = content_range(response.headers)
            data, seen = bytearray(), first or 0
            for chunk in self._counted(response):
                seen += len(chunk)
                data += chunk
                del data[:-length]
            return Octets(data), total if total is not None else seen

        try:
            return self._retrying(url, {**PLAIN, "Range": f"bytes=-{length}"}, _read)
        except Refused as refused:
            if refused.status not in (400, 416, 501):
                raise
        # Some servers know ranges, but none that count from the end.
        total = self._retrying(url, PLAIN, _length, method="HEAD")
        return self.part(url, max(0, total - length), min(length, total)), total

    # -- what downloads use

    @contextlib.contextmanager
    def send(self, request: Request) -> Iterator[Response]:
        """One try: the successful answer, its body unread. Transient, or FetchFailed for good.

        The request's body is sent again wherever a redirect leads.
        """
        request = self._authorizer.addressed(request)
        login = self._login(request)
        first, has_asked = msgspec.structs.replace(request, url=bare(request.url)), False
        if self.offline and urlsplit(first.url).scheme != "file":
            message = f"{first.place} is not in the cache, and --offline is set"
            raise FetchFailed(message, hint="run once without --offline")
        here = first
        for _ in range(12):
            response = self._authorizer.answer(self, here, login)
            with contextlib.closing(response):
                if response.status_code in _REDIRECTS and "Location" in response.headers:
                    here, login = self._redirected(here, response.headers["Location"], login)
                    continue
                if response.status_code == 401 and not (has_asked or here.anonymous):
                    has_asked, login = True, self.credentials.ask(here.url)
                    if login is not None:
                        continue
                if not 200 <= response.status_code < 300:
                    raise self._authorizer.refusal(self, here, response)
                yield response
                return
        message = f"{first.place}: too many redirects"
        raise FetchFailed(message)

    def chunks(self, response: Response, *, decode: bool = False) -> Iterator[Octets]:
        """The body in pieces. Transient if the connection ends before the announced length."""
        from imgbuild.http import session

        pieces = response.raw.stream(_DECODED if decode else CHUNK, decode_content=decode)
        while True:
            try:
                chunk = next(pieces, None)
            except session.network_errors() as error:
                raise self._plain(error, redact(response.url)) from None
            if chunk is None:
                return
            yield chunk

    def _counted(self, response: Response) -> Iterator[Octets]:
        """The body in pieces; FetchFailed for one of no announced length that does not end."""
        announced = number(response.headers.get("Content-Length", ""))
        limit = FILE_LIMIT if announced is None else LARGEST
        seen = 0
        for chunk in self.chunks(response):
            seen += len(chunk)
            if seen > limit:
                message = f"{redact(response.url)} has more than {limit} bytes"
                raise FetchFailed(message)
            yield chunk

    def pause(
        self, tries: int, wait: float | None, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        """Wait before the next try: as long as the server asked, else twice as long each time."""
        if wait is not None and wait > 3:
            self._reporter.info(f"a server is busy and asks to wait for {wait:.0f} s")
        spread = random.uniform(0.75, 1.25)  # noqa: S311 - so that many do not come back at once
        growing = min(30.0, self._first_wait * 2.0 ** max(0, tries - 1)) * spread
        sleep(growing if wait is None else wait)

    # -- what authorizers use

    def exchange(self, request: Request, login: Login | None) -> Response:
        """The answer to `request`, of any status, which is sent as it is with `login`.

        Transient, or FetchFailed for good, if there is none.
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
            raise self._plain(error, request.place) from None

    def refusal(self, request: Request, response: Response) -> Exception:
        """Transient for a status that trying again may change, else `Refused`."""
        from imgbuild.http.session import Transient

        status, reason = response.status_code, self.credentials.scrub(response.reason or "")
        if status in _RETRIED:
            return Transient(f"{status} {reason}".strip(), wait=retry_after(response.headers))
        message = f"{request.place}: {status} {reason}".strip()
        hint = None
        if status in DENIED:
            where = host(request.url)
            hint = f"set a login for {where}: in netrc, keyring, or https://USER:PASSWORD@…"
        if status == 407:
            hint = "the proxy requires a login: HTTPS_PROXY=http://USER:PASSWORD@HOST:PORT"
        return Refused(message, status=status, hint=hint, total=content_range(response.headers)[1])

    # -- inside

    def _retrying(
        self,
        url: str,
        headers: Mapping[str, str],
        read: Callable[[Response], T],
        method: str = "GET",
    ) -> T:
        return self.retrying(Request(url, headers, method), read)

    def retrying(self, request: Request, read: Callable[[Response], T]) -> T:
        """What `read` makes of the answer to `request`, tried until it is whole."""
        from imgbuild.http.session import Transient

        tries = 0
        while True:
            try:
                with self.send(request) as response, reading(request.place, hint=NONSENSE):
                    return read(response)
            except Transient as transient:
                tries += transient.cost
                self.give_up(request.place, tries, transient.reason, transient.wait)
                self.pause(tries, transient.wait)

    def give_up(self, url: str, tries: int, reason: str, wait: float | None) -> None:
        """Raise FetchFailed if `tries` are used up, or the server asks to wait for too long."""
        message = self.credentials.scrub(f"{redact(url)}: {reason}")
        if wait is not None and wait > _LONGEST_WAIT:
            hint = f"the server asks to wait for {wait:.0f} s; try again then"
            raise FetchFailed(message, hint=hint)
        if tries >= self.attempts:
            raise FetchFailed(message, hint="check the network and the proxy, then run it again")

    def _plain(self, error: Exception, place: str) -> Exception:
        # `from None` where this is raised: the originals quote addresses with passwords.
        from imgbuild.http import session

        for secret in session.proxy_secrets():
            self.credentials.hide(secret)
        plain_error = session.plain(error, place)
        if isinstance(plain_error, session.Transient):
            plain_error.reason = self.credentials.scrub(plain_error.reason)
        return plain_error

    def _login(self, request: Request) -> Login | None:
        try:
            origin(request.url)
            return None if request.anonymous else self.credentials.find(request.url)
        except ValueError:  # brackets or a port that are none
            shown = request.url.rpartition("@")[2].partition("?")[0]
            message = f"{shown}: not an address that can be fetched"
            raise FetchFailed(message) from None

    def _session(self, request: Request) -> Session:
        """The session of this thread with the certificates for `request`."""
        from imgbuild.http import session

        context = self._authorizer.context(request)
        sessions: dict[ssl.SSLContext, Session]
        sessions = self._local.__dict__.setdefault("sessions", {})
        if context not in sessions:
            sessions[context] = session.session(context)
        return sessions[context]

    def _redirected(
        self, request: Request, location: str, login: Login | None
    ) -> tuple[Request, Login | None]:
        try:
            target = urljoin(request.url, location)
            origin(target)
        except ValueError:
            target = "://"
        following = self._authorizer.addressed(msgspec.structs.replace(request, url=target))
        target_login = self._login(following)
        place, shown = request.place, origin(target) if request.shown else redact(target)
        if urlsplit(target).scheme not in ("http", "https"):  # least of all a file of this machine
            message = f"{place} redirects to {shown}, which is not a web address"
            raise FetchFailed(message)
        if urlsplit(request.url).scheme == "https" and urlsplit(target).scheme != "https":
            message = f"{place} redirects to {shown}, which is not encrypted"
            raise FetchFailed(message)
        retained_login = login if origin(target) == origin(request.url) else None
        return msgspec.structs.replace(following, url=bare(target)), target_login or retained_login


def _length(response: Response) -> int:
    length = number(response.headers.get("Content-Length", ""))
    if length is None:
        message = f"{redact(response.url)}: the server does not send the size"
        raise FetchFailed(message)
    return length
