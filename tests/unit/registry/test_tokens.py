"""Tests requesting, sending and renewing registry tokens."""

from __future__ import annotations

import base64
import json
import logging
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic

import pytest

from imgbuild.errors import FetchFailed, ImgbuildError, InputError
from imgbuild.oci.documents import MANIFEST, Descriptor
from imgbuild.registry import logins, tokens, uploads
from imgbuild.registry.client import RegistryClient, UploadOutcome, bytes_source
from imgbuild.registry.image_reference import HUB, ImageReference
from imgbuild.registry.logins import RegistryLogin
from imgbuild.system.console import console
from tests.support import memory_registry
from tests.support.memory_registry import SECRET, Fault, Registry
from tests.support.rows import each_row

LOGIN = ("me", "s3cr3t-word")
DATA = random.Random(7).randbytes(200_000)
BLOB = bytes_source(DATA)
WHOLE = Descriptor(media_type="x", digest=BLOB.digest, size=BLOB.size)


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "CHUNK", 60_000)


@pytest.fixture(name="registry")
def _registry(request: pytest.FixtureRequest) -> Iterator[Registry]:
    manners = getattr(request, "param", {"auth": "bearer", "login": LOGIN})
    with memory_registry.serve(Registry(**manners)) as registry:
        yield registry


def write_config(folder: Path, **content: object) -> None:
    (folder / "docker").mkdir(exist_ok=True)
    (folder / "docker/config.json").write_text(json.dumps(content))


def log_in(folder: Path, host: str, login: tuple[str, str] = LOGIN) -> None:
    auth = base64.b64encode(":".join(login).encode()).decode()
    write_config(folder, auths={host: {"auth": auth}})


def client() -> RegistryClient:
    return RegistryClient(attempts=3, first_wait=0.001, timeout=(5, 5))


@pytest.mark.parametrize(
    "registry",
    [{"auth": "basic", "login": LOGIN}, {"auth": "bearer", "login": LOGIN}, {"auth": "bearer"}],
    indirect=True,
)
def test_push_and_pull_support_every_authentication_scheme(registry, tmp_path):
    if registry.login:
        log_in(tmp_path, registry.host)
    repository = registry.repository("me/x")
    assert client().upload_blob(repository, BLOB) is UploadOutcome.UPLOADED
    assert client().blob(repository, WHOLE) == DATA
    assert set(registry.granted) <= {("repository:me/x:pull",), ("repository:me/x:pull,push",)}


def test_push_of_several_blobs_uses_one_token(registry, tmp_path):
    log_in(tmp_path, registry.host)
    pusher = client()
    for number in range(3):
        pusher.upload_blob(registry.repository("me/x"), bytes_source(b"%d" % number))
    assert registry.granted == [("repository:me/x:pull,push",)]


def test_threads_share_a_registry_token(registry, tmp_path):
    log_in(tmp_path, registry.host)
    pusher, sources = client(), [bytes_source(b"%d" % number) for number in range(16)]
    with ThreadPoolExecutor(8) as threads:
        done = threads.map(
            lambda source: pusher.upload_blob(registry.repository("me/x"), source), sources
        )
        assert list(done) == [UploadOutcome.UPLOADED] * len(sources)
    assert {digest for _, digest in registry.blobs} == {source.digest for source in sources}
    assert registry.granted == [("repository:me/x:pull,push",)]


def test_mount_requests_token_scopes_of_both_repositories(registry, tmp_path):
    log_in(tmp_path, registry.host)
    client().upload_blob(registry.repository("me/other"), BLOB)
    repository, other = registry.repository("me/x"), registry.repository("me/other")
    assert client().mount(repository, BLOB.digest, BLOB.size, other)
    assert ("repository:me/x:pull,push", "repository:me/other:pull") in registry.granted


def test_delete_and_catalog_request_their_token_scopes(registry, tmp_path):
    log_in(tmp_path, registry.host)
    repository = registry.repository("me/x")
    digest = client().put_manifest(repository, b"{}", MANIFEST)
    assert client().delete(repository, digest)
    assert list(client().repositories(registry.host)) == []
    assert registry.granted[-2:] == [("repository:me/x:pull,delete",), ("registry:catalog:*",)]


@pytest.mark.parametrize("uses", [1, 2, 3])
@pytest.mark.parametrize("chunk", [None, 60_000])
def test_token_expiring_during_upload_is_renewed(registry, tmp_path, uses, chunk):
    log_in(tmp_path, registry.host)
    registry.token_uses = uses
    pusher = RegistryClient(attempts=3, first_wait=0.001, chunk=chunk)
    assert pusher.upload_blob(registry.repository("me/x"), BLOB) is UploadOutcome.UPLOADED
    assert registry.blobs["me/x", BLOB.digest] == DATA
    assert len(registry.granted) > 1


def test_token_expiring_during_resumed_upload_is_renewed(registry, tmp_path):
    log_in(tmp_path, registry.host)
    registry.token_uses = 3
    registry.faults.append(Fault("PUT .*/uploads/", cut_request=1000))
    registry.faults.append(Fault("PATCH .*/uploads/", cut_request=1000))
    counted: list[int] = []
    client().upload_blob(registry.repository("me/x"), BLOB, advance=counted.append)
    assert registry.blobs["me/x", BLOB.digest] == DATA
    assert sum(counted) == BLOB.size


def test_registry_token_is_renewed_before_it_expires(registry, tmp_path, monkeypatch):
    log_in(tmp_path, registry.host)
    registry.token_life = 1000
    pusher = client()
    pusher.upload_blob(registry.repository("me/x"), bytes_source(b"a"))
    now = monotonic()
    monkeypatch.setattr(tokens, "monotonic", lambda: now + 700)
    pusher.upload_blob(registry.repository("me/x"), bytes_source(b"b"))
    assert len(registry.granted) == 1
    monkeypatch.setattr(tokens, "monotonic", lambda: now + 900)
    pusher.upload_blob(registry.repository("me/x"), bytes_source(b"c"))
    assert len(registry.granted) == 2
    # The expired token was not used, so no body was sent twice.
    sent = registry.received_requests("/v2/")
    assert [request for request in sent if "Authorization" not in request.headers] == sent[:1]


@pytest.mark.parametrize(
    "registry", [{"auth": "bearer", "identity": "identity-secret"}], indirect=True
)
def test_identity_token_is_exchanged_for_an_access_token(registry, tmp_path):
    entry = {"auth": base64.b64encode(b"00000000:").decode(), "identitytoken": "identity-secret"}
    write_config(tmp_path, auths={registry.host: entry})
    client().upload_blob(registry.repository("me/x"), BLOB)
    assert registry.granted == [("repository:me/x:pull,push",)]
    assert all(
        "identity-secret" not in f"{request.path} {request.headers}"
        for request in registry.requests
    )


def test_configured_registry_token_is_used_unchanged(registry, tmp_path):
    registry.tokens["my-own-token"] = (("repository:me/x:pull,push",), None)
    write_config(tmp_path, auths={registry.host: {"registrytoken": "my-own-token"}})
    client().upload_blob(registry.repository("me/x"), BLOB)
    assert registry.received_requests("/token") == []


# -- recipients


@pytest.mark.parametrize("locations", ["absolute", "foreign"])
def test_registry_token_is_not_sent_to_other_servers(registry, tmp_path, locations):
    log_in(tmp_path, registry.host)
    registry.redirects, registry.locations = True, locations
    repository = registry.repository("me/x")
    client().upload_blob(repository, BLOB)
    assert client().blob(repository, WHOLE) == DATA
    client().download(repository, WHOLE, tmp_path / "blob")
    assert (tmp_path / "blob").read_bytes() == DATA
    away = [request for request in registry.requests if request.server == "storage"]
    assert away
    assert [request for request in away if "Authorization" in request.headers] == []


@pytest.mark.parametrize("entry", [{"auth": base64.b64encode(b"me:word").decode()},
                                   {"identitytoken": "word-token"}])  # fmt: skip
def test_credentials_are_not_sent_to_token_server_without_tls(registry, tmp_path, entry):
    write_config(tmp_path, auths={registry.host: entry})
    registry.realm = f"http://{registry.storage}/token"
    with pytest.raises(FetchFailed, match="does not use TLS") as caught:
        client().upload_blob(registry.repository("me/x"), BLOB)
    assert "word" not in caught.value.message
    assert [request for request in registry.requests if request.server == "storage"] == []


@pytest.mark.parametrize("login", [None, ("me", "wrong-word")])
def test_error_for_an_unauthorized_request_has_a_login_hint(registry, tmp_path, login):
    if login:
        log_in(tmp_path, registry.host, login)
    with pytest.raises(FetchFailed, match="401 Unauthorized") as caught:
        client().resolve(ImageReference(registry.host, "me/x", "one"))
    assert (
        caught.value.hint
        == f"run docker login {registry.host} with an account that has this permission"
    )
    assert "wrong-word" not in caught.value.message


def test_token_errors_contain_no_token(registry, tmp_path):
    log_in(tmp_path, registry.host)

    def _repeat(answer: memory_registry.Answer) -> None:
        words = {"code": "DENIED", "message": f"{list(registry.tokens)} {LOGIN} are no good"}
        answer.status, answer.body = 403, json.dumps({"errors": [words]}).encode()

    registry.faults.append(Fault("POST .*/uploads/", edit=_repeat))
    with pytest.raises(ImgbuildError, match="are no good") as caught:
        client().upload_blob(registry.repository("me/x"), BLOB)
    shown = caught.value.message + str(caught.value.hint)
    assert [word for word in (*registry.tokens, LOGIN[1], SECRET) if word in shown] == []


@pytest.mark.parametrize("locations", ["absolute", "relative", "foreign"])
def test_registry_logs_contain_no_secrets(registry, tmp_path, capfd, caplog, locations):
    """Debug logs of imgbuild and of libraries are checked for any fault."""
    caplog.set_level(logging.DEBUG)
    console.configure(verbosity=2, json=False)
    log_in(tmp_path, registry.host)
    registry.locations, registry.redirects, registry.token_uses = locations, True, 4
    registry.faults += [
        Fault("PUT .*(uploads|elsewhere)/", cut_request=1000),
        Fault("PATCH .*(uploads|elsewhere)/", cut_request=10),
        Fault("PATCH .*(uploads|elsewhere)/", status=500),
        Fault("GET .*/stored/", cut_answer=1000),
        Fault("GET /token", status=429),
    ]
    patient = RegistryClient(first_wait=0.001, timeout=(5, 5), reporter=console)
    patient.upload_blob(registry.repository("me/x"), BLOB)
    patient.download(registry.repository("me/x"), WHOLE, tmp_path / "blob")
    output = caplog.text + "".join(capfd.readouterr())
    console.configure(verbosity=0, json=False)
    assert "retrying" in output
    secrets = (SECRET, LOGIN[1], base64.b64encode(":".join(LOGIN).encode()).decode())
    assert [word for word in (*secrets, *registry.tokens) if word in output] == []


def test_busy_token_server_is_retried(registry, tmp_path):
    log_in(tmp_path, registry.host)
    registry.faults.append(Fault("GET /token", times=2, status=503))
    client().upload_blob(registry.repository("me/x"), BLOB)
    assert registry.blobs["me/x", BLOB.digest] == DATA


def test_invalid_token_response_is_refused(registry, tmp_path):
    log_in(tmp_path, registry.host)
    registry.faults.append(Fault("GET /token", times=9, status=200, body=b"<html>hello</html>"))
    with pytest.raises(FetchFailed, match=f"http://{registry.host}:?.* returned no token"):
        client().upload_blob(registry.repository("me/x"), BLOB)


# -- challenges and scopes


@each_row(
    ("header", "expected"),
    [
        ('Basic realm="x"', [("basic", {"realm": "x"})]),
        ("Basic", [("basic", {})]),
        (
            'Bearer realm="https://a/t?x=1,2",service="s t",scope="repository:a:pull,push"',
            [("bearer", {"realm": "https://a/t?x=1,2", "service": "s t",
                         "scope": "repository:a:pull,push"})],
        ),
        ('BEARER realm = "a" , service=plain', [("bearer", {"realm": "a", "service": "plain"})]),
        (
            'Basic realm="x", Bearer realm="y",service="z"',
            [("basic", {"realm": "x"}), ("bearer", {"realm": "y", "service": "z"})],
        ),
        ('Negotiate, Basic realm="x"', [("negotiate", {}), ("basic", {"realm": "x"})]),
        (r'Basic realm="a \"b\" c"', [("basic", {"realm": 'a "b" c'})]),
        ("", []),
    ],
)  # fmt: skip
def test_authentication_challenges_are_parsed(header, expected):
    assert [
        (challenge.scheme, challenge.fields) for challenge in tokens.parse_challenges(header)
    ] == expected


def test_token_scopes_of_the_same_resource_are_merged():
    scopes = ("repository:a:pull", "repository:b/c:pull", "repository:a:pull,push", "registry:c:*")
    assert tokens.merge_scopes(scopes) == (
        "repository:a:pull,push", "repository:b/c:pull", "registry:c:*"
    )  # fmt: skip


# -- config.json


AUTH = base64.b64encode(b"me:pa:ss").decode()


@pytest.mark.parametrize(
    "name", ["h:5000", "https://h:5000", "https://h:5000/", "https://h:5000/v2/", "http://h:5000"]
)
def test_credentials_are_found_under_alternative_names(tmp_path, name):
    write_config(tmp_path, auths={name: {"auth": AUTH}, "h": {"auth": "bad"}})
    assert logins.find_registry_login("h:5000") == RegistryLogin(("me", "pa:ss"))
    assert logins.find_registry_login("other") == RegistryLogin()


@pytest.mark.parametrize("name", [logins.HUB_LOGIN, HUB])
def test_docker_hub_credentials_are_found_under_all_names(tmp_path, name):
    write_config(tmp_path, auths={name: {"auth": AUTH}})
    assert (
        logins.find_registry_login("registry-1.docker.io")
        == logins.find_registry_login(HUB)
        == RegistryLogin(("me", "pa:ss"))
    )
    assert logins.find_registry_login("ghcr.io") == RegistryLogin()


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({}, RegistryLogin()),
        ({"username": "me", "password": "x"}, RegistryLogin(("me", "x"))),
        ({"auth": base64.b64encode(b"me:x\0\0").decode()}, RegistryLogin(("me", "x"))),
        ({"identitytoken": "t"}, RegistryLogin(None, "t")),
        ({"registrytoken": "t"}, RegistryLogin(None, "", "t")),
    ],
)
def test_docker_configuration_entries_are_read(tmp_path, entry, expected):
    write_config(tmp_path, auths={"h": entry}, HttpHeaders={"x": "y"})
    assert logins.find_registry_login("h") == expected


@pytest.mark.parametrize("named", [True, False])
def test_podman_credentials_are_read(tmp_path, monkeypatch, named):
    path = tmp_path / ("elsewhere.json" if named else "run/containers/auth.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"auths": {"h": {"auth": AUTH}, "both": {"auth": AUTH}}}))
    if named:
        monkeypatch.setenv("REGISTRY_AUTH_FILE", str(path))
    log_in(tmp_path, "both")
    assert logins.find_registry_login("h") == RegistryLogin(("me", "pa:ss"))
    assert logins.find_registry_login("both") == RegistryLogin(LOGIN)


def test_no_credentials_are_sent_without_configuration():
    assert logins.find_registry_login("h") == RegistryLogin()


@pytest.mark.parametrize("text", ["{", '{"auths": 5}', "\xff"])
def test_error_for_an_unreadable_configuration_has_no_secrets(tmp_path, text):
    write_config(tmp_path)
    (tmp_path / "docker/config.json").write_text(text, encoding="latin-1")
    with pytest.raises(InputError, match=r"config\.json is not a valid Docker configuration"):
        logins.find_registry_login("h")


@pytest.mark.parametrize("auth", ["%%%", "ß", base64.b64encode(b"no-colon").decode()])
def test_error_for_unreadable_credentials_has_no_secrets(tmp_path, auth):
    write_config(tmp_path, auths={"h": {"auth": auth}})
    with pytest.raises(InputError, match="unreadable credentials for h") as caught:
        logins.find_registry_login("h")
    assert "no-colon" not in caught.value.message


def test_missing_credential_helper_is_reported(tmp_path, capsys):
    write_config(tmp_path, credsStore="nowhere", auths={"h": {"auth": AUTH}})
    assert logins.find_registry_login("h", console) == RegistryLogin(("me", "pa:ss"))
    assert "docker-credential-nowhere, which is not installed" in " ".join(
        capsys.readouterr().err.split()
    )
