"""Provides a local HTTP proxy for CONNECT, with host names that no name server resolves."""

from __future__ import annotations

import base64
import contextlib
import http.server
import select
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.support.servers import serve_requests


@dataclass
class ConnectProxy:
    """A proxy. `routes` maps HOST:PORT to a local port. `tunnels` lists the requests so far."""

    routes: dict[str, int]
    login: tuple[str, str] | None = None
    tunnels: list[str] = field(default_factory=list)
    port: int = 0


class _Handler(http.server.BaseHTTPRequestHandler):
    proxy: ConnectProxy

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def do_CONNECT(self) -> None:
        self.proxy.tunnels.append(self.path)
        if self.proxy.login is not None:
            token = base64.b64encode(":".join(self.proxy.login).encode()).decode()
            if self.headers.get("Proxy-Authorization") != f"Basic {token}":
                self.send_error(407)
                return
        port = self.proxy.routes.get(self.path)
        if port is None:
            self.send_error(502)
            return
        with socket.create_connection(("127.0.0.1", port)) as server:
            self.send_response(200)
            self.end_headers()
            self._relay(server)
        self.close_connection = True

    def _relay(self, server: socket.socket) -> None:
        ends = {self.connection: server, server: self.connection}
        with contextlib.suppress(OSError):
            while True:
                for end in select.select(list(ends), [], [], 30)[0]:
                    data = end.recv(1 << 16)
                    if not data:
                        return
                    ends[end].sendall(data)


@contextlib.contextmanager
def serve_proxy(proxy: ConnectProxy) -> Iterator[ConnectProxy]:
    """Run `proxy` on a free port."""
    with serve_requests(_Handler, proxy=proxy) as proxy.port:
        yield proxy
