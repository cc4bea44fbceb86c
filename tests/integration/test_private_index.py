"""Tests a private index with a custom certificate authority, a password, a proxy and keyring."""

from __future__ import annotations

import importlib.util
import json
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from imgbuild.cache.context import Context
from imgbuild.cache.download import FileRequest, fetch_all
from imgbuild.cache.store import Store
from imgbuild.errors import FetchFailed, ImgbuildError
from imgbuild.http.client import HttpClient, RequestRefused
from imgbuild.http.session import BUNDLES
from imgbuild.lock.resolution import LockedFile
from imgbuild.system.console import console
from imgbuild.values import sha256
from tests.support import connect_proxy, needs
from tests.support.servers import FileSite, serve_site

WHEEL = bytes(range(256)) * 4000
SECRET = "s3cret/of:me"
ENCODED = "s3cret%2Fof%3Ame"
NAME = "index.private.test"
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def bundle(authority: trustme.CA, tmp_path: Path) -> Path:
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    return tmp_path / "authority.pem"


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove certificates, proxies and credentials of this machine."""
    for name in (*BUNDLES, *PROXIES, *(name.upper() for name in PROXIES)):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")


@pytest.fixture
def site(authority: trustme.CA) -> Iterator[FileSite]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost", NAME).configure_cert(context)
    files = {"simple/trl/": b'<a href="/files/trl.whl">trl.whl</a>', "files/trl.whl": WHEEL}
    with serve_site(FileSite(files=files, login=("me", SECRET)), context) as site:
        yield site


def impatient() -> HttpClient:
    return HttpClient(attempts=2, first_wait=0.01, timeout=(10, 10))


def download(root: Path, http: HttpClient, url: str) -> bytes:
    locked = LockedFile(file="trl.whl", size=len(WHEEL), sha256=sha256(WHEEL))
    store = Store.open(root / "cache")
    paths = fetch_all([FileRequest(locked, lambda: [url])], Context(store, http), title="private")
    return paths[sha256(WHEEL)].read_bytes()


def hashed_folder(bundle: Path) -> Path:
    """A folder of certificates with OpenSSL's hash names."""
    openssl = needs.require_tool("openssl")
    completed = subprocess.run(
        [openssl, "x509", "-hash", "-noout", "-in", bundle],
        capture_output=True,
        text=True,
        check=True,
    )
    folder = bundle.parent / "certificates"
    folder.mkdir()
    (folder / f"{completed.stdout.strip()}.0").write_bytes(bundle.read_bytes())
    return folder


@pytest.mark.parametrize("variable", BUNDLES)
def test_custom_certificate_bundle_is_used_for_pages_and_files(
    variable: str, bundle: Path, site: FileSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The URL of the index has credentials. The URLs of files have none, as on real pages."""
    folder = hashed_folder(bundle) if variable == "SSL_CERT_DIR" else bundle
    monkeypatch.setenv(variable, str(folder))
    http = impatient()
    page = http.text(site.url("simple/trl/", f"me:{ENCODED}"))
    assert "trl.whl" in page.text
    assert SECRET not in page.url
    assert ENCODED not in page.url
    assert download(tmp_path, http, site.url("files/trl.whl")) == WHEEL


def test_certificate_bundles_of_two_variables_are_combined(
    bundle: Path, site: FileSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trustme.CA().cert_pem.write_to_path(tmp_path / "other.pem")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "other.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    assert impatient().fetch_bytes(site.url("files/trl.whl", f"me:{ENCODED}")) == WHEEL


@pytest.mark.parametrize("named", [False, True])
def test_untrusted_certificate_authority_is_refused(
    named: bool, site: FileSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if named:
        trustme.CA().cert_pem.write_to_path(tmp_path / "other.pem")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "other.pem"))
    with pytest.raises(FetchFailed, match="certificate is not trusted") as caught:
        impatient().fetch_bytes(site.url("files/trl.whl", f"me:{ENCODED}"))
    assert "SSL_CERT_FILE" in str(caught.value.hint)
    assert site.requests == [], "credentials were sent to a server that is not verified"


def test_certificate_for_another_host_is_refused(
    bundle: Path, site: FileSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    with pytest.raises(FetchFailed, match="certificate is not trusted"):
        impatient().fetch_bytes(f"https://127.0.0.1:{site.port}/files/trl.whl")


def test_netrc_credentials_are_used(
    bundle: Path, site: FileSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    (tmp_path / "netrc").write_text(f"machine localhost login me password {SECRET}\n")
    (tmp_path / "netrc").chmod(0o600)
    assert download(tmp_path, impatient(), site.url("files/trl.whl")) == WHEEL
    assert [headers.get("Range") for headers in site.received_requests("files/trl.whl")] == [None]


def test_redirect_from_https_to_http_is_refused(
    bundle: Path, site: FileSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    with serve_site(FileSite(files={"x": b"x"})) as open_site:
        site.redirects["/files/trl.whl"] = open_site.url("x")
        with pytest.raises(FetchFailed, match="not encrypted"):
            impatient().fetch_bytes(site.url("files/trl.whl", f"me:{ENCODED}"))
        assert open_site.requests == []


# -- a proxy


def test_proxy_with_password_is_used(
    bundle: Path, site: FileSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host of the index is reachable only through the proxy."""
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    with connect_proxy.serve_proxy(
        connect_proxy.ConnectProxy({f"{NAME}:443": site.port}, login=("p", "pr0xy-s3cret"))
    ) as door:
        monkeypatch.setenv("HTTPS_PROXY", f"http://p:pr0xy-s3cret@127.0.0.1:{door.port}")
        url = f"https://me:{ENCODED}@{NAME}/files/trl.whl"
        assert download(tmp_path, impatient(), url) == WHEEL
        assert set(door.tunnels) == {f"{NAME}:443"}
        assert site.received_requests("files/trl.whl")[0].get("Proxy-Authorization") is None


@pytest.mark.parametrize(
    ("login", "words"), [("", "proxy requires a user"), ("p:w0rong@", "proxy")]
)
def test_proxy_that_refuses_credentials_is_reported(
    login: str, words: str, bundle: Path, site: FileSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    with connect_proxy.serve_proxy(
        connect_proxy.ConnectProxy({f"{NAME}:443": site.port}, login=("p", "pr0xy-s3cret"))
    ) as door:
        monkeypatch.setenv("HTTPS_PROXY", f"http://{login}127.0.0.1:{door.port}")
        with pytest.raises(FetchFailed, match=words) as caught:
            impatient().fetch_bytes(f"https://{NAME}/files/trl.whl")
    assert "HTTPS_PROXY" in str(caught.value.hint)
    assert "w0rong" not in shown(caught.value)


def test_proxy_without_route_is_reported(
    bundle: Path, site: FileSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    with connect_proxy.serve_proxy(connect_proxy.ConnectProxy({})) as door:
        monkeypatch.setenv("HTTPS_PROXY", f"http://p:pr0xy-s3cret@127.0.0.1:{door.port}")
        with pytest.raises(FetchFailed, match="proxy") as caught:
            impatient().fetch_bytes(f"https://{NAME}/files/trl.whl")
        assert "pr0xy-s3cret" not in shown(caught.value)
        assert door.tunnels
        monkeypatch.setenv("NO_PROXY", "localhost")
        assert impatient().fetch_bytes(site.url("files/trl.whl", f"me:{ENCODED}")) == WHEEL


# -- keyring

BACKEND = '''
import json, os
from pathlib import Path
from keyring.backend import KeyringBackend
from keyring.credentials import SimpleCredential

class Backend(KeyringBackend):
    """A keyring in a JSON file: {service: [user, password]}."""

    priority = 1

    def _read(self):
        return json.loads(Path(os.environ["TEST_KEYRING"]).read_text())

    def get_password(self, service, username):
        user, password = self._read().get(service, (None, None))
        return password if user == username else None

    def set_password(self, service, username, password):
        raise NotImplementedError

    def get_credential(self, service, username):
        user, password = self._read().get(service, (None, None))
        if user is None or username not in (None, user):
            return None
        return SimpleCredential(user, password)
'''

FETCH = """
import sys
if sys.argv[2] == "program":
    sys.modules["keyring"] = None  # as where it is installed for the program alone
from imgbuild.errors import ImgbuildError
from imgbuild.http.client import HttpClient
try:
    sys.stdout.buffer.write(HttpClient(attempts=2).fetch_bytes(sys.argv[1]))
except ImgbuildError as error:
    sys.exit(error.message)
"""


@pytest.mark.parametrize(
    ("way", "user", "service"),
    [
        ("module", "", "https://localhost:{port}/files/"),
        pytest.param("module", "me@", "localhost:{port}", marks=pytest.mark.long),
        pytest.param("program", "me@", "https://localhost:{port}/files/", marks=pytest.mark.long),
        ("program", "", "localhost:{port}"),
    ],
)
def test_keyring_credentials_are_used(
    way: str, user: str, service: str, bundle: Path, site: FileSite, tmp_path: Path
) -> None:
    """The real keyring is used as a module and as a program, with a backend of this test."""
    if importlib.util.find_spec("keyring") is None:
        needs.skip_or_fail("keyring is not installed", "pip install keyring")
    (tmp_path / "test_backend.py").write_text(BACKEND)
    logins = {service.format(port=site.port): ["me", SECRET]}
    (tmp_path / "logins.json").write_text(json.dumps(logins))
    environment = {
        **os.environ,
        "SSL_CERT_FILE": str(bundle),
        "PYTHONPATH": str(tmp_path),
        "PYTHON_KEYRING_BACKEND": "test_backend.Backend",
        "TEST_KEYRING": str(tmp_path / "logins.json"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    url = site.url("files/trl.whl").replace("https://", f"https://{user}")
    done = subprocess.run(
        [sys.executable, "-c", FETCH, url, way], env=environment, capture_output=True, check=False
    )
    assert done.stdout == WHEEL, done.stderr.decode()
    assert SECRET.encode() not in done.stderr


def test_keyring_without_credentials_is_reported(
    bundle: Path, site: FileSite, tmp_path: Path
) -> None:
    environment = {**os.environ, "SSL_CERT_FILE": str(bundle)}
    done = subprocess.run(
        [sys.executable, "-c", FETCH, site.url("files/trl.whl"), "module"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "401" in done.stderr
    assert len(site.received_requests("files/trl.whl")) == 1


# -- secrets


def shown(error: BaseException) -> str:
    """The complete text of an error, including its causes, as in a traceback."""
    texts = []
    part: BaseException | None = error
    while part is not None:
        texts.append(f"{part} {part.args} {getattr(part, 'hint', '')}")
        part = part.__cause__ or (None if part.__suppress_context__ else part.__context__)
    return "\n".join(texts)


@pytest.mark.parametrize(
    "path", ["files/none.whl", "files/trl.whl", "files/cut.whl", "files/busy.whl"]
)
def test_output_contains_no_secrets(
    path: str,
    bundle: Path,
    site: FileSite,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Every kind of failure is tested with --verbose and debug logs."""
    caplog.set_level("DEBUG")
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    monkeypatch.setattr(console, "verbosity", 1)
    site.files |= {"files/trl.whl": WHEEL[::-1], "files/cut.whl": WHEEL}
    if "cut" in path:
        site.cuts = [0] * 10
    if "busy" in path:
        site.refusals = [(503, {})] * 10
    url = site.url(path, f"me:{ENCODED}") + "?signature=s1gned"
    with pytest.raises(ImgbuildError) as caught:
        download(tmp_path, impatient(), url)
    out, err = capfd.readouterr()
    logged = "\n".join(record.getMessage() for record in caplog.records)
    everything = shown(caught.value) + out + err + logged
    assert "localhost" in everything
    assert not any(secret in everything for secret in (SECRET, ENCODED, "s1gned"))
    for file in (tmp_path / "cache").rglob("*"):
        assert file.is_dir() or SECRET.encode() not in file.read_bytes()


def test_wrong_password_is_not_shown(
    bundle: Path, site: FileSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    with pytest.raises(RequestRefused) as caught:
        impatient().fetch_bytes(site.url("files/trl.whl", "me:wr0ng-one"))
    assert caught.value.status == 401
    assert "wr0ng-one" not in shown(caught.value)
