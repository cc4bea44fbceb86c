"""Tests reading referrers of a manifest from the API or from the referrers tag."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from imgbuild.errors import FetchFailed, InputError
from imgbuild.oci import documents
from imgbuild.registry.client import RegistryClient, bytes_source
from tests.support import memory_registry
from tests.support.memory_registry import INDEX, Answer, Fault, Registry, sha256_digest

EMPTY = bytes_source(b"{}")
SBOM, STATEMENT = "application/vnd.cyclonedx+json", "application/vnd.in-toto+json"
NAME = "me/x"


@pytest.fixture(name="registry", params=[True, False], ids=["api", "tag"])
def _registry(request: pytest.FixtureRequest) -> Iterator[Registry]:
    with memory_registry.serve(Registry(referrers_api=request.param)) as registry:
        yield registry


@pytest.fixture(name="plain")
def _plain() -> Iterator[Registry]:
    with memory_registry.serve(Registry(referrers_api=False)) as registry:
        yield registry


def put(client: RegistryClient, registry: Registry, **more: object) -> str:
    repository = registry.repository(NAME)
    client.upload_blob(repository, EMPTY)
    config = {"mediaType": documents.CONFIG, "digest": EMPTY.digest, "size": EMPTY.size}
    document = {"schemaVersion": 2, "mediaType": documents.MANIFEST, "config": config,
                "layers": [], **more}  # fmt: skip
    return client.put_manifest(repository, json.dumps(document).encode(), documents.MANIFEST)


def refer(
    client: RegistryClient, registry: Registry, subject: str, kind: str, **more: object
) -> str:
    size = len(registry.manifests.get((NAME, subject), (b"", ""))[0])
    named_ = {"mediaType": documents.MANIFEST, "digest": subject, "size": size}
    return put(client, registry, subject=named_, artifactType=kind, **more)


def tag(digest: str) -> str:
    return digest.replace(":", "-")


def listed(registry: Registry, subject: str) -> list[dict[str, object]]:
    data, kind = registry.manifests[NAME, registry.tags[NAME, tag(subject)]]
    assert kind == INDEX
    entries: list[dict[str, object]] = json.loads(data)["manifests"]
    return entries


def test_referrers_are_found(client, registry):
    subject, other = put(client, registry), put(client, registry, annotations={"a": "b"})
    first = refer(client, registry, subject, SBOM, annotations={"name": "sbom"})
    second = refer(client, registry, subject, STATEMENT)
    elsewhere = refer(client, registry, other, SBOM)
    repository = registry.repository(NAME)
    referrers = client.referrers(repository, subject)
    assert {referrer.digest for referrer in referrers} == {first, second}
    assert {referrer.artifact_type for referrer in referrers} == {SBOM, STATEMENT}
    assert [referrer.annotations for referrer in referrers if referrer.digest == first] == [
        {"name": "sbom"}
    ]
    assert [referrer.digest for referrer in client.referrers(repository, subject, SBOM)] == [first]
    assert client.referrers(repository, subject, "none/such") == ()
    assert [referrer.digest for referrer in client.referrers(repository, other)] == [elsewhere]
    for referrer in referrers:
        assert (
            client.resolve(memory_registry.image_reference(registry, NAME, referrer.digest))
            is not None
        )
    tags = {target for _, target in registry.tags}
    assert tags == (set() if registry.referrers_api else {tag(subject), tag(other)})


def test_manifest_without_referrers_has_an_empty_list(client, registry):
    assert client.referrers(registry.repository(NAME), put(client, registry)) == ()


def test_referrers_of_a_missing_subject_are_listed(client, registry):
    subject = f"sha256:{'0' * 64}"
    first = refer(client, registry, subject, SBOM)
    assert [
        referrer.digest for referrer in client.referrers(registry.repository(NAME), subject)
    ] == [first]


def test_referrer_without_an_artifact_type_has_its_configuration_type(client, registry):
    subject = put(client, registry)
    descriptor = {"mediaType": documents.MANIFEST, "digest": subject, "size": 2}
    put(client, registry, subject=descriptor)
    referrers = client.referrers(registry.repository(NAME), subject)
    assert [referrer.artifact_type for referrer in referrers] == [documents.CONFIG]


@pytest.mark.parametrize("filters", [True, False])
@pytest.mark.parametrize("page", [None, 1, 2])
def test_pages_and_filters_of_the_referrers_api_are_used(client, filters, page):
    with memory_registry.serve(Registry(filters=filters, page=page)) as registry:
        subject = put(client, registry)
        expected = {refer(client, registry, subject, SBOM, annotations={"n": f"{n}"})
                  for n in range(3)}  # fmt: skip
        refer(client, registry, subject, STATEMENT)
        repository = registry.repository(NAME)
        referrers = client.referrers(repository, subject, SBOM)
        assert {referrer.digest for referrer in referrers} == expected
        assert len(referrers) == 3
        assert len(client.referrers(repository, subject)) == 4


# -- the tag


def test_entry_in_the_referrers_tag_follows_the_specification(client, plain):
    subject = put(client, plain)
    first = refer(client, plain, subject, SBOM, annotations={"name": "sbom"})
    data, _ = plain.manifests[NAME, first]
    assert listed(plain, subject) == [
        {"mediaType": documents.MANIFEST, "digest": first, "size": len(data),
         "artifactType": SBOM, "annotations": {"name": "sbom"}}
    ]  # fmt: skip


def test_repeated_push_lists_a_referrer_once(client, plain):
    subject = put(client, plain)
    for _ in range(2):
        refer(client, plain, subject, SBOM)
    assert len(listed(plain, subject)) == 1
    assert len(plain.received_requests(f"PUT .*/{tag(subject)}")) == 1


def test_referrer_entries_of_other_tools_are_kept(client, plain):
    subject = put(client, plain)
    theirs = put(client, plain, annotations={"by": "others"})
    entry = {"mediaType": documents.MANIFEST, "digest": theirs, "size": 12, "artifactType": "odd",
             "urls": ["https://example.com/é"], "x-more": {"of": [1.5, None]}}  # fmt: skip
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]}
    data = json.dumps(index, indent=1).encode()
    client.put_manifest(plain.repository(NAME), data, INDEX, tag=tag(subject))
    ours = refer(client, plain, subject, SBOM)
    assert [row["digest"] for row in listed(plain, subject)] == [theirs, ours]
    assert listed(plain, subject)[0] == entry


def test_referrer_entry_removed_by_another_writer_is_written_again(client, plain):
    subject = put(client, plain)
    first = refer(client, plain, subject, SBOM)

    def _overwrite(_: Answer) -> None:  # by a writer that had read the list before
        data = json.dumps({"manifests": [{"mediaType": "x", "digest": first, "size": 1}]}).encode()
        plain.manifests[NAME, sha256_digest(data)] = (data, INDEX)
        plain.tags[NAME, tag(subject)] = sha256_digest(data)

    plain.faults.append(Fault(f"PUT .*/{tag(subject)}", edit=_overwrite))
    second = refer(client, plain, subject, STATEMENT)
    assert [row["digest"] for row in listed(plain, subject)] == [first, second]


def test_permanent_conflict_about_the_referrers_tag_is_an_error(client, plain):
    subject = put(client, plain)
    empty = json.dumps({"manifests": []}).encode()

    def _empty(_: Answer) -> None:
        plain.manifests[NAME, sha256_digest(empty)] = (empty, INDEX)
        plain.tags[NAME, tag(subject)] = sha256_digest(empty)

    plain.faults.append(Fault(f"PUT .*/{tag(subject)}", times=99, edit=_empty))
    with pytest.raises(FetchFailed, match="are being modified by other clients"):
        refer(client, plain, subject, SBOM)


@pytest.mark.parametrize("status", [400, 404, 405, 406, 501])
def test_missing_referrers_api_is_recognized(client, plain, status):
    subject = put(client, plain)
    first = refer(client, plain, subject, SBOM)
    plain.faults.append(Fault("GET .*/referrers/", status=status, body=b"<html>no</html>"))
    referrers = client.referrers(plain.repository(NAME), subject)
    assert [referrer.digest for referrer in referrers] == [first]


def test_html_response_is_not_a_referrers_list(client, plain):
    subject = put(client, plain)
    first = refer(client, plain, subject, SBOM)
    headers = {"Content-Type": "text/html; charset=utf-8"}
    plain.faults.append(
        Fault("GET .*/referrers/", status=200, headers=headers, body=b"<html>hello</html>")
    )
    referrers = client.referrers(plain.repository(NAME), subject)
    assert [referrer.digest for referrer in referrers] == [first]


def test_refused_request_is_not_treated_as_a_missing_referrers_api(client, registry):
    subject = put(client, registry)
    registry.faults.append(Fault("GET .*/referrers/", status=403))
    with pytest.raises(FetchFailed, match="403"):
        client.referrers(registry.repository(NAME), subject)


def test_damaged_referrers_list_is_reported(client, plain):
    subject = put(client, plain)
    config = {"mediaType": documents.CONFIG, "digest": EMPTY.digest, "size": 2}
    data = json.dumps({"config": config, "layers": []}).encode()
    client.put_manifest(plain.repository(NAME), data, documents.MANIFEST, tag=tag(subject))
    with pytest.raises(InputError, match=f"{NAME}:{tag(subject)}"):
        client.referrers(plain.repository(NAME), subject)


# -- deleting


def test_deleted_referrer_is_not_listed(client, registry):
    subject = put(client, registry)
    first = refer(client, registry, subject, SBOM)
    second = refer(client, registry, subject, STATEMENT)
    repository = registry.repository(NAME)
    assert client.delete(repository, first)
    assert [referrer.digest for referrer in client.referrers(repository, subject)] == [second]
    assert client.delete(repository, second)
    assert client.referrers(repository, subject) == ()
