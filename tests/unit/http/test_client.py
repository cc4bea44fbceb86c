"""Tests reading pages and ranges from a local server, credentials, redirects and errors."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imgbuild.errors import FetchFailed, InputError
from imgbuild.http import credentials, session
from imgbuild.http.client import HttpClient, RequestRefused
from imgbuild.http.credentials import Credentials, redact_url, strip_login, url_host, url_origin
from tests.support.servers import FileSite, serve_site

DATA = bytes(range(256)) * 1000


@pytest.fixture(autouse=True)
def _direct(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    # No keyring: neither the program nor, if installed, the backend of the module.
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")


@pytest.fixture
def site() -> Iterator[FileSite]:
    with serve_site(FileSite(files={"x": DATA, "page": "<a>é</a>".encode()})) as site:
        yield site


@pytest.fixture
def http() -> HttpClient:
    return HttpClient(attempts=3, first_wait=0.001, timeout=(5, 5))


def write_netrc(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o600)


def test_page_is_read_from_a_server(http: HttpClient, site: FileSite) -> None:
    site.redirects["/old"] = "/page"
    page = http.text(site.url("old", "me:secret"), accept="text/html")
    assert (page.url, page.text, page.status) == (site.url("page"), "<a>é</a>", 200)
    assert site.received_requests("old")[0]["Accept"] == "text/html"


def test_transfer_compression_does_not_change_the_downloaded_bytes(
    http: HttpClient, site: FileSite
) -> None:
    site.compress = True
    site.files["long"] = "né ".encode() * 100_000
    assert http.text(site.url("long")).text == "né " * 100_000
    assert http.fetch_bytes(site.url("long")) == site.files["long"]
    assert http.fetch_part(site.url("long"), 4, 5) == site.files["long"][4:9]
    assert "gzip" in site.received_requests("long")[0]["Accept-Encoding"]


def test_error_for_a_missing_page_has_the_http_status(http: HttpClient, site: FileSite) -> None:
    with pytest.raises(RequestRefused) as caught:
        http.text(site.url("none"))
    assert caught.value.status == 404


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(start=st.integers(0, len(DATA)), length=st.integers(0, 3000), ranges=st.booleans())
def test_file_ranges_are_read(
    http: HttpClient, site: FileSite, start: int, length: int, ranges: bool
) -> None:
    site.ranges = ranges
    if start + length <= len(DATA):
        assert http.fetch_part(site.url("x"), start, length) == DATA[start : start + length]
    else:
        with pytest.raises(FetchFailed):
            http.fetch_part(site.url("x"), start, length)


@pytest.mark.parametrize("length", [1, 1000, len(DATA), len(DATA) + 5])
@pytest.mark.parametrize(("ranges", "suffix"), [(True, True), (True, False), (False, False)])
def test_range_at_the_end_of_a_file_is_read(
    http: HttpClient, site: FileSite, length: int, ranges: bool, suffix: bool
) -> None:
    site.ranges, site.suffix_ranges = ranges, suffix
    assert http.part_end(site.url("x"), length) == (DATA[-length:], len(DATA))


def test_request_is_retried_after_a_dropped_connection(http: HttpClient, site: FileSite) -> None:
    site.cuts = [1000]
    assert http.fetch_bytes(site.url("x")) == DATA


def test_unreachable_server_is_reported(http: HttpClient) -> None:
    with pytest.raises(FetchFailed, match="localhost:1/x: no connection") as caught:
        http.text("http://me:secret@localhost:1/x?signature=secret")
    assert "secret" not in caught.value.message
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "url", ["ftp://localhost/x", "localhost/x", "http://", "http://[::1/x", "http://h:p/"]
)
def test_invalid_url_is_refused(http: HttpClient, url: str) -> None:
    with pytest.raises(FetchFailed, match="not a supported URL"):
        http.text(url)


def test_redirect_loop_is_refused(http: HttpClient, site: FileSite) -> None:
    site.redirects["/round"] = "/round"
    with pytest.raises(FetchFailed, match="too many redirects"):
        http.text(site.url("round"))


def test_url_credentials_are_reused_for_the_same_server(http: HttpClient, site: FileSite) -> None:
    site.login = ("me@work", "pä:ss/w")
    assert http.fetch_bytes(site.url("x", "me%40work:p%C3%A4%3Ass%2Fw")) == DATA
    assert http.fetch_bytes(site.url("x")) == DATA
    assert len(site.requests) == 2


def test_credentials_are_not_sent_to_another_server(http: HttpClient, site: FileSite) -> None:
    with serve_site(FileSite(files={"y": b"other"})) as other:
        site.redirects["/away"] = other.url("y")
        assert http.fetch_bytes(site.url("away", "me:secret")) == b"other"
        assert "Authorization" in site.requests[0][2]
        assert "Authorization" not in other.requests[0][2]


def test_netrc_credentials_are_used(http: HttpClient, site: FileSite, tmp_path: Path) -> None:
    site.login = ("me", "secret")
    write_netrc(tmp_path / "netrc", "machine localhost login me password secret\n")
    assert http.fetch_bytes(site.url("x")) == DATA
    assert len(site.requests) == 1


def test_error_for_missing_credentials_has_a_hint(http: HttpClient, site: FileSite) -> None:
    site.login = ("me", "secret")
    with pytest.raises(RequestRefused) as caught:
        http.fetch_bytes(site.url("x", "me:wrong-one"))
    assert caught.value.status == 401
    assert "netrc" in str(caught.value.hint)
    assert "wrong-one" not in caught.value.message + str(caught.value.hint)


def test_error_for_an_unreadable_netrc_file_has_no_secrets(
    http: HttpClient, site: FileSite, tmp_path: Path
) -> None:
    write_netrc(tmp_path / "netrc", "machine localhost login me passwort hunter2\n")
    with pytest.raises(InputError, match="netrc") as caught:
        http.fetch_bytes(site.url("x"))
    assert "hunter2" not in caught.value.message
    assert "passwort" not in caught.value.message


def test_unreachable_proxy_is_reported(
    http: HttpClient, site: FileSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://me:hunter2@127.0.0.1:1")
    with pytest.raises(FetchFailed, match="cannot connect to the proxy") as caught:
        http.fetch_bytes(site.url("x"))
    assert "hunter2" not in caught.value.message
    assert site.requests == []
    monkeypatch.setenv("no_proxy", "localhost")
    assert http.fetch_bytes(site.url("x")) == DATA


def test_system_certificates_are_trusted_by_default() -> None:
    context = session.create_trust({})
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.check_hostname
    paths = ssl.get_default_verify_paths()
    assert context.cert_store_stats()["x509_ca"] > 0 or paths.capath


@pytest.mark.parametrize("name", session.BUNDLES[:3])
def test_error_names_the_missing_certificate_bundle(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"{name}, {tmp_path}/none"):
        session.create_trust({name: f"{tmp_path}/none"})


def test_error_names_the_certificate_bundle_without_certificates(tmp_path: Path) -> None:
    (tmp_path / "bundle").write_text("nothing")
    with pytest.raises(InputError, match="SSL_CERT_FILE"):
        session.create_trust({"SSL_CERT_FILE": f"{tmp_path}/bundle"})


# -- URLs and secrets

WORDS = st.text("abcXYZ019-_.~", min_size=3, max_size=12)


@given(name=WORDS, password=WORDS, query=WORDS, path=st.text("mnop/", max_size=9))
def test_redacted_urls_have_no_secrets(name: str, password: str, query: str, path: str) -> None:
    url = f"https://{name}:{password}@host.example:8443/{path}?token={query}#{query}"
    assert redact_url(url) == f"https://host.example:8443/{path}"
    assert strip_login(url) == f"https://host.example:8443/{path}?token={query}#{query}"
    assert url_host(url) == "host.example:8443"
    assert url_origin(url) == "https://host.example:8443"
    credentials = Credentials()
    assert credentials.find_login(url) == (name, password)
    assert credentials.find_login("https://host.example:8443/else") == (name, password)
    assert credentials.find_login("http://host.example:8443/else") is None
    assert credentials.find_login("https://host.example/else") is None
    assert "://host" in credentials.scrub_text(f"error at {url}")
    assert "***" in credentials.scrub_text(f"it said {password}")


def test_url_with_the_default_port_has_the_same_origin() -> None:
    assert url_origin("https://Host.Example/x") == url_origin("https://host.example:443/y")


def test_user_name_in_the_url_selects_the_netrc_entry(tmp_path: Path) -> None:
    write_netrc(tmp_path / "netrc", "machine h login me password secret\n")
    assert Credentials().find_login("https://h/x") == ("me", "secret")
    assert Credentials().find_login("https://me@h/x") == ("me", "secret")
    assert Credentials().find_login("https://you@h/x") is None


def test_keyring_is_queried_for_index_and_host() -> None:
    names = credentials._services("https://me:secret@h:8443/team/simple/torch/torch.whl")
    assert names[:2] == ["h:8443", "https://h:8443"]
    assert "https://h:8443/team/simple/" in names
    assert "h" in names
    assert not any("secret" in name or "torch.whl" in name for name in names)


def test_offline_client_reads_only_local_files(site: FileSite, tmp_path: Path) -> None:
    http = HttpClient(attempts=1, offline=True)
    for ask in (http.text, http.fetch_bytes, lambda url: http.fetch_part(url, 0, 1)):
        with pytest.raises(FetchFailed, match="/page is not in the cache") as caught:
            ask(site.url("page", "me:secret"))
        assert caught.value.hint == "run once without --offline"
        assert "secret" not in caught.value.message
    assert site.requests == []
    (tmp_path / "here").write_bytes(DATA)
    assert http.fetch_bytes((tmp_path / "here").as_uri()) == DATA
