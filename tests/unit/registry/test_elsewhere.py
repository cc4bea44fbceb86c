"""Tests that redirects of a registry carry no credentials of the user."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from imgbuild.errors import FetchFailed, ImgbuildError
from imgbuild.http.credentials import LoginPair
from imgbuild.oci import documents
from imgbuild.oci.documents import Descriptor
from imgbuild.registry import uploads
from imgbuild.registry.client import RegistryClient, bytes_source
from imgbuild.registry.image_reference import ImageReference, Repository
from tests.support import memory_registry
from tests.support.memory_registry import Fault, ReceivedRequest, Registry, change_header

MINE, VICTIMS = ("me", "my-own-word"), ("me", "victims-word")
DATA = bytes(200_000)
BLOB = bytes_source(DATA)
MANIFEST = b'{"manifests": []}'


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "CHUNK", 60_000)


@pytest.fixture(name="registry")
def _registry() -> Iterator[Registry]:
    """Yield the queried registry, which is hostile."""
    with memory_registry.serve(Registry(auth="basic", login=MINE)) as registry:
        yield registry


@pytest.fixture(name="victim", params=["basic", "bearer"])
def _victim(request: pytest.FixtureRequest) -> Iterator[Registry]:
    """Another registry, for which the user has credentials."""
    with memory_registry.serve(Registry(auth=request.param, login=VICTIMS)) as victim:
        yield victim


@pytest.fixture(name="logins", params=["config.json", "netrc", "keyring"])
def _logins(
    request: pytest.FixtureRequest,
    registry: Registry,
    victim: Registry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logins_by_host = {registry.host: MINE, victim.host: VICTIMS}
    if request.param == "netrc":  # it ignores ports: both are this machine
        (tmp_path / "netrc").write_text("machine localhost login me password victims-word\n")
        monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
        (tmp_path / "netrc").chmod(0o600)
        registry.login = VICTIMS
    elif request.param == "keyring":
        monkeypatch.setattr(
            "imgbuild.http.credentials._keyring_login",
            lambda url, *_: next(
                (logins_by_host[host] for host in logins_by_host if f"//{host}/" in url), None
            ),
        )
    else:
        write_config(tmp_path, logins_by_host)


def write_config(folder: Path, logins_by_host: dict[str, LoginPair]) -> None:
    (folder / "docker").mkdir(exist_ok=True)
    auths = {
        host: {"auth": base64.b64encode(":".join(login).encode()).decode()}
        for host, login in logins_by_host.items()
    }
    (folder / "docker/config.json").write_text(json.dumps({"auths": auths}))


def client(chunk: int | None = None) -> RegistryClient:
    return RegistryClient(attempts=2, first_wait=0.001, timeout=(5, 5), chunk=chunk)


def result(registry: Registry) -> list[ReceivedRequest]:
    return [request for request in registry.requests if "Authorization" in request.headers]


def holds_an_image(victim: Registry) -> None:
    """Store an image that an attacker could overwrite or delete."""
    victim.manifests["victim", memory_registry.sha256_digest(MANIFEST)] = (
        MANIFEST,
        documents.INDEX,
    )
    victim.tags["victim", "latest"] = memory_registry.sha256_digest(MANIFEST)


@pytest.mark.parametrize("user", ["", "me:guessed@"])
@pytest.mark.parametrize("chunk", [None, 60_000])
@pytest.mark.usefixtures("logins")
def test_upload_redirected_to_another_registry_writes_nothing(registry, victim, chunk, user):
    holds_an_image(victim)
    place = f"http://{user}{victim.host}/v2/victim/manifests/latest"
    registry.faults.append(Fault("POST", times=9, edit=change_header("Location", place)))
    with pytest.raises(FetchFailed, match="401 Unauthorized") as caught:
        client(chunk).upload_blob(registry.repository("me/x"), BLOB)
    assert f"{registry.host} redirected to {victim.host}" in str(caught.value.hint)
    assert victim.requests
    assert result(victim) == []
    assert victim.granted == []
    assert victim.received_requests("DELETE") == []
    assert set(victim.tags) == {("victim", "latest")}


@pytest.mark.usefixtures("logins")
def test_cached_tokens_and_cookies_are_not_sent_to_another_registry(registry, victim):
    """Tokens and cookies already cached for a repository of the same name are not sent."""
    pusher = client()
    victim.faults.append(
        Fault("/v2/", times=99, edit=change_header("Set-Cookie", "session=mine; Path=/"))
    )
    pusher.upload_blob(victim.repository("me/x"), BLOB)
    del victim.requests[:]
    place = f"http://{victim.host}/v2/me/x/manifests/latest"
    registry.faults.append(Fault("POST", times=9, edit=change_header("Location", place)))
    with pytest.raises(FetchFailed, match="401"):
        pusher.upload_blob(registry.repository("me/x"), BLOB)
    assert result(victim) == []
    assert [request for request in victim.requests if "Cookie" in request.headers] == []
    # Conversely, a refusal there is not stored for it.
    pusher.upload_blob(victim.repository("me/x"), bytes_source(b"more"))


def _upload(repository: Repository) -> object:
    return client(60_000).upload_blob(repository, BLOB)


def _put(repository: Repository) -> object:
    return client().put_manifest(repository, MANIFEST, documents.INDEX, tag="one")


def _delete(repository: Repository) -> object:
    return client().delete(repository, "one")


@pytest.mark.parametrize(
    ("where", "work"),
    [
        ("POST", _upload),
        ("PATCH", _upload),
        ("PUT .*/uploads/", _upload),
        ("PUT .*/manifests/", _put),
        ("DELETE .*/manifests/", _delete),
    ],
)
@pytest.mark.usefixtures("logins")
def test_redirected_write_requests_are_anonymous(registry, victim, where, work):
    holds_an_image(victim)
    place = f"http://{victim.host}/v2/victim/manifests/latest"
    registry.faults.append(Fault(where, times=9, status=307, headers={"Location": place}))
    with pytest.raises(FetchFailed, match="401 Unauthorized"):
        work(registry.repository("me/x"))
    assert victim.received_requests("/manifests/latest")
    assert result(victim) == []
    assert victim.granted == []
    assert victim.tags["victim", "latest"] == memory_registry.sha256_digest(MANIFEST)


@pytest.mark.usefixtures("logins")
def test_redirected_reads_send_no_credentials_but_can_use_an_anonymous_token(registry, victim):
    """A registry under a custom name often redirects to another, which requires a token."""
    holds_an_image(victim)
    place = f"http://{victim.host}/v2/victim/manifests/latest"
    registry.faults.append(Fault("GET", times=9, status=307, headers={"Location": place}))
    with pytest.raises(FetchFailed, match="401"):
        client().manifest(ImageReference(registry.host, "me/x", "one"))
    assert [
        request for request in result(victim) if "/v2/" in request.path or "/token" in request.path
    ] == []
    victim.login = None
    if victim.auth == "bearer":
        fetched = client().manifest(ImageReference(registry.host, "me/x", "one"))
        assert fetched.data == MANIFEST
        assert victim.granted == [("repository:victim:pull",)]


@pytest.mark.usefixtures("logins")
def test_blob_redirect_to_another_registry_is_anonymous(registry, victim, tmp_path):
    victim.blobs["victim", BLOB.digest] = DATA
    place = f"http://{victim.host}/v2/victim/blobs/{BLOB.digest}"
    registry.faults.append(Fault("GET", times=9, status=307, headers={"Location": place}))
    whole = Descriptor(media_type="x", digest=BLOB.digest, size=BLOB.size)
    with pytest.raises(FetchFailed, match="401"):
        client().download(registry.repository("me/x"), whole, tmp_path / "blob")
    assert result(victim) == []


@pytest.mark.usefixtures("logins")
def test_next_page_of_a_list_in_another_registry_is_refused(registry, victim):
    holds_an_image(victim)
    place = f"http://{victim.host}/v2/victim/tags/list"
    registry.faults.append(Fault("tags/list", status=307, headers={"Location": place}))
    answer = {"Link": '</v2/victim/tags/list?at=1>; rel="next"'}
    victim.faults.append(Fault("tags/list", status=200, body=b'{"tags": []}', headers=answer))
    with pytest.raises(FetchFailed, match="401"):
        list(client().tags(registry.repository("me/x")))
    assert len(victim.received_requests("at=1")) >= 1
    assert result(victim) == []


@pytest.mark.usefixtures("logins")
def test_redirect_back_to_the_first_registry_stays_anonymous(registry, victim):
    """A redirect target is less trusted than the redirecting server."""
    registry.redirects = True
    registry.blobs["me/x", BLOB.digest] = DATA
    back = f"http://{registry.host}/v2/me/private/manifests/latest"
    registry.faults.append(Fault("/stored/", status=307, headers={"Location": back}))
    whole = Descriptor(media_type="x", digest=BLOB.digest, size=BLOB.size)
    with pytest.raises(FetchFailed, match="401"):
        client().blob(registry.repository("me/x"), whole)
    assert result(registry)
    assert [request for request in result(registry) if "private" in request.path] == []


@pytest.mark.parametrize(
    "realm",
    [
        "file://{folder}/secret.json",
        "ftp://localhost/x",
        "//localhost/x",
        "http://[",
        "http://localhost:x/",
    ],
)
def test_token_server_url_must_be_http(victim, tmp_path, realm):
    """A local file is refused, because its token would be sent to the server."""
    (tmp_path / "secret.json").write_text('{"access_token": "of-another-service"}')
    challenge = f'Bearer realm="{realm.format(folder=tmp_path)}",service="x"'
    victim.faults.append(
        Fault("/v2/", times=9, status=401, headers={"WWW-Authenticate": challenge})
    )
    with pytest.raises(FetchFailed, match="the URL of the token server of"):
        client().has(victim.repository("me/x"), BLOB.digest)
    assert "of-another-service" not in str([request.headers for request in victim.requests])


@pytest.mark.parametrize("place", ["http://localhost:x/y", "http://[/y", "http://localhost:99999/"])
def test_invalid_redirect_urls_are_refused(registry, place):
    registry.auth = ""
    registry.faults.append(Fault("POST", times=9, edit=change_header("Location", place)))
    link = f'<{place}>; rel="next"'
    registry.faults.append(
        Fault("tags/list", times=9, status=200, body=b'{"tags": []}', headers={"Link": link})
    )
    with pytest.raises(ImgbuildError, match=r"invalid URL|other than http"):
        client().upload_blob(registry.repository("me/x"), BLOB)
    with pytest.raises(ImgbuildError, match=r"no valid URL|no address|on another server"):
        list(client().tags(registry.repository("me/x")))
    registry.faults[:] = [Fault("HEAD", times=9, status=307, headers={"Location": place})]
    with pytest.raises(ImgbuildError, match="not an HTTP URL"):
        client().has(registry.repository("me/x"), BLOB.digest)


def test_netrc_credentials_are_sent_only_after_a_challenge(tmp_path, monkeypatch):
    (tmp_path / "netrc").write_text("machine localhost login me password victims-word\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with memory_registry.serve(Registry()) as registry:
        with pytest.raises(FetchFailed):
            list(client().tags(registry.repository("me/image")))
        assert registry.requests
        assert not result(registry)


def test_docker_credentials_override_netrc(registry, tmp_path, monkeypatch):
    (tmp_path / "netrc").write_text("machine localhost login me password victims-word\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    write_config(tmp_path, {registry.host: MINE})
    with pytest.raises(FetchFailed):
        list(client().tags(registry.repository("me/image")))
    token = base64.b64encode(":".join(MINE).encode()).decode()
    sent = {request.headers.get("Authorization") for request in registry.requests}
    assert sent == {None, f"Basic {token}"}
