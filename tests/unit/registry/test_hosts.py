"""Tests the servers used for a registry host according to hosts.toml."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from imgbuild.errors import FetchFailed, InputError, IntegrityError
from imgbuild.oci.documents import Descriptor
from imgbuild.registry import hosts
from imgbuild.registry.client import RegistryClient, bytes_source
from imgbuild.registry.hosts import HostCertificates, HostEndpoint, host_endpoints
from imgbuild.registry.image_reference import ImageReference
from imgbuild.system.console import console
from tests.support import memory_registry
from tests.support.memory_registry import Fault, Registry, change_header
from tests.support.rows import each_row

BLOB = bytes_source(b"some bytes " * 1000)
WHOLE = Descriptor(media_type="x", digest=BLOB.digest, size=BLOB.size)


@pytest.fixture(name="mirror")
def _mirror() -> Iterator[Registry]:
    with memory_registry.serve(Registry()) as mirror:
        yield mirror


@pytest.fixture(name="authority")
def _authority(monkeypatch: pytest.MonkeyPatch) -> trustme.CA:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    return trustme.CA(key_type=trustme.KeyType.ECDSA)


def describe(folder: Path, host: str, text: str) -> Path:
    place = folder / "config/imgbuild/certs.d" / host
    place.mkdir(parents=True, exist_ok=True)
    (place / "hosts.toml").write_text(text)
    return place


def client(**options: object) -> RegistryClient:
    fixed = {"attempts": 2, "first_wait": 0.001, "timeout": (5, 5), "reporter": console}
    return RegistryClient(**fixed, **options)  # type: ignore[arg-type]


# -- URLs


@each_row(
    ("host", "address"),
    [
        ("docker.io", "https://registry-1.docker.io/v2"),
        ("ghcr.io", "https://ghcr.io/v2"),
        ("h:5000", "https://h:5000/v2"),
        ("localhost", "http://localhost/v2"),
        ("localhost:5000", "http://localhost:5000/v2"),
        ("127.0.0.1:5000", "http://127.0.0.1:5000/v2"),
        ("[::1]:5000", "http://[::1]:5000/v2"),
        ("localhost.example.com", "https://localhost.example.com/v2"),
        ("127.0.0.1.example.com", "https://127.0.0.1.example.com/v2"),
        ("plain:80", "http://plain:80/v2"),
    ],
)
def test_registry_uses_plain_http_for_localhost_or_on_request(host, address):
    assert host_endpoints(host, ("plain:80",), ()) == (HostEndpoint(host, address),)


HOSTS = """
server = "https://registry.example.com"
[host."https://mirror.example.com"]
  capabilities = ["pull", "resolve"]
  ca = "mirror.crt"
  [host."https://mirror.example.com".header]
    x-one = "1"
    x-many = ["a", "b"]
[host."https://other.example.com/v2/proxy"]
  capabilities = ["pull"]
  override_path = true
  ca = ["/a.crt", "b.crt"]
  client = [["c.crt", "c.key"], "both.pem", ["d.pem", ""]]
[host."localhost:5000"]
"""


def test_hosts_file_of_containerd_is_read(tmp_path):
    place = describe(tmp_path, "example.com", HOSTS)
    assert host_endpoints("example.com") == (
        HostEndpoint(
            "example.com", "https://mirror.example.com/v2", ("pull", "resolve"),
            {"x-one": "1", "x-many": "a, b"}, HostCertificates((place / "mirror.crt",)), True,
        ),
        HostEndpoint(
            "example.com", "https://other.example.com/v2/proxy", ("pull",), {},
            HostCertificates(
                (Path("/a.crt"), place / "b.crt"),
                ((place / "c.crt", place / "c.key"), (place / "both.pem", None),
                 (place / "d.pem", None)),
            ), True,
        ),
        HostEndpoint("example.com", "http://localhost:5000/v2", mirror=True),
        HostEndpoint("example.com", "https://registry.example.com/v2"),
    )  # fmt: skip


def test_registry_host_is_the_last_endpoint_without_a_server_setting(tmp_path):
    describe(tmp_path, "docker.io", '[host."https://m"]\n')
    assert [endpoint.address for endpoint in host_endpoints("docker.io")] == [
        "https://m/v2", "https://registry-1.docker.io/v2"
    ]  # fmt: skip


def test_default_endpoint_is_used_without_a_hosts_file(tmp_path):
    describe(tmp_path, "_default", '[host."https://m"]\n')
    describe(tmp_path, "own.example.com", "")
    assert [endpoint.address for endpoint in host_endpoints("h")] == [
        "https://m/v2",
        "https://h/v2",
    ]
    assert [endpoint.address for endpoint in host_endpoints("own.example.com")] == [
        "https://own.example.com/v2"
    ]


def test_first_configuration_folder_with_the_host_is_used(tmp_path):
    places = [tmp_path / name for name in "abc"]
    (tmp_path / "b/h").mkdir(parents=True)
    (tmp_path / "b/h/ca.crt").touch()
    (tmp_path / "c/h").mkdir(parents=True)
    (tmp_path / "c/h/hosts.toml").write_text('server = "https://other"')
    certificates = HostCertificates((tmp_path / "b/h/ca.crt",))
    assert host_endpoints("h", (), places) == (
        HostEndpoint("h", "https://h/v2", certificates=certificates),
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("server = ", "Invalid value"),
        ("server = 5", "Expected `str`"),
        ('server = "ftp://x"', "'ftp://x' is not a registry address"),
        ('server = "https://"', "is not a registry address"),
        ('[host."https://m"]\ncapabilities = ["pul"]', "'pul' is not a known capability"),
        ('[host."https://m"]\nca = 5', "ca"),
    ],
)
def test_invalid_hosts_file_is_reported(tmp_path, text, words):
    place = describe(tmp_path, "h", text)
    with pytest.raises(InputError) as caught:
        host_endpoints("h")
    assert caught.value.message.startswith(f"{place}/hosts.toml: ")
    assert words in caught.value.message


def test_default_host_folders_are_searched(tmp_path):
    assert hosts.configuration_folders({"XDG_CONFIG_HOME": str(tmp_path)}) == (
        tmp_path / "imgbuild/certs.d", Path("/etc/containerd/certs.d"), Path("/etc/docker/certs.d")
    )  # fmt: skip
    assert hosts.configuration_folders({})[0] == Path.home() / ".config/imgbuild/certs.d"


# -- mirrors


def mirrored(folder: Path, registry: Registry, mirror: Registry, more: str = "") -> None:
    words = '["pull", "resolve"]'
    text = f'[host."http://{mirror.host}"]\ncapabilities = {words}\n{more}'
    describe(folder, registry.host, text)


def test_registry_mirror_is_queried_first_with_the_host_name(tmp_path, registry, mirror):
    mirrored(tmp_path, registry, mirror)
    client().upload_blob(registry.repository("me/x"), BLOB)
    assert mirror.requests == []
    client().upload_blob(mirror.repository("me/x"), BLOB)
    before = len(registry.requests)
    assert client().blob(registry.repository("me/x"), WHOLE) == BLOB.open(0).read()
    assert len(registry.requests) == before
    assert mirror.requests[-1].path == f"/v2/me/x/blobs/{BLOB.digest}?ns={registry.host}"


@pytest.mark.parametrize("manner", ["lacks it", "lies", "is broken", "refuses"])
def test_content_missing_in_a_registry_mirror_is_read_from_the_registry(
    tmp_path, registry, mirror, manner
):
    mirrored(tmp_path, registry, mirror)
    client().upload_blob(registry.repository("me/x"), BLOB)
    if manner == "lies":
        mirror.blobs["me/x", BLOB.digest] = b"x" * BLOB.size
    elif manner != "lacks it":
        status = 500 if manner == "is broken" else 403
        mirror.faults.append(Fault(".", times=99, status=status))
    assert client().blob(registry.repository("me/x"), WHOLE) == BLOB.open(0).read()
    client().download(registry.repository("me/x"), WHOLE, tmp_path / "blob")
    assert (tmp_path / "blob").read_bytes() == BLOB.open(0).read()
    assert mirror.requests


def test_unreachable_registry_mirror_is_skipped(tmp_path, registry):
    describe(tmp_path, registry.host, '[host."http://localhost:1"]')
    assert client().resolve(ImageReference(registry.host, "me/x", "one")) is None


def test_registry_error_is_reported_instead_of_the_mirror_error(tmp_path, registry, mirror):
    mirrored(tmp_path, registry, mirror)
    registry.blobs["me/x", BLOB.digest] = b"x" * BLOB.size
    with pytest.raises(IntegrityError, match=registry.host):
        client().blob(registry.repository("me/x"), WHOLE)


def test_push_does_not_use_a_registry_mirror(tmp_path, registry, mirror):
    mirrored(tmp_path, registry, mirror)
    client().upload_blob(mirror.repository("me/x"), BLOB)
    before = len(mirror.requests)
    pusher = client(origin=True)
    pusher.upload_blob(registry.repository("me/x"), BLOB)
    assert pusher.resolve(ImageReference(registry.host, "me/x", "one")) is None
    assert pusher.has(registry.repository("me/x"), BLOB.digest) == BLOB.size
    assert len(mirror.requests) == before


def test_push_to_an_endpoint_without_the_push_capability_is_refused(tmp_path, registry):
    describe(tmp_path, registry.host, 'capabilities = ["pull"]')
    with pytest.raises(
        FetchFailed, match=f"no endpoint of {registry.host} has the capability push"
    ):
        client().upload_blob(registry.repository("me/x"), BLOB)


def test_configured_headers_are_sent_only_to_their_endpoint(tmp_path, registry, mirror):
    mirrored(tmp_path, registry, mirror, f'[host."http://{mirror.host}".header]\nx-key = "k"\n')
    mirror.redirects = True
    client().upload_blob(mirror.repository("me/x"), BLOB)
    client().upload_blob(registry.repository("me/x"), BLOB)
    del mirror.requests[:]
    client().blob(registry.repository("me/x"), WHOLE)
    assert [(request.server, request.headers.get("x-key")) for request in mirror.requests] == [
        ("registry", "k"), ("storage", None)
    ]  # fmt: skip
    assert [request for request in registry.requests if "x-key" in request.headers] == []


def test_configured_headers_are_not_sent_after_a_redirect_from_another_registry(
    tmp_path, registry, mirror
):
    describe(tmp_path, mirror.host, f'server = "http://{mirror.host}"\n[header]\nx-key = "k"\n')
    pusher = client()
    pusher.upload_blob(mirror.repository("me/x"), BLOB)
    assert {request.headers.get("x-key") for request in mirror.requests} == {"k"}
    del mirror.requests[:]
    place = f"http://{mirror.host}/v2/me/x/blobs/uploads/none"
    registry.faults.append(Fault("POST", times=9, edit=change_header("Location", place)))
    with pytest.raises(FetchFailed):
        pusher.upload_blob(registry.repository("me/x"), BLOB)
    assert {request.headers.get("x-key") for request in mirror.requests} == {None}


# -- certificates


def secure(authority: trustme.CA, *, clients: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    if clients:
        context.verify_mode = ssl.CERT_REQUIRED
        authority.configure_trust(context)
    return context


def there_and_back(registry: Registry, **options: object) -> None:
    repository = registry.repository("me/x")
    client(**options).upload_blob(repository, BLOB)
    assert client(**options).blob(repository, WHOLE) == BLOB.open(0).read()


@pytest.mark.parametrize("form", ["hosts.toml", "docker", "environment"])
def test_custom_certificate_authority_is_trusted(tmp_path, monkeypatch, authority, form):
    """The authority also applies to the storage and the token server of the registry."""
    manners = Registry(redirects=True, locations="foreign", auth="bearer")
    with memory_registry.serve(manners, secure(authority)) as registry:
        describe(tmp_path, registry.host, f'server = "https://{registry.host}"\nca = "ca.crt"')
        place = tmp_path / "config/imgbuild/certs.d" / registry.host
        authority.cert_pem.write_to_path(str(place / "ca.crt"))
        if form != "hosts.toml":
            (place / "hosts.toml").write_text(f'server = "https://{registry.host}"\n')
        if form == "docker":  # which has no plain HTTP for this machine
            (place / "hosts.toml").unlink()
            monkeypatch.setattr(hosts, "LOCAL_HOST", re.compile("nothing"))
        if form == "environment":
            monkeypatch.setenv("SSL_CERT_FILE", str(place / "ca.crt"))
        there_and_back(registry)
        assert {request.server for request in registry.requests} == {"registry", "storage"}
        assert registry.granted


@pytest.mark.parametrize("form", ["pair", "single file", "docker"])
def test_client_certificate_is_used(tmp_path, monkeypatch, authority, form):
    issued = authority.issue_cert("me@example.com")
    with memory_registry.serve(Registry(), secure(authority, clients=True)) as registry:
        words = {"pair": '[["me.cert", "me.key"]]', "single file": '"both.pem"', "docker": "[]"}
        text = f'server = "https://{registry.host}"\nca = "ca.crt"\nclient = {words[form]}'
        place = describe(tmp_path, registry.host, text)
        authority.cert_pem.write_to_path(str(place / "ca.crt"))
        issued.private_key_pem.write_to_path(str(place / "me.key"))
        issued.cert_chain_pems[0].write_to_path(str(place / "me.cert"))
        issued.private_key_and_cert_chain_pem.write_to_path(str(place / "both.pem"))
        if form == "docker":
            (place / "hosts.toml").unlink()
            monkeypatch.setattr(hosts, "LOCAL_HOST", re.compile("nothing"))
        there_and_back(registry)


def test_client_certificate_is_sent_only_to_its_registry(tmp_path, authority):
    """The other server would also accept this certificate."""
    manners = Registry(locations="foreign")
    with memory_registry.serve(manners, secure(authority, clients=True)) as registry:
        text = f'server = "https://{registry.host}"\nca = "ca.crt"\nclient = "both.pem"'
        place = describe(tmp_path, registry.host, text)
        authority.cert_pem.write_to_path(str(place / "ca.crt"))
        issued = authority.issue_cert("me@example.com")
        issued.private_key_and_cert_chain_pem.write_to_path(str(place / "both.pem"))
        with pytest.raises(FetchFailed):
            there_and_back(registry)
        assert {request.server for request in registry.requests} == {"registry"}
        assert registry.begun


def test_unknown_certificate_authority_is_refused(tmp_path, authority):
    with memory_registry.serve(Registry(), secure(authority)) as registry:
        describe(tmp_path, registry.host, f'server = "https://{registry.host}"')
        with pytest.raises(FetchFailed, match="the certificate is not trusted"):
            there_and_back(registry)
        assert registry.requests == []


def test_certificate_authority_applies_only_to_its_registry(tmp_path, authority):
    with (
        memory_registry.serve(Registry(), secure(authority)) as registry,
        memory_registry.serve(Registry(), secure(authority)) as other,
    ):
        place = describe(
            tmp_path, registry.host, f'server = "https://{registry.host}"\nca = "ca.crt"'
        )
        authority.cert_pem.write_to_path(str(place / "ca.crt"))
        describe(tmp_path, other.host, f'server = "https://{other.host}"')
        shared = client()
        shared.upload_blob(registry.repository("me/x"), BLOB)
        with pytest.raises(FetchFailed, match="the certificate is not trusted"):
            shared.upload_blob(other.repository("me/x"), BLOB)


@pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning")
def test_certificate_verification_is_skipped_only_if_configured(tmp_path, authority, capsys):
    with memory_registry.serve(Registry(), secure(authority)) as registry:
        text = f'server = "https://{registry.host}"\nskip_verify = true'
        describe(tmp_path, registry.host, text)
        there_and_back(registry)
    assert "is not verified" in " ".join(capsys.readouterr().err.split())


def test_error_for_an_invalid_certificate_names_the_file(tmp_path):
    (describe(tmp_path, "h", 'ca = "ca.crt"') / "ca.crt").write_text("nothing")
    with pytest.raises(InputError, match=r"cannot use the certificate .*ca\.crt"):
        client().resolve(ImageReference("h", "me/x", "one"))


def test_location_without_tls_is_refused_unless_it_is_the_same_host(tmp_path, authority):
    with memory_registry.serve(Registry(), secure(authority)) as registry:
        text = f'server = "https://{registry.host}"\nca = "ca.crt"'
        place = describe(tmp_path, registry.host, text)
        authority.cert_pem.write_to_path(str(place / "ca.crt"))

        def _without_tls(answer: memory_registry.Answer) -> None:
            answer.headers["Location"] = answer.headers["Location"].replace("https:", "http:")

        def _elsewhere(answer: memory_registry.Answer) -> None:
            answer.headers["Location"] = "http://127.0.0.1:9/secret-path"

        registry.faults.append(Fault("POST .*/uploads/", edit=_without_tls))
        there_and_back(registry)
        registry.faults.append(Fault("POST .*/uploads/", edit=_elsewhere))
        with pytest.raises(FetchFailed, match=r"redirects to 127\.0\.0\.1 without") as caught:
            client().upload_blob(registry.repository("me/y"), BLOB)
        assert "secret" not in caught.value.message
