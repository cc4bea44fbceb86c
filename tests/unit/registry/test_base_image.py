"""Tests reading a base from a registry that requires tokens and redirects blobs."""

from __future__ import annotations

import base64
import http.server
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from imgbuild.cache.context import Context
from imgbuild.cache.store import Store
from imgbuild.errors import FetchFailed, InputError, IntegrityError
from imgbuild.http.client import HttpClient
from imgbuild.lock.resolution import LockedFile
from imgbuild.oci import documents, layout
from imgbuild.registry import base_image
from imgbuild.registry.client import RegistryClient
from imgbuild.values import Arch, sha256
from tests.support import images
from tests.support.rows import each_row

BOTH = (Arch.X86_64, Arch.ARM64)
LOGIN = ("me", "s3cr3t-word")
BASIC = "Basic " + base64.b64encode(b"me:s3cr3t-word").decode()


class Registry:
    """A registry of a layout. `mode` is open, basic, bearer (without a login) or login."""

    def __init__(self, image_layout: layout.Layout, mode: str) -> None:
        self.found = image_layout
        self.mode = mode
        self.token = "token-number-1"
        self.seen: list[tuple[str, str]] = []
        self.stored: dict[str, bytes] = {}
        self.realm = ""
        registry_ = self

        class Front(Quiet):
            def do_GET(self) -> None:
                registry_.front(self)

        class Back(Quiet):
            def do_GET(self) -> None:
                registry_.back(self)

        self.servers = [
            http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind) for kind in (Front, Back)
        ]
        self.host, self.storage = (
            f"127.0.0.1:{server.server_address[1]}" for server in self.servers
        )
        for server in self.servers:
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        for server in self.servers:
            server.shutdown()
            server.server_close()

    def front(self, request: Quiet) -> None:
        given = request.headers.get("Authorization", "")
        parts = urlsplit(request.path)
        self.seen.append((parts.path, given))
        if parts.path == "/token":
            query = parse_qs(parts.query)
            right = query["scope"] == ["repository:me/base:pull"] and query["service"] == ["test"]
            allowed = right and (self.mode == "bearer" or given == BASIC)
            request.answer(200 if allowed else 401, json.dumps({"token": self.token}).encode())
            return
        expected = {"open": "", "basic": BASIC}.get(self.mode, f"Bearer {self.token}")
        if expected and given != expected:
            realm = self.realm or f"http://{self.host}/token"
            challenge = (
                'Basic realm="test"'
                if self.mode == "basic"
                else f'Bearer realm="{realm}",service="test",scope="repository:me/base:pull"'
            )
            request.answer(401, b"{}", {"WWW-Authenticate": challenge})
            return
        _, kind, digest = parts.path.rsplit("/", 2)
        if kind == "blobs":
            place = f"http://{self.storage}/storage/{digest}?signature=abc"
            request.answer(307, b"", {"Location": place})
            return
        self.serve(request, digest)

    def back(self, request: Quiet) -> None:
        self.seen.append(("storage", request.headers.get("Authorization", "")))
        self.serve(request, urlsplit(request.path).path.rsplit("/", 1)[1])

    def serve(self, request: Quiet, digest: str) -> None:
        path = self.found.blob(digest)
        data = self.stored.get(digest) or (path.read_bytes() if path.exists() else None)
        request.answer(404 if data is None else 200, data or b"{}")


class Quiet(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Do nothing: suppress log output."""

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture(name="source")
def _source(tmp_path: Path) -> layout.Layout:
    layers = [
        images.make_layer(tmp_path / "b", [images.text_member("word", word)]) for word in ("a", "b")
    ]
    layout.write_layout(
        tmp_path / "l", {arch: images.image_files(layers, arch) for arch in BOTH}, "base"
    )
    return layout.read_layout(tmp_path / "l")


@pytest.fixture(name="served")
def _served(
    source: layout.Layout,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Iterator[Registry]:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server = Registry(source, getattr(request, "param", "open"))
    yield server
    server.close()


def log_in(folder: Path, host: str) -> None:
    (folder / "docker").mkdir()
    auth = base64.b64encode(":".join(LOGIN).encode()).decode()
    (folder / "docker/config.json").write_text(json.dumps({"auths": {host: {"auth": auth}}}))


def name(served: Registry, digest: str | None = None) -> str:
    return f"{served.host}/me/base@{digest or served.found.digest}"


@pytest.mark.parametrize("served", ["open", "basic", "bearer", "login"], indirect=True)
def test_base_image_is_read_with_every_authentication_scheme(served, source, tmp_path):
    if served.mode in ("basic", "login"):
        log_in(tmp_path, served.host)
    store = Store.open(tmp_path / "cache")
    for arch in BOTH:
        base = base_image.read_base_image(name(served), arch)
        stored = source.image(arch)
        assert base.manifest == stored.manifest.digest
        assert tuple(layer.diff_id for layer in base.layers) == stored.diff_ids
        assert [layer.digest for layer in base.layers] == [layer.digest for layer in stored.layers]
        assert base.settings == stored.settings
        base_image.fetch_layers(
            name(served),
            [layer.as_locked_file for layer in base.layers],
            Context(store, HttpClient()),
        )
        for layer in base.layers:
            blob = store.blob(layer.digest)
            assert blob is not None
            assert f"sha256:{sha256(blob.read_bytes())}" == layer.digest
    # Storage behind a redirect is another server: it must not receive tokens or passwords.
    assert {given for path, given in served.seen if path == "storage"} == {""}


@pytest.mark.parametrize("served", ["basic", "login"], indirect=True)
def test_error_for_a_base_without_credentials_names_the_registry_host(served):
    with pytest.raises(FetchFailed, match="401") as caught:
        base_image.read_base_image(name(served), Arch.X86_64)
    assert served.host in str(caught.value.hint)


@pytest.mark.parametrize("served", ["bearer"], indirect=True)
def test_expired_registry_token_is_requested_again(served):
    client = RegistryClient()
    base_image.read_base_image(name(served), Arch.X86_64, client)
    served.token = "token-number-2"
    base_image.read_base_image(name(served), Arch.ARM64, client)
    assert [path for path, _ in served.seen].count("/token") == 2


@pytest.mark.parametrize("served", ["login"], indirect=True)
def test_credentials_are_not_sent_to_another_server_without_tls(served, tmp_path):
    log_in(tmp_path, served.host)
    served.realm = f"http://{served.storage}/token"
    with pytest.raises(FetchFailed, match="does not use TLS"):
        base_image.read_base_image(name(served), Arch.X86_64)
    assert not [given for path, given in served.seen if path == "storage"]


def test_cached_base_layers_are_not_requested(served, tmp_path):
    store = Store.open(tmp_path / "cache")
    base = base_image.read_base_image(name(served), Arch.X86_64)
    base_image.fetch_layers(
        name(served), [layer.as_locked_file for layer in base.layers], Context(store, HttpClient())
    )
    before = len(served.seen)
    base_image.fetch_layers(
        name(served), [layer.as_locked_file for layer in base.layers], Context(store, HttpClient())
    )
    assert len(served.seen) == before


@pytest.mark.parametrize("which", ["index", "manifest", "config"])
def test_base_document_with_wrong_digest_is_refused(served, source, which):
    stored = source.image(Arch.X86_64)
    digest = {
        "index": source.digest,
        "manifest": stored.manifest.digest,
        "config": stored.config.digest,
    }[which]
    served.stored[digest] = source.blob(digest).read_bytes() + b" "
    with pytest.raises(IntegrityError, match=digest):
        base_image.read_base_image(name(served), Arch.X86_64)


def test_base_layer_with_wrong_digest_is_refused(served, source, tmp_path):
    digest = source.image(Arch.X86_64).layers[0].digest
    data = source.blob(digest).read_bytes()
    served.stored[digest] = data[:-1] + bytes([data[-1] ^ 1])
    store = Store.open(tmp_path / "cache")
    base = base_image.read_base_image(name(served), Arch.X86_64)
    with pytest.raises(IntegrityError, match="sha256"):
        base_image.fetch_layers(
            name(served),
            [layer.as_locked_file for layer in base.layers],
            Context(store, HttpClient()),
        )
    assert store.blob(digest) is None


def test_manifest_of_another_architecture_is_refused(served, source):
    digest = source.image(Arch.X86_64).manifest.digest
    with pytest.raises(InputError, match="has no image for arm64, only for x86_64"):
        base_image.read_base_image(name(served, digest), Arch.ARM64)


def put(served: Registry, data: bytes) -> str:
    digest = f"sha256:{sha256(data)}"
    served.stored[digest] = data
    return name(served, digest)


def test_error_for_a_missing_architecture_lists_the_available_architectures(served, source):
    manifest = source.blob(source.image(Arch.X86_64).manifest.digest).read_bytes()
    text = put(served, documents.create_index({Arch.X86_64: manifest}))
    with pytest.raises(InputError, match="no image for linux/arm64, only for linux/amd64"):
        base_image.read_base_image(text, Arch.ARM64)


@pytest.mark.parametrize(
    ("media_type", "expected"),
    [
        ("application/vnd.docker.image.rootfs.diff.tar.gzip", documents.LAYER_GZIP),
        ("application/vnd.docker.image.rootfs.diff.tar", documents.LAYER),
        (documents.LAYER_ZSTD, None),
        ("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", None),
    ],
)
def test_only_supported_layer_types_are_accepted(served, source, media_type, expected):
    manifest = source.blob(source.image(Arch.X86_64).manifest.digest).read_bytes()
    text = put(served, manifest.replace(documents.LAYER_GZIP.encode(), media_type.encode()))
    if expected is None:
        with pytest.raises(InputError, match=re.escape(f"unsupported type {media_type}")):
            base_image.read_base_image(text, Arch.X86_64)
        return
    base = base_image.read_base_image(text, Arch.X86_64)
    assert {layer.media_type for layer in base.layers} == {expected}


def test_invalid_base_document_is_an_input_error(served):
    with pytest.raises(InputError, match="is not a valid"):
        base_image.read_base_image(put(served, b"<html>hello</html>"), Arch.X86_64)


D = f"sha256:{'a' * 64}"


@each_row(
    ("text", "server"),
    [
        (f"debian@{D}", "https://registry-1.docker.io/v2/library/debian"),
        (f"nvidia/cuda:12.4@{D}", "https://registry-1.docker.io/v2/nvidia/cuda"),
        (f"ghcr.io/me/x:1@{D}", "https://ghcr.io/v2/me/x"),
        (f"localhost:5000/x@{D}", "http://localhost:5000/v2/x"),
        (f"127.0.0.1:5000/a/b:tag@{D}", "http://127.0.0.1:5000/v2/a/b"),
        (f"host:5000/x@{D}", "https://host:5000/v2/x"),
    ],
)
def test_base_image_references_are_parsed(text, server):
    reference = base_image.parse_base_reference(text)
    assert reference.digest == D
    locked = LockedFile(file="layer", size=1, sha256=D.removeprefix("sha256:"))
    assert RegistryClient().file_request(reference.repository, locked).urls() == [
        f"{server}/blobs/{D}"
    ]


@each_row("text", ["debian", "debian:12", "debian@sha256:12", f"@{D}", ""])
def test_base_name_without_digest_is_refused(text):
    with pytest.raises(InputError, match="is not an image reference with a digest"):
        base_image.parse_base_reference(text)
