"""Serves `memory_registry` over HTTP, with a second server for redirected blobs."""

from __future__ import annotations

import contextlib
import http.server
import socket
import ssl
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.support.memory_registry_values import Answer, ReceivedRequest
from tests.support.servers import serve_requests

if TYPE_CHECKING:
    from tests.support.memory_registry import Registry


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each body waits 40 ms for its head to be acknowledged
    registry: Registry
    place: str

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def _do(self) -> None:
        registry = self.registry
        request = ReceivedRequest(self.place, self.command, self.path, dict(self.headers))
        registry.requests.append(request)
        fault = registry.fault(request)
        length = int(self.headers.get("Content-Length", 0))
        if fault is not None and fault.cut_request is not None:
            body = self.rfile.read(min(length, fault.cut_request))
            request.size = len(body)
            registry.store_partial_body(request, body)
            self._break()
            return
        body = self.rfile.read(length)
        request.size = len(body)
        if fault is not None and fault.status is not None:
            answer = Answer(fault.status, fault.body, dict(fault.headers))
        else:
            answer = registry.answer(request, body)
        if fault is not None:
            fault.edit(answer)
            if fault.mute:
                self._break()
                return
        self._say(answer, fault.cut_answer if fault is not None else None)

    def do_HEAD(self) -> None:
        self._do()

    def do_GET(self) -> None:
        self._do()

    def do_POST(self) -> None:
        self._do()

    def do_PUT(self) -> None:
        self._do()

    def do_PATCH(self) -> None:
        self._do()

    def do_DELETE(self) -> None:
        self._do()

    def _say(self, answer: Answer, cut: int | None) -> None:
        self.send_response(answer.status)
        headers = {"Content-Length": str(len(answer.body)), **answer.headers}
        for name, value in headers.items():
            if answer.status != 204 or name != "Content-Length":
                self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body[:cut])
        if cut is not None:
            self._break()

    def _break(self) -> None:
        """Reset the connection."""
        self.close_connection = True
        with contextlib.suppress(OSError):
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.connection.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def serve(registry: Registry, context: ssl.SSLContext | None = None) -> Iterator[Registry]:
    """Serve `registry` and its redirect storage on free local ports."""
    registry.scheme = "https" if context is not None else registry.scheme
    with contextlib.ExitStack() as stack:
        for place in ("registry", "storage"):
            port = stack.enter_context(
                serve_requests(_Handler, context, registry=registry, place=place)
            )
            setattr(registry, "host" if place == "registry" else "storage", f"localhost:{port}")
        yield registry
