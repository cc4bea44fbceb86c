"""Serves files by path over HTTP on this machine, with chosen faults."""

from __future__ import annotations

import base64
import contextlib
import gzip
import http.server
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field


@dataclass
class FileSite:
    """The files and faults of a server; `requests` lists method, path and headers."""

    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    suffix_ranges: bool = True
    announce: bool = True  # Content-Length is sent
    login: tuple[str, str] | None = None
    # Numbers of body bytes after which the connection is dropped; each request uses one.
    cuts: list[int] = field(default_factory=list)
    # Error responses, with headers, sent before normal ones: each request consumes one.
    refusals: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    redirects: dict[str, str] = field(default_factory=dict)
    compress: bool = False  # with gzip, for clients that accept it
    pause: float = 0.0  # seconds between pieces of a body
    piece: int = 1 << 16
    before: Callable[[str], None] = lambda path: None
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    port: int = 0
    scheme: str = "http"

    def url(self, path: str, login: str = "") -> str:
        """The URL of `path` with the optional login "user:password"."""
        return f"{self.scheme}://{login + '@' if login else ''}localhost:{self.port}/{path}"

    def received_requests(self, path: str) -> list[dict[str, str]]:
        """The headers of each request for `path`."""
        return [headers for _, name, headers in self.requests if name == f"/{path}"]


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    site: FileSite

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        site, path = self.site, self.path.partition("?")[0]
        site.requests.append((self.command, path, dict(self.headers)))
        site.before(path)
        if site.login is not None:
            token = base64.b64encode(":".join(site.login).encode()).decode()
            if self.headers.get("Authorization") != f"Basic {token}":
                self._short(401, {"WWW-Authenticate": 'Basic realm="private"'})
                return
        if site.refusals:
            self._short(*site.refusals.pop(0))
            return
        if path in site.redirects:
            self._short(302, {"Location": site.redirects[path]})
            return
        data = site.files.get(path.lstrip("/"))
        if data is None:
            self._short(404, {})
            return
        self._file(data, body=body)

    def _short(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _file(self, data: bytes, *, body: bool) -> None:
        compress = self.site.compress and "gzip" in self.headers.get("Accept-Encoding", "")
        data = gzip.compress(data) if compress else data
        start, end, status = 0, len(data), 200
        match = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if match and self.site.ranges:
            if match[1]:
                start, end = int(match[1]), min(len(data), int(match[2] or len(data)) + 1)
            elif self.site.suffix_ranges:
                start = max(0, len(data) - int(match[2]))
            else:
                self._short(501, {})
                return
            if start >= len(data):
                self._short(416, {"Content-Range": f"bytes */{len(data)}"})
                return
            status = 206
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
        if compress:
            self.send_header("Content-Encoding", "gzip")
        if self.path.endswith("/"):
            self.send_header("Content-Type", "text/html")  # without which pip and uv read no page
        if self.site.announce:
            self.send_header("Content-Length", str(end - start))
        else:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        if body:
            self._send(data[start:end])

    def _send(self, data: bytes) -> None:
        cut = self.site.cuts.pop(0) if self.site.cuts else None
        for at in range(0, len(data if cut is None else data[:cut]), self.site.piece):
            self.wfile.write(
                data[at : min(at + self.site.piece, len(data) if cut is None else cut)]
            )
            if self.site.pause:
                time.sleep(self.site.pause)
        if cut is not None and cut < len(data):
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Print nothing, because the clients in many tests close the connection."""


@contextlib.contextmanager
def serve_requests(
    handler: type[http.server.BaseHTTPRequestHandler],
    context: ssl.SSLContext | None = None,
    port: int = 0,
    **attributes: object,
) -> Iterator[int]:
    """Serve requests with `handler` and `attributes` on `port` or a free port. Yields the port.

    TLS is used if `context` is given.
    """
    kind = type("Handler", (handler,), attributes)
    with _Server(("127.0.0.1", port), kind) as server:
        if context is not None:
            server.socket = context.wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def serve_site(site: FileSite, context: ssl.SSLContext | None = None) -> Iterator[FileSite]:
    """Serve `site` on its port, or on a free port for 0, with TLS if `context` is given."""
    with serve_requests(_Handler, context, site.port, site=site) as site.port:
        site.scheme = "https" if context is not None else site.scheme
        yield site
