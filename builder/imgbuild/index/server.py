"""Serves a catalogue as a simple index on 127.0.0.1 during a resolution."""

from __future__ import annotations

import codecs
import contextlib
import http.server
import json
import sys
import threading
import urllib.parse
from collections.abc import Iterator, Sequence
from typing import Any

from packaging.utils import parse_wheel_filename

from imgbuild.index.catalogue import AdditionsProvider, FileCatalogue, OfferedFile, no_additions
from imgbuild.values import normalize_package

CONTENT = "application/vnd.pypi.simple.v1+json"


def package_page(package: str, offers: list[OfferedFile], base: str) -> bytes:
    """Return the PEP 691 page of `package`, with file URLs below `base`."""
    files: list[dict[str, Any]] = []
    for offer in offers:
        file = offer.wheel
        entry: dict[str, Any] = {
            "filename": file.name,
            "url": f"{base}/files/{package}/{urllib.parse.quote(file.name)}",
            "hashes": {"sha256": file.sha256} if file.sha256 else {},
            "core-metadata": True,
            "yanked": False,
        }
        if file.size is not None:
            entry["size"] = file.size
        if file.requires_python:
            entry["requires-python"] = file.requires_python
        if file.uploaded is not None:
            entry["upload-time"] = file.uploaded.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        files.append(entry)
    document = {"meta": {"api-version": "1.1"}, "name": package, "files": files}
    return json.dumps(document).encode()


def amend_metadata(data: bytes, requirements: Sequence[str]) -> bytes:
    """Insert `requirements` at the start of METADATA, because the end of headers is ambiguous."""
    ending = b"\r\n" if b"\r\n" in data[:200] else b"\n"
    added = b"".join(b"Requires-Dist: " + line.encode() + ending for line in requirements)
    mark = codecs.BOM_UTF8 if data.startswith(codecs.BOM_UTF8) else b""
    return mark + added + data.removeprefix(mark)


class LocalHandler(http.server.BaseHTTPRequestHandler):
    """Responds to requests from programs on this machine, without logging."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class's name
        """Print nothing, because requests would be most of the output of -v."""
        del format, args


class _IndexHandler(LocalHandler):
    catalogue: FileCatalogue
    amend: AdditionsProvider
    base: str

    def do_GET(self) -> None:  # the base class's name
        try:
            status, kind, data = self._answer(urllib.parse.unquote(self.path))
        except Exception as error:  # noqa: BLE001 - raised again when uv has ended
            # uv prints only the status. 400, since uv would retry after a 5xx, and the fetch was
            # already retried.
            self.catalogue.failures.append(error)
            status, kind, data = 400, "text/plain", str(error).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _answer(self, path: str) -> tuple[int, str, bytes]:
        match path.strip("/").split("/"):
            case ["simple", package]:
                package = normalize_package(package)
                offers = self.catalogue.offered_files(package)
                if not offers and not self.catalogue.indexes.files(package):
                    return 404, "text/plain", b"no such package"
                return 200, CONTENT, package_page(package, offers, self.base)
            case ["files", package, name] if name.endswith(".metadata"):
                name = name.removesuffix(".metadata")
                data = self.catalogue.metadata(package, name)
                if data is not None:
                    package = normalize_package(package)
                    more = self.amend(package, parse_wheel_filename(name)[1])
                    data = self.catalogue.drop_addresses(package, data)
                    return 200, "application/octet-stream", amend_metadata(data, more)
        return 404, "text/plain", b"only pages and metadata are served"


class _IndexServer(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # the client reports those itself
            super().handle_error(request, client_address)


@contextlib.contextmanager
def serve_index(catalogue: FileCatalogue, amend: AdditionsProvider = no_additions) -> Iterator[str]:
    """Serve `catalogue` with amended METADATA on 127.0.0.1. Yield the URL of the simple index."""
    parts = {"catalogue": catalogue, "amend": staticmethod(amend)}
    handler = type("Handler", (_IndexHandler,), parts)
    with serve_requests(handler) as address:
        handler.base = f"http://{address}"  # type: ignore[attr-defined]  # the port is known now
        yield f"{handler.base}/simple/"  # type: ignore[attr-defined]


@contextlib.contextmanager
def serve_requests(handler: type[LocalHandler]) -> Iterator[str]:
    """Serve requests with `handler` until the end of the block. Yield 127.0.0.1:PORT."""
    with _IndexServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
