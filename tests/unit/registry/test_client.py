"""Tests manifests and lists of registries, including invalid ones."""

from __future__ import annotations

import json
import random

import pytest

from imgbuild.errors import FetchFailed, IntegrityError
from imgbuild.oci import documents
from imgbuild.oci.documents import Descriptor
from imgbuild.registry import manifests, pages
from imgbuild.registry.client import NotFound, RegistryClient, bytes_source
from imgbuild.registry.image_reference import ImageReference
from imgbuild.system.console import console
from tests.support import memory_registry
from tests.support.memory_registry import Answer, Fault, Registry, change_header, sha256_digest

DATA = random.Random(8).randbytes(300_000)
BLOB = bytes_source(DATA)
EMPTY = bytes_source(b"{}")
OTHER = f"sha256:{'0' * 64}"


@pytest.fixture(name="client")
def _client() -> RegistryClient:
    return RegistryClient(attempts=3, first_wait=0.001, timeout=(5, 5), reporter=console)


def manifest(**more: object) -> bytes:
    config = {"mediaType": documents.CONFIG, "digest": EMPTY.digest, "size": EMPTY.size}
    layer = {"mediaType": documents.LAYER, "digest": BLOB.digest, "size": BLOB.size}
    return json.dumps(
        {"schemaVersion": 2, "mediaType": documents.MANIFEST, "config": config, "layers": [layer],
         **more}
    ).encode()  # fmt: skip


def push(
    client: RegistryClient, registry: Registry, *, tag: str | None = "one", **more: object
) -> str:
    for source in (BLOB, EMPTY):
        client.upload_blob(registry.repository("me/x"), source)
    data = manifest(**more)
    digest = client.put_manifest(registry.repository("me/x"), data, documents.MANIFEST, tag=tag)
    assert digest == sha256_digest(data)
    return digest


def at(registry: Registry, target: str) -> ImageReference:
    tag, digest = (None, target) if ":" in target else (target, None)
    return ImageReference(registry.host, "me/x", tag, digest)


# -- manifests


@pytest.mark.parametrize("by", ["tag", "digest"])
def test_pushed_manifest_is_read_back_unchanged(client, registry, by):
    digest = push(client, registry, tag="one" if by == "tag" else None)
    assert registry.tags == ({("me/x", "one"): digest} if by == "tag" else {})
    reference = at(registry, "one" if by == "tag" else digest)
    fetched = client.manifest(reference)
    assert (fetched.data, fetched.media_type, fetched.digest) == (
        manifest(), documents.MANIFEST, digest
    )  # fmt: skip
    assert client.resolve(reference) == fetched.descriptor
    assert [request.method for request in registry.received_requests("/manifests/")] == [
        "PUT",
        "GET",
        "HEAD",
    ]
    accept_header = registry.received_requests("GET .*/manifests/")[0].headers["Accept"]
    assert [kind for kind in manifests.TYPES if kind not in accept_header] == []


@pytest.mark.parametrize("target", ["none", OTHER])
def test_missing_manifest_is_not_found(client, registry, target):
    assert client.resolve(at(registry, target)) is None
    with pytest.raises(NotFound, match=r"me/x[:@].* not found: .*404 .*MANIFEST_UNKNOWN"):
        client.manifest(at(registry, target))


@pytest.mark.parametrize(
    "fault",
    [
        Fault("HEAD .*/manifests/", edit=change_header("Docker-Content-Digest", None)),
        Fault("HEAD .*/manifests/", edit=change_header("Docker-Content-Digest", "sha256:12")),
        Fault("HEAD .*/manifests/", edit=change_header("Content-Type", "text/html")),
        Fault("HEAD .*/manifests/", edit=change_header("Content-Length", "")),
        Fault("HEAD .*/manifests/", status=405),
        Fault("HEAD .*/manifests/", status=501),
        Fault("HEAD .*/manifests/", status=400),
    ],
)
def test_manifest_is_read_if_the_head_response_is_incomplete(client, registry, fault):
    digest = push(client, registry)
    registry.faults.append(fault)
    descriptor = client.resolve(at(registry, "one"))
    assert descriptor == Descriptor(documents.MANIFEST, digest, len(manifest()))
    assert len(registry.received_requests("GET .*/manifests/")) == 1


def test_head_response_that_contradicts_the_digest_is_not_trusted(client, registry):
    digest = push(client, registry)
    registry.faults.append(
        Fault("HEAD .*/manifests/", edit=change_header("Docker-Content-Digest", OTHER))
    )
    descriptor = client.resolve(at(registry, digest))
    assert descriptor is not None
    assert descriptor.digest == digest


def test_registry_without_digest_headers_is_supported(client, registry):
    registry.tells_digest = False
    digest = push(client, registry)
    descriptor = client.resolve(at(registry, "one"))
    assert descriptor is not None
    assert descriptor.digest == client.manifest(at(registry, digest)).digest == digest


@pytest.mark.parametrize("target", ["one", "digest"])
def test_manifest_with_wrong_digest_is_refused(client, registry, target):
    digest = push(client, registry)
    registry.manifests["me/x", digest] = (manifest() + b" ", documents.MANIFEST)
    with pytest.raises(IntegrityError, match=f"me/x@{digest}"):
        client.manifest(at(registry, digest if target == "digest" else target))


def test_manifest_without_a_media_type_uses_the_content_type(client, registry):
    data = json.dumps({"schemaVersion": 2, "manifests": []}).encode()
    client.put_manifest(registry.repository("me/x"), data, documents.INDEX, tag="one")
    assert client.manifest(at(registry, "one")).media_type == documents.INDEX


@pytest.mark.parametrize("kind", [documents.INDEX, documents.MANIFEST])
def test_ambiguous_manifest_is_refused(client, registry, kind):
    """One client would read such a document as an index, another as an image."""
    data = json.dumps({**json.loads(manifest()), "mediaType": kind, "manifests": []}).encode()
    registry.manifests["me/x", sha256_digest(data)] = (data, kind)
    with pytest.raises(IntegrityError, match="both an index and an image"):
        client.manifest(at(registry, sha256_digest(data)))


def test_truncated_manifest_response_is_requested_again(client, registry):
    push(client, registry)
    registry.faults.append(Fault("GET .*/manifests/", cut_answer=10))
    assert client.manifest(at(registry, "one")).data == manifest()


def test_endless_manifest_response_is_refused(client, registry, monkeypatch):
    push(client, registry)
    monkeypatch.setattr(manifests, "LIMIT", 100)
    with pytest.raises(FetchFailed, match="sent a document of more than 100 bytes"):
        client.manifest(at(registry, "one"))


@pytest.mark.parametrize("status", [429, 500, 503])
@pytest.mark.parametrize("where", ["PUT .*/manifests/", "GET .*/manifests/", "HEAD .*/manifests/"])
def test_request_to_a_busy_registry_is_retried(client, registry, status, where):
    registry.faults.append(Fault(where, times=2, status=status))
    digest = push(client, registry)
    assert client.manifest(at(registry, "one")).digest == digest
    assert client.resolve(at(registry, "one")) is not None


def test_manifest_push_succeeds_after_a_lost_response(client, registry):
    registry.faults.append(Fault("PUT .*/manifests/", mute=True))
    digest = push(client, registry)
    assert registry.tags == {("me/x", "one"): digest}


@pytest.mark.parametrize("result", [OTHER, None])
def test_registry_that_stores_a_different_manifest_is_an_error(client, registry, result):
    def _store(answer: Answer) -> None:
        registry.tags["me/x", "one"] = OTHER
        change_header("Docker-Content-Digest", result)(answer)

    registry.faults.append(Fault("PUT .*/manifests/", edit=_store))
    with pytest.raises(IntegrityError, match=f"{registry.host} stored"):
        push(client, registry)


def test_error_for_a_manifest_without_blobs_has_the_registry_message(client, registry):
    with pytest.raises(FetchFailed, match=r"404 .*: MANIFEST_BLOB_UNKNOWN: this is") as caught:
        client.put_manifest(registry.repository("me/x"), manifest(), documents.MANIFEST, tag="one")
    assert "me/x/manifests/one" in caught.value.message
    assert registry.tags == {}


def test_manifest_push_is_retried_if_a_blob_is_not_found_yet(client, registry):
    body = b'{"errors": [{"code": "MANIFEST_BLOB_UNKNOWN"}]}'
    registry.faults.append(Fault("PUT .*/manifests/", times=2, status=400, body=body))
    push(client, registry)
    assert [request.method for request in registry.requests].count("PUT") >= 3


# -- lists


@pytest.mark.parametrize("page", [None, 1, 2, 100])
def test_all_pages_of_a_tag_list_are_read(client, registry, page):
    for number in range(5):
        push(client, registry, tag=f"tag-{number}")
    registry.page = page
    assert list(client.tags(registry.repository("me/x"))) == [f"tag-{n}" for n in range(5)]
    assert len(registry.received_requests("/tags/list")) == -(-5 // (page or 5))
    for name in ("a", "b/c"):
        client.put_manifest(
            registry.repository(name), b'{"manifests": []}', documents.INDEX, tag="x"
        )
    assert list(client.repositories(registry.host)) == ["a", "b/c", "me/x"]


@pytest.mark.parametrize(
    "link",
    [
        '<{path}?at=2>; rel="next"',
        "<{path}?at=2>;rel=next",
        '<http://{host}{path}?at=2>; rel="next"; title="more, still"',
        '</nowhere>; rel="prev", <{path}?at=2>; rel="next"',
        '<?at=2>; title="x"; REL="next"',
    ],
)
def test_link_headers_of_tag_list_pages_are_parsed(client, registry, link):
    for number in range(4):
        push(client, registry, tag=f"tag-{number}")
    registry.page = 2
    text = link.format(path="/v2/me/x/tags/list", host=registry.host)
    registry.faults.append(Fault("GET .*/tags/list", edit=change_header("Link", text)))
    assert list(client.tags(registry.repository("me/x"))) == [f"tag-{n}" for n in range(4)]


def test_circular_pages_of_a_tag_list_are_refused(client, registry):
    push(client, registry)
    registry.faults.append(
        Fault(
            "GET .*/tags/list",
            times=99,
            edit=change_header("Link", '</v2/me/x/tags/list>; rel="next"'),
        )
    )
    with pytest.raises(FetchFailed, match="is circular"):
        list(client.tags(registry.repository("me/x")))


def test_endless_pages_of_a_tag_list_are_refused(client, registry, monkeypatch):
    monkeypatch.setattr(pages, "PAGES", 5)
    push(client, registry)
    page_numbers = iter(range(1000))

    def _another(answer: memory_registry.Answer) -> None:
        answer.headers["Link"] = f'</v2/me/x/tags/list?last={next(page_numbers)}>; rel="next"'

    registry.faults.append(Fault("GET .*/tags/list", times=1000, edit=_another))
    with pytest.raises(FetchFailed, match="this list has more than 5 pages"):
        list(client.tags(registry.repository("me/x")))
    assert len(registry.received_requests("/tags/list")) == 6


def test_next_page_of_a_tag_list_on_another_server_is_refused(client, registry):
    push(client, registry)
    link = f'<http://{registry.storage}/v2/me/x/tags/list?secret=1>; rel="next"'
    registry.faults.append(Fault("GET .*/tags/list", edit=change_header("Link", link)))
    with pytest.raises(FetchFailed, match="the next page is on another server") as caught:
        list(client.tags(registry.repository("me/x")))
    assert "secret" not in caught.value.message


def test_repository_without_tags_has_an_empty_list(client, registry):
    registry.faults.append(Fault("GET .*/tags/list", status=200, body=b'{"tags": null}'))
    assert list(client.tags(registry.repository("me/x"))) == []


def test_tags_of_a_missing_repository_are_not_found(client, registry):
    with pytest.raises(NotFound, match="me/none"):
        list(client.tags(registry.repository("me/none")))


# -- deleting


def test_manifests_and_tags_are_deleted(client, registry):
    digest = push(client, registry)
    repository = registry.repository("me/x")
    assert client.delete(repository, "one")
    assert not client.delete(repository, "one")
    assert client.manifest(at(registry, digest)).digest == digest
    assert client.delete(repository, digest)
    assert not client.delete(repository, digest)


def test_error_for_disabled_deletion_has_a_hint(client, registry):
    registry.deletes = False
    digest = push(client, registry)
    for target in ("one", digest):
        with pytest.raises(FetchFailed, match=r"405 .*UNSUPPORTED") as caught:
            client.delete(registry.repository("me/x"), target)
        assert "storage.delete.enabled" in str(caught.value.hint)


def test_registry_client_sends_no_request_offline(registry):
    with pytest.raises(FetchFailed, match="--offline is set"):
        RegistryClient(offline=True).resolve(at(registry, "one"))
    assert registry.requests == []


# -- registry warnings


def test_registry_warnings_are_printed_once(client, registry, capsys):
    digest = push(client, registry)
    text = '299 - "this tag goes on \\"Monday\\"", 110 x "stale", 299 - "and\x1b[31m more"'
    registry.faults.append(
        Fault("HEAD .*/manifests/", times=3, edit=change_header("Warning", text))
    )
    registry.faults.append(
        Fault("GET .*/none", status=404, headers={"Warning": '299 - "not here any more"'})
    )
    for _ in range(3):
        assert client.resolve(at(registry, "one")) is not None
    with pytest.raises(NotFound):
        client.manifest(at(registry, "none"))
    output = " ".join(capsys.readouterr().err.split())
    assert output.count(f'message from {registry.host}: this tag goes on "Monday"') == 1
    assert output.count(": and [31m more") == 1
    assert ": not here any more" in output
    assert "stale" not in output
    assert client.manifest(at(registry, "one")).digest == digest
