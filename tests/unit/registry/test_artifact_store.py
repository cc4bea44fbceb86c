"""Tests that artifacts in a registry are attached once and read back with every digest checked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from imgbuild.errors import ImgbuildError, IntegrityError
from imgbuild.oci.documents import MANIFEST, Descriptor
from imgbuild.registry import artifact_store
from imgbuild.registry.artifact_store import ArtifactFile
from imgbuild.registry.client import RegistryClient, bytes_source
from imgbuild.values import sha256
from tests.support import memory_registry
from tests.support.memory_registry import Registry

KIND = "application/vnd.example.words+json"
FILES = {
    "b.json": ArtifactFile(
        data=b'{"b": 1}', media_type="application/json", annotations={"own": "word"}
    ),
    "a.bin": ArtifactFile(data=b"", media_type="application/octet-stream"),
}


@pytest.fixture(params=[True, False], ids=["referrers", "tag"])
def registry(request, alone):
    with memory_registry.serve(Registry(referrers_api=request.param)) as server:
        yield server


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory_registry.isolate_logins(monkeypatch, tmp_path)


@pytest.fixture
def client(alone) -> RegistryClient:
    return RegistryClient(first_wait=0.001)


def image(client: RegistryClient, registry: Registry) -> Descriptor:
    data = json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, "config": {
        "mediaType": "application/json", "digest": f"sha256:{sha256(b'{}')}", "size": 2,
    }, "layers": []}).encode()  # fmt: skip
    repository = registry.repository("me/image")
    client.upload_blob(repository, bytes_source(b"{}"))
    digest = client.put_manifest(repository, data, MANIFEST)
    return Descriptor(media_type=MANIFEST, digest=digest, size=len(data))


def test_lost_artifact_file_is_uploaded_again(client: RegistryClient, registry: Registry):
    repository, subject = registry.repository("me/image"), image(client, registry)
    digest = artifact_store.attach_artifact(client, repository, subject, KIND, FILES)
    lost = f"sha256:{sha256(FILES['b.json'].data)}"
    del registry.blobs["me/image", lost]
    with pytest.raises(ImgbuildError, match=lost):
        artifact_store.find_artifacts(client, repository, subject.digest, KIND)
    assert (
        artifact_store.find_artifacts(client, repository, subject.digest, KIND, skip_damaged=True)
        == []
    )
    assert artifact_store.attach_artifact(client, repository, subject, KIND, FILES) == digest
    assert len(artifact_store.find_artifacts(client, repository, subject.digest, KIND)) == 1
    before = len(registry.requests)
    assert artifact_store.attach_artifact(client, repository, subject, KIND, FILES) == digest
    assert {request.method for request in registry.requests[before:]} <= {"GET", "HEAD"}


def test_attached_artifact_is_found(client: RegistryClient, registry: Registry):
    repository, subject = registry.repository("me/image"), image(client, registry)
    digest = artifact_store.attach_artifact(
        client, repository, subject, KIND, FILES, {"about": "it"}
    )
    (artifact,) = artifact_store.find_artifacts(client, repository, subject.digest, KIND)
    assert artifact.descriptor.digest == digest
    assert (artifact.artifact_type, artifact.subject) == (KIND, subject.digest)
    assert artifact.annotations == {"about": "it"}
    assert {name: part.data for name, part in artifact.files.items()} == {
        name: part.data for name, part in FILES.items()
    }
    assert artifact.files["b.json"].annotations["own"] == "word"
    assert (
        artifact_store.find_artifacts(client, repository, subject.digest, "application/other") == []
    )
    assert len(artifact_store.find_artifacts(client, repository, subject.digest)) == 1


def test_artifact_manifest_follows_specification(client: RegistryClient, registry: Registry):
    repository, subject = registry.repository("me/image"), image(client, registry)
    digest = artifact_store.attach_artifact(client, repository, subject, KIND, FILES)
    data, media_type = registry.manifests["me/image", digest]
    document = json.loads(data)
    assert media_type == document["mediaType"] == MANIFEST
    assert document["artifactType"] == KIND
    assert document["config"] == {
        "mediaType": "application/vnd.oci.empty.v1+json",
        "digest": "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",
        "size": 2,
    }
    assert document["subject"] == {
        "mediaType": MANIFEST, "digest": subject.digest, "size": subject.size
    }  # fmt: skip
    titles = [
        layer["annotations"]["org.opencontainers.image.title"] for layer in document["layers"]
    ]
    assert titles == ["a.bin", "b.json"]


def test_second_push_does_not_change_an_artifact(client: RegistryClient, registry: Registry):
    repository, subject = registry.repository("me/image"), image(client, registry)
    first = artifact_store.attach_artifact(client, repository, subject, KIND, FILES)
    before = len(registry.requests)
    assert artifact_store.attach_artifact(client, repository, subject, KIND, FILES) == first
    assert {request.method for request in registry.requests[before:]} <= {"GET", "HEAD"}
    # Other content is a second artifact.
    other = {"a.bin": ArtifactFile(data=b"other", media_type="application/octet-stream")}
    artifact_store.attach_artifact(client, repository, subject, KIND, other)
    assert len(artifact_store.find_artifacts(client, repository, subject.digest, KIND)) == 2


def test_removed_artifact_is_attached_again(client: RegistryClient, registry: Registry):
    repository, subject = registry.repository("me/image"), image(client, registry)
    digest = artifact_store.attach_artifact(client, repository, subject, KIND, FILES)
    del registry.manifests["me/image", digest]  # as the garbage collection of a registry does
    assert artifact_store.find_artifacts(client, repository, subject.digest, KIND) == []
    artifact_store.attach_artifact(client, repository, subject, KIND, FILES)
    assert len(artifact_store.find_artifacts(client, repository, subject.digest, KIND)) == 1


@pytest.mark.parametrize("name", ["a.bin", "b.json", "manifest"])
def test_artifact_with_flipped_byte_is_refused(
    client: RegistryClient, registry: Registry, name: str
):
    repository, subject = registry.repository("me/image"), image(client, registry)
    files = {**FILES, "a.bin": ArtifactFile(data=b"words", media_type="application/octet-stream")}
    digest = artifact_store.attach_artifact(client, repository, subject, KIND, files)
    if name == "manifest":
        data, media_type = registry.manifests["me/image", digest]
        registry.manifests["me/image", digest] = (
            data.replace(b"b.json", b"c.json"),
            media_type,
        )
    else:
        key = ("me/image", f"sha256:{sha256(files[name].data)}")
        registry.blobs[key] = bytes([registry.blobs[key][0] ^ 1]) + registry.blobs[key][1:]
    with pytest.raises(ImgbuildError) as caught:
        artifact_store.find_artifacts(client, repository, subject.digest, KIND)
    assert caught.value.exit_code == 9


def test_artifact_of_another_image_is_refused(client: RegistryClient, registry: Registry):
    repository, subject = registry.repository("me/image"), image(client, registry)
    digest = artifact_store.attach_artifact(client, repository, subject, KIND, FILES)
    size = len(registry.manifests["me/image", digest][0])
    other = f"sha256:{'e' * 64}"
    index = {"schemaVersion": 2, "mediaType": memory_registry.INDEX, "manifests": [{
        "mediaType": MANIFEST, "digest": digest, "size": size, "artifactType": KIND,
    }]}  # fmt: skip

    def lie(answer: memory_registry.Answer) -> None:
        answer.status, answer.body = 200, json.dumps(index).encode()
        answer.headers["Content-Type"] = memory_registry.INDEX

    fault = memory_registry.Fault("GET .*(/referrers/|/manifests/sha256-)", times=9, edit=lie)
    registry.faults.append(fault)
    with pytest.raises(IntegrityError, match=f"attached to {other}, but refers to"):
        artifact_store.find_artifacts(client, repository, other, KIND)


def test_blob_shared_by_several_artifacts_is_read_once(client, registry, monkeypatch):
    repository, subject = registry.repository("me/image"), image(client, registry)
    large = {"large": ArtifactFile(data=bytes(1000), media_type="application/octet-stream")}
    for number in range(5):
        artifact_store.attach_artifact(
            client, repository, subject, KIND, large, {"number": str(number)}
        )
    registry.requests.clear()
    attachments = artifact_store.find_artifacts(client, repository, subject.digest, KIND)
    assert len({id(attachment.files["large"].data) for attachment in attachments}) == 1
    assert len(registry.received_requests(f"GET .*/blobs/sha256:{sha256(bytes(1000))}")) == 1
    monkeypatch.setattr(artifact_store, "LIMIT", 999)
    with pytest.raises(IntegrityError, match="more than 999 bytes are attached"):
        artifact_store.find_artifacts(client, repository, subject.digest, KIND)
