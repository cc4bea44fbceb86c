"""Serves an image from a registry on 127.0.0.1 to an engine.

The registry implements the part of the OCI distribution API that pulls use: GET and HEAD requests
for manifests and blobs, with ranges. Engines request only missing layers.
"""

# A separate module: a protocol.
from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path

import msgspec

from imgbuild.index.server import LocalHandler, serve_requests
from imgbuild.oci.documents import Descriptor
from imgbuild.oci.layout import Layout
from imgbuild.values import Arch

NAME = "imgbuild/image"
PIECE = 16 << 20  # bytes after which progress is reported
RANGE = re.compile(r"bytes=(\d+)-(\d*)")


class LoopbackImage(msgspec.Struct, frozen=True, kw_only=True):
    """A served image. `requested` is set after the first request."""

    repository: str
    tag: str
    requested: Callable[[], bool]

    @property
    def reference(self) -> str:
        """The image reference to pull with an engine."""
        return f"{self.repository}:{self.tag}"


class _LoopbackHandler(LocalHandler):
    files: dict[str, tuple[Descriptor, Path]]
    seen: threading.Event
    sent: Callable[[int], object]

    def do_GET(self) -> None:  # noqa: N802  # the base class's name
        self._answer(body=True)

    def do_HEAD(self) -> None:  # noqa: N802  # the base class's name
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        self.seen.set()
        path = self.path.partition("?")[0]
        if path.rstrip("/") == "/v2":
            self._head(HTTPStatus.OK, {"Content-Length": "0"})
            return
        if path not in self.files:
            self._head(HTTPStatus.NOT_FOUND, {"Content-Length": "0"})
            return
        descriptor, file_path = self.files[path]
        first, last, status = 0, descriptor.size - 1, HTTPStatus.OK
        headers = {
            "Content-Type": descriptor.media_type,
            "Docker-Content-Digest": descriptor.digest,
            "Accept-Ranges": "bytes",
        }
        if byte_range := RANGE.fullmatch(self.headers.get("Range", "")):
            first, last = int(byte_range[1]), min(int(byte_range[2] or last), last)
            if first > last:
                self._head(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, {"Content-Length": "0"})
                return
            status = HTTPStatus.PARTIAL_CONTENT
            headers["Content-Range"] = f"bytes {first}-{last}/{descriptor.size}"
        self._head(status, {**headers, "Content-Length": str(last - first + 1)})
        if body:
            with file_path.open("rb") as file:
                for start in range(first, last + 1, PIECE):
                    self.sent(self.connection.sendfile(file, start, min(PIECE, last + 1 - start)))

    def _head(self, status: HTTPStatus, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send an HTTP response even to an unreadable request.

        containerd tries TLS first, and continues without TLS only after an HTTP response.
        """
        del message, explain
        self.close_connection = True
        self.wfile.write(f"HTTP/1.1 {int(code)} Bad Request\r\nContent-Length: 0\r\n\r\n".encode())


@contextlib.contextmanager
def serve_image(
    layout: Layout, arch: Arch, sent: Callable[[int], object] = lambda _: None
) -> Iterator[LoopbackImage]:
    """Serve the image of `layout` for `arch` until the end of the block.

    `sent` is called with the number of bytes of each sent chunk.
    """
    stored = layout.image(arch)
    tag = stored.manifest.digest.removeprefix("sha256:")
    documents = {f"/v2/{NAME}/manifests/{name}" for name in (tag, stored.manifest.digest)}
    files = {path: (stored.manifest, layout.blob(stored.manifest.digest)) for path in documents}
    for descriptor in (stored.manifest, stored.config, *stored.layers):
        files[f"/v2/{NAME}/blobs/{descriptor.digest}"] = (
            descriptor,
            layout.blob(descriptor.digest),
        )
    seen = threading.Event()
    attributes = {"files": files, "seen": seen, "sent": staticmethod(sent)}
    handler = type("Handler", (_LoopbackHandler,), attributes)
    with serve_requests(handler) as host:
        yield LoopbackImage(repository=f"{host}/{NAME}", tag=tag, requested=seen.is_set)
