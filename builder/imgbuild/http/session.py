"""Creates HTTP sessions with proxies and TLS certificates, and handles slow servers.

This module is imported only for downloads, because importing the requests library is slow.
Connections to servers that send too slowly are closed, because one byte per minute would block a
command forever.
"""

from __future__ import annotations

import functools
import http.client
import http.cookiejar
import io
import logging
import os
import ssl
import threading
import time
import urllib.request
import warnings
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import requests
import requests.adapters
import urllib3.connection
import urllib3.connectionpool
import urllib3.exceptions as low

from imgbuild import __version__
from imgbuild.errors import ControlSignal, FetchFailed, InputError
from imgbuild.http.file_urls import FolderAdapter

if TYPE_CHECKING:
    import socket

    from _typeshed import WriteableBuffer

RATE = 1024  # bytes per second
WINDOW = 60.0  # seconds of waiting in which the rate is measured
# limit of waiting for one response in seconds; a download resumes at its last byte
DEADLINE = 6 * 3600.0

Response = requests.Response
Session = requests.Session

# Its debug log contains complete URLs, including signed queries.
logging.getLogger("urllib3").setLevel(logging.INFO)
# Users who enable this get a warning from imgbuild.registry.hosts instead.
warnings.simplefilter("ignore", low.InsecureRequestWarning)

_LOCK = threading.Lock()  # prevents threads from reading the same bundle at the same time
BUNDLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR")

# Certificate locations of distributions, for a Python whose OpenSSL was built for another
# distribution.
_SYSTEM = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


class TransientError(ControlSignal):
    """A failure that a retry can resolve.

    `wait` is the delay requested by the server, in seconds.
    """

    def __init__(self, reason: str, *, wait: float | None = None, cost: int = 1) -> None:
        super().__init__(reason)
        self.reason = reason
        self.wait = wait
        self.cost = cost


def create_trust(environ: Mapping[str, str]) -> ssl.SSLContext:
    """Create a TLS context with the certificate bundles in `environ`, or else the system's bundle.

    Raises InputError if a bundle is unreadable.
    """
    named = [(name, environ[name]) for name in BUNDLES if environ.get(name)]
    if not named:
        context = ssl.create_default_context()
        paths = ssl.get_default_verify_paths()
        if not context.get_ca_certs() and not (
            paths.capath and any(Path(paths.capath).glob("*.0"))
        ):
            present = [path for path in _SYSTEM if Path(path).exists()]
            context.load_verify_locations(
                cafile=(present or [requests.utils.DEFAULT_CA_BUNDLE_PATH])[0]
            )
        return context
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    names: dict[str, str] = {}  # path → its first variable: to read a bundle takes 20 ms
    for name, value in named:
        for path in value.split(os.pathsep) if name == "SSL_CERT_DIR" else [value]:
            names.setdefault(path, name)
    for path, name in names.items():
        _load_bundle(context, name, path)
    return context


def cached_trust(environ: Mapping[str, str]) -> ssl.SSLContext:
    """Return the shared result of `create_trust`, which takes 0.1 s for the system's bundle."""
    with _LOCK:
        return _create_shared_trust(tuple((name, environ.get(name, "")) for name in BUNDLES))


@functools.lru_cache(maxsize=4)
def _create_shared_trust(named: tuple[tuple[str, str], ...]) -> ssl.SSLContext:
    return create_trust(dict(named))


def _load_bundle(context: ssl.SSLContext, name: str, path: str) -> None:
    try:
        if Path(path).is_dir():
            context.load_verify_locations(capath=path)
        else:
            context.load_verify_locations(cafile=path)
    except OSError as error:  # includes ssl.SSLError: no certificate in the file
        message = f"cannot use the certificates of {name}, {path}: {error.strerror or error}"
        raise InputError(message, hint=f"correct {name} or unset it") from error


class _TlsAdapter(requests.adapters.HTTPAdapter):
    """Uses the TLS context for servers and proxies instead of the bundle of certifi."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        super().__init__(pool_connections=16, pool_maxsize=4)

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, ssl_context=self._context, **options)
        self.poolmanager.pool_classes_by_scheme = POOLS

    def proxy_manager_for(self, proxy: str, **options: Any) -> Any:
        if not proxy.lower().startswith("socks"):
            options["proxy_ssl_context"] = self._context
        manager = super().proxy_manager_for(proxy, ssl_context=self._context, **options)
        if not proxy.lower().startswith("socks"):  # these have separate connection pools
            manager.pool_classes_by_scheme = POOLS
        return manager

    def cert_verify(self, conn: Any, url: Any, verify: Any, cert: Any) -> None:
        """Do nothing, because the TLS context verifies certificates."""

    def build_connection_pool_key_attributes(
        self, request: requests.PreparedRequest, verify: Any, cert: Any = None
    ) -> Any:
        parts = urlsplit(request.url or "")
        place = {"scheme": parts.scheme, "host": parts.hostname, "port": parts.port}
        return place, ({"ssl_context": self._context} if parts.scheme == "https" else {})


class _PlainSession(requests.Session):
    """A session without redirects, because the requests library would read their bodies."""

    def get_redirect_target(self, _: requests.Response) -> None:
        """Return None, because `HttpClient` follows redirects."""


def create_session(context: ssl.SSLContext) -> requests.Session:
    """Create a session for one thread, with the proxies of the environment and no credentials.

    Cookies are not stored, because a session cookie is equivalent to credentials.
    """
    client_session = _PlainSession()
    client_session.cookies.set_policy(http.cookiejar.DefaultCookiePolicy(allowed_domains=()))
    client_session.headers["User-Agent"] = f"imgbuild/{__version__}"
    client_session.auth = lambda request: request  # prevents requests from reading netrc
    client_session.mount("https://", _TlsAdapter(context))
    client_session.mount("http://", _TlsAdapter(context))
    client_session.mount("file://", FolderAdapter())
    return client_session


def proxy_secrets() -> list[str]:
    """Return the passwords in proxy URLs of the environment, which errors can contain."""
    passwords = [urlsplit(address).password for address in urllib.request.getproxies().values()]
    return [form for password in passwords if password for form in (password, unquote(password))]


def convert_error(error: Exception, place: str) -> Exception:
    """Convert `error` to TransientError, or to FetchFailed if a retry cannot help."""
    chain = _error_chain(error)
    texts = [str(part) for part in chain]
    if any(isinstance(part, ssl.SSLCertVerificationError) for part in chain):
        reason = next(
            p.verify_message for p in chain if isinstance(p, ssl.SSLCertVerificationError)
        )
        hint = "set SSL_CERT_FILE to your organization's certificates"
        return FetchFailed(f"{place}: the certificate is not trusted: {reason}", hint=hint)
    if any("Tunnel connection failed: 407" in text for text in texts):
        hint = "HTTPS_PROXY=http://USER:PASSWORD@HOST:PORT"
        return FetchFailed(f"{place}: the proxy requires a username and password", hint=hint)
    wrong = (requests.exceptions.InvalidURL, requests.exceptions.MissingSchema)
    if isinstance(error, (*wrong, requests.exceptions.InvalidSchema, low.LocationParseError)):
        return FetchFailed(f"{place}: not a supported URL")
    if any(isinstance(part, low.ProxyError) for part in chain):
        return TransientError("cannot connect to the proxy: " + _innermost_message(chain), cost=2)
    if any(isinstance(part, (low.NewConnectionError, low.ConnectTimeoutError)) for part in chain):
        return TransientError("no connection: " + _innermost_message(chain), cost=2)
    if any(isinstance(part, (TimeoutError, low.ReadTimeoutError)) for part in chain):
        return TransientError("timed out")
    if any(isinstance(part, low.IncompleteRead) for part in chain):
        return TransientError("the connection was closed early")
    return TransientError("the connection failed: " + _innermost_message(chain))


def network_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions of the requests library and of reads from connections."""
    # Python's http.client raises ValueError for some chunks with an invalid size.
    return (requests.RequestException, low.HTTPError, HTTPException, OSError, ValueError)


def _error_chain(error: BaseException) -> list[BaseException]:
    errors: list[BaseException] = []
    waiting: list[Any] = [error]
    while waiting:
        part = waiting.pop(0)
        if isinstance(part, BaseException) and part not in errors:
            errors.append(part)
            waiting += [getattr(part, "reason", None), part.__cause__, part.__context__, *part.args]
    return errors


def _innermost_message(chain: list[BaseException]) -> str:
    for part in reversed(chain):
        if isinstance(part, OSError) and part.strerror:
            return part.strerror
    return type(chain[-1]).__name__


class _WatchedStream(io.RawIOBase):
    """The data that a server sends on a connection.

    Raises TimeoutError if the rate is too low. Only the time of waiting for the server after the
    first byte is counted.
    """

    def __init__(self, source: io.RawIOBase) -> None:
        super().__init__()
        self._source: Any = source  # of a socket
        self._begun = False
        self._waited = self._all = 0.0
        self._bytes = 0

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return int(self._source.fileno())

    def readinto(self, buffer: WriteableBuffer) -> int:
        started = time.monotonic()
        size: int = self._source.readinto(buffer)
        if self._begun:
            waited = time.monotonic() - started
            self._waited, self._all = self._waited + waited, self._all + waited
        self._begun = True
        self._bytes += size
        if self._waited >= WINDOW:
            if self._bytes < RATE * self._waited or self._all >= DEADLINE:
                message = f"the server sent less than {RATE} bytes per second"
                raise TimeoutError(message)
            self._waited, self._bytes = 0.0, 0
        return size

    def close(self) -> None:
        self._source.close()
        super().close()


class _WatchedResponse(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp = io.BufferedReader(_WatchedStream(self.fp.detach()))


class _WatchedConnection(urllib3.connection.HTTPConnection):
    response_class = _WatchedResponse


class _SecureConnection(urllib3.connection.HTTPSConnection):
    response_class = _WatchedResponse


class _WatchedPool(urllib3.connectionpool.HTTPConnectionPool):
    ConnectionCls = _WatchedConnection


class _SecurePool(urllib3.connectionpool.HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


POOLS = {"http": _WatchedPool, "https": _SecurePool}
