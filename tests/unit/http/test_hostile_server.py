"""Tests that commands report servers that send too much, too slowly or invalid data.

`make bench-hostile` also runs these tests.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import itertools
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from imgbuild.cache.context import Context
from imgbuild.cache.download import FileRequest, fetch_all
from imgbuild.cache.store import Store
from imgbuild.errors import FetchFailed, ImgbuildError
from imgbuild.http import client, session
from imgbuild.http.client import HttpClient
from imgbuild.index.pages import IndexAddress, IndexLookup
from imgbuild.index.remote_wheel import read_wheel_metadata
from imgbuild.lock.resolution import LockedFile
from imgbuild.project.model import DeclaredRequirement, FilePlace
from imgbuild.registry.client import RegistryClient
from imgbuild.registry.image_reference import ImageReference
from imgbuild.solve import direct
from imgbuild.system.reporter import SILENT_REPORTER
from imgbuild.values import Arch
from imgbuild.wheel.tags import WheelTags
from tests.support import memory_registry
from tests.support.rows import each_row

OK = b"HTTP/1.1 200 OK\r\n"
JSON = b"Content-Type: application/json\r\n"
Behaviour = Callable[[socket.socket], None]


def sends(*parts: bytes) -> Behaviour:
    """Send each of `parts`, then close the connection."""

    def _behave(connection: socket.socket) -> None:
        for part in parts:
            connection.sendall(part)

    return _behave


def forever(head: bytes, piece: bytes, pause: float = 0.0) -> Behaviour:
    """Send `head`, then repeat `piece` without end."""

    def _behave(connection: socket.socket) -> None:
        connection.sendall(head)
        for _ in itertools.count():
            connection.sendall(piece)
            time.sleep(pause)

    return _behave


def answer(body: bytes, *headers: bytes) -> Behaviour:
    """A complete response."""
    return sends(OK, (b"Content-Length: %d\r\n" % len(body)), JSON, *headers, b"\r\n", body)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"


@functools.cache
def zeros() -> bytes:
    """A gzip of 200 kB with 200 MB of zeros."""
    return gzip.compress(bytes(200 << 20))


@pytest.fixture(scope="module", autouse=True)
def _zeros() -> None:
    """Create the compressed zeros before a test measures memory and time."""
    zeros()


def gzip_bomb(connection: socket.socket) -> None:
    """Serve a compressed page of 200 MB."""
    answer(zeros(), b"Content-Encoding: gzip\r\n")(connection)


BEHAVIOURS: dict[str, Behaviour] = {
    "endless page": forever(OK + JSON + CHUNKED, chunk(b"[" * 60_000)),
    "page without length": forever(OK + JSON + b"\r\n", b"[" * 60_000),
    "gzip bomb": gzip_bomb,
    "one byte at a time": forever(OK + b"Content-Length: 9999999\r\n\r\n", b"x", 0.02),
    "one chunk at a time": forever(OK + CHUNKED, chunk(b"x"), 0.02),
    "header by the byte": forever(OK + b"X-Long: ", b"x", 0.02),
    "endless headers": forever(OK, b"X-Header: 1\r\n"),
    "endless header": forever(OK, b"x" * 60_000),
    "no answer": sends(b""),
    "no HTTP": sends(b"\x16\x03\x01\x00" * 500),
    "another protocol": sends(b"SSH-2.0-OpenSSH_9.2\r\n"),
    "a status of 99999": sends(b"HTTP/1.1 99999 NO\r\n\r\n"),
    "a negative length": sends(OK, b"Content-Length: -5\r\n\r\nabc"),
    "a length of 5000 digits": sends(OK, b"Content-Length: " + b"9" * 5000 + b"\r\n\r\nabc"),
    "a chunk of negative size": sends(OK, CHUNKED, b"-5\r\nabc\r\n"),
    "a cut body": sends(OK, b"Content-Length: 500\r\n\r\nabc"),
    "a cut gzip": answer(gzip.compress(bytes(1 << 20))[:500], b"Content-Encoding: gzip\r\n"),
    "an unknown encoding": answer(b"abc", b"Content-Encoding: zstd, gzip\r\n"),
    "an unknown charset": answer(b'{"files": 1}', b"Content-Type: text/html; charset=utf-99\r\n"),
    "not UTF-8": answer(b"\xff\xfe\x00{"),
    "deep JSON": answer(b"[" * 1_000_000),
    "other JSON": answer(b'{"files": [1, null, {}], "manifests": 5, "tags": {"a": 1}}'),
    "a number that is too long": answer(b'{"files": ' + b"9" * 5000 + b"}"),
    "a circle of redirects": sends(b"HTTP/1.1 302 Found\r\nLocation: /a\r\n\r\n"),
    "a redirect to a file": sends(b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\n\r\n"),
    "a redirect to nothing": sends(b"HTTP/1.1 302 Found\r\nLocation: http://[::1\r\n\r\n"),
    "a login is wanted": sends(b'HTTP/1.1 401 No\r\nWWW-Authenticate: Bearer realm="//["\r\n\r\n'),
    "strange ranges": sends(b"HTTP/1.1 206 OK\r\nContent-Range: bytes 9-1/-5\r\n\r\n", b"x" * 90),
    "a huge range": sends(
        b"HTTP/1.1 206 OK\r\nContent-Range: bytes 0-0/999999999999999999\r\n\r\n", b"x" * 90
    ),
    "no room": sends(b"HTTP/1.1 503 Busy\r\nRetry-After: 999999999999\r\n\r\n"),
}  # fmt: skip


@contextlib.contextmanager
def serve(behave: Behaviour) -> Iterator[str]:
    """Run a server with this behaviour for each connection; yields HOST:PORT."""
    listening = socket.create_server(("127.0.0.1", 0))
    closed = threading.Event()

    def _connection_handler(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while b"\r\n\r\n" not in connection.recv(65536):
                pass
            behave(connection)
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(1)
            connection.recv(65536)

    def _all() -> None:
        while not closed.is_set():
            with contextlib.suppress(OSError):
                connection = listening.accept()[0]
            threading.Thread(target=_connection_handler, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=_all, daemon=True)
    thread.start()
    try:
        yield f"localhost:{listening.getsockname()[1]}"
    finally:
        closed.set()
        with contextlib.suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(1)


@pytest.fixture(autouse=True)
def _limits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    memory_registry.isolate_logins(monkeypatch, tmp_path)
    monkeypatch.setattr(session, "WINDOW", 0.15)
    monkeypatch.setattr(client, "PAGE_LIMIT", 1 << 20)
    monkeypatch.setattr(client, "FILE_LIMIT", 1 << 20)


def page(place: str, _: Path) -> None:
    http = HttpClient(attempts=2, first_wait=0.001, timeout=(2, 2))
    address = IndexAddress(name="main", address=f"http://{place}/simple/")
    IndexLookup({"main": address}, {}, "main", http).files("demo")


def download(place: str, folder: Path) -> None:
    http = HttpClient(attempts=2, first_wait=0.001, timeout=(2, 2))
    context = Context(store=Store.open(folder / "cache"), http=http, reporter=SILENT_REPORTER)
    locked_file = LockedFile(file="demo.whl", size=5_000_000, sha256="0" * 64)
    request = FileRequest(locked=locked_file, urls=lambda: [f"http://{place}/demo.whl"])
    fetch_all([request], context, title="demo")


def parts(place: str, _: Path) -> None:
    http = HttpClient(attempts=2, first_wait=0.001, timeout=(2, 2))
    http.fetch_part(f"http://{place}/a", 0, http.part_end(f"http://{place}/a", 5)[1])


def wheel_by_url(place: str, folder: Path) -> None:
    http = HttpClient(attempts=2, first_wait=0.001, timeout=(2, 2))
    context = Context(store=Store.open(folder / "cache"), http=http, reporter=SILENT_REPORTER)
    text = f"demo @ http://{place}/demo-1.0-py3-none-any.whl"
    declared = DeclaredRequirement(text=text, place=FilePlace("requirements.txt", 1))
    tags = WheelTags(python="3.11", glibc="2.36", arch=Arch.X86_64)
    for hashes in ((), (f"sha256:{'0' * 64}",)):
        with contextlib.suppress(ImgbuildError):
            each = msgspec.structs.replace(declared, hashes=hashes)
            packages = direct.look_up_requirements([each], tags, context, None)
            read_wheel_metadata(packages["demo"].file, http, context.store)


def registry(place: str, _: Path) -> None:
    asking = RegistryClient(attempts=2, first_wait=0.001, timeout=(2, 2))
    reference = ImageReference(place, "me/image", "tag", None)
    try:
        asking.manifest(reference)
    finally:
        list(asking.tags(reference.repository))


@each_row("behave", BEHAVIOURS.values(), ids=BEHAVIOURS)
@each_row("ask", [page, download, parts, wheel_by_url, registry])
def test_hostile_server_causes_an_error_with_bounded_memory(tmp_path, behave, ask):
    Store.open(tmp_path / "cache").fact("metadata", "")  # reads the installed facts
    tracemalloc.start()
    try:
        with serve(behave) as place, contextlib.suppress(ImgbuildError):
            ask(place, tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 << 20


@pytest.mark.parametrize(
    "name", ["one byte at a time", "one chunk at a time", "header by the byte"]
)
def test_connection_to_a_server_that_is_too_slow_is_closed(name):
    http = HttpClient(attempts=1, first_wait=0.001, timeout=(2, 2))
    with serve(BEHAVIOURS[name]) as place, pytest.raises(FetchFailed, match="timed out"):
        http.fetch_bytes(f"http://{place}/a")


def test_client_waits_for_slow_response():
    def _behave(connection: socket.socket) -> None:
        time.sleep(0.4)
        answer(b"{}")(connection)

    with serve(_behave) as place:
        assert HttpClient(attempts=1, timeout=(2, 2)).fetch_bytes(f"http://{place}/a") == b"{}"


@pytest.mark.parametrize("name", ["endless page", "gzip bomb"])
def test_error_for_an_oversized_page_names_the_server(name):
    http = HttpClient(attempts=1, first_wait=0.001, timeout=(2, 2))
    with serve(BEHAVIOURS[name]) as place, pytest.raises(FetchFailed) as caught:
        http.text(f"http://{place}/a")
    assert caught.value.message == f"{place} sent a document of more than {1 << 20} bytes"


def test_saved_file_has_a_size_limit(tmp_path):
    http = HttpClient(attempts=1, first_wait=0.001, timeout=(2, 2))
    behaviour, message = forever(OK + CHUNKED, chunk(b"x" * 60_000)), "more than 200000 bytes"
    with serve(behaviour) as place, pytest.raises(FetchFailed, match=message):
        http.save_file(f"http://{place}/a", tmp_path / "file", 200_000)
    assert (tmp_path / "file").stat().st_size < 400_000


def test_error_for_an_invalid_index_page_names_the_url(tmp_path):
    with serve(BEHAVIOURS["other JSON"]) as place, pytest.raises(ImgbuildError) as caught:
        page(place, tmp_path)
    assert caught.value.message.startswith(f"the page http://{place}/simple/demo/ cannot be read")


def test_url_of_a_page_is_shown_without_its_query():
    class Web:
        def text(self, url: str, accept: str = "") -> client.TextPage:
            return client.TextPage(f"{url}?signature=secret", "{", "application/json", 200)

    address = IndexAddress(name="main", address="http://localhost/simple/")
    with pytest.raises(ImgbuildError) as caught:
        IndexLookup({"main": address}, {}, "main", Web()).files("demo")
    assert "secret" not in caught.value.message
