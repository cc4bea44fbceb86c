"""Tests the registry client with real registries: Debian's docker-registry and crane.

The tests follow the conformance tests of the distribution specification: push, pull, content
discovery and content management. Dropped connections, credentials and TLS are also tested.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from imgbuild.errors import FetchFailed, IntegrityError
from imgbuild.oci import documents, layout
from imgbuild.oci.documents import Descriptor
from imgbuild.registry import uploads
from imgbuild.registry.client import (
    NotFound,
    RegistryClient,
    UploadOutcome,
    bytes_source,
    file_source,
)
from imgbuild.registry.image_reference import ImageReference, Repository, parse_reference
from imgbuild.values import Arch
from tests.support import breaking_line, docker_registry, images, memory_registry, needs

pytestmark = pytest.mark.engine

LARGE = bytes_source(random.Random(9).randbytes(6_000_000))
WHOLE = Descriptor(media_type="x", digest=LARGE.digest, size=LARGE.size)
EMPTY = bytes_source(b"{}")
SBOM = "application/vnd.cyclonedx+json"


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = os.environ["PATH"]
    memory_registry.isolate_logins(monkeypatch, tmp_path)
    monkeypatch.setenv("PATH", path)


@pytest.fixture(name="host", scope="module", params=["docker-registry", "crane"])
def _host(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("registry") / "data"
    serve = crane if request.param == "crane" else dockers
    with serve(folder) as host:
        yield host


@contextlib.contextmanager
def dockers(folder: Path) -> Iterator[str]:
    with docker_registry.serve_registry(folder) as registry:
        yield registry.host


@contextlib.contextmanager
def crane(folder: Path) -> Iterator[str]:
    """A registry of go-containerregistry."""
    folder.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    crane = needs.require_tool("crane", "crane of Debian sid")
    command = [crane, "registry", "serve", "--address", f"127.0.0.1:{port}", "--disk", str(folder)]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as running,
    ):
        try:
            for _ in range(300):
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                time.sleep(0.1)
            yield f"127.0.0.1:{port}"
        finally:
            running.terminate()


@pytest.fixture(name="repository")
def _repository(host: str, request: pytest.FixtureRequest) -> Repository:
    """A repository that no other test uses."""
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name.lower())
    return Repository(host, f"client/{name.strip('-')}".replace("--", "-"))


@pytest.fixture(name="client")
def _client() -> RegistryClient:
    return RegistryClient(first_wait=0.01)


def image(**more: object) -> bytes:
    config = {"mediaType": documents.CONFIG, "digest": EMPTY.digest, "size": EMPTY.size}
    layer = {"mediaType": documents.LAYER, "digest": LARGE.digest, "size": LARGE.size}
    return json.dumps(
        {"schemaVersion": 2, "mediaType": documents.MANIFEST, "config": config, "layers": [layer],
         **more}
    ).encode()  # fmt: skip


def push(
    client: RegistryClient, repository: Repository, tag: str | None, **more: object
) -> Descriptor:
    for source in (LARGE, EMPTY):
        client.upload_blob(repository, source)
    data = image(**more)
    digest = client.put_manifest(repository, data, documents.MANIFEST, tag=tag)
    return Descriptor(documents.MANIFEST, digest, len(data))


def named(repository: Repository, target: str) -> ImageReference:
    return parse_reference(f"{repository}{'@' if ':' in target else ':'}{target}")


# -- pull


def test_image_is_pulled(client, repository, tmp_path):
    pushed = push(client, repository, "one")
    for target in ("one", pushed.digest):
        assert client.resolve(named(repository, target)) == pushed
        assert client.manifest(named(repository, target)).data == image()
    assert client.has(repository, LARGE.digest) == LARGE.size
    assert client.blob(repository, WHOLE) == LARGE.open(0).read()
    (tmp_path / "blob").write_bytes(LARGE.open(0).read(1_000_000))
    client.download(repository, WHOLE, tmp_path / "blob")
    assert (tmp_path / "blob").read_bytes() == LARGE.open(0).read()


def test_missing_manifest_is_not_found(client, repository):
    push(client, repository, "one")
    other = Repository(repository.host, "client/nobody")
    zeros = f"sha256:{'0' * 64}"
    for place, target in ((repository, "two"), (repository, zeros), (other, "one")):
        assert client.resolve(named(place, target)) is None
        with pytest.raises(NotFound):
            client.manifest(named(place, target))
    assert client.has(repository, zeros) is None
    with pytest.raises(FetchFailed, match="404"):
        client.blob(repository, Descriptor(media_type="x", digest=zeros, size=1))


# -- push


@pytest.mark.parametrize("chunk", [None, 1_000_000, 6_000_000])
def test_push_succeeds_in_one_request_and_in_chunks(repository, chunk):
    blob = bytes_source(random.Random(chunk).randbytes(5_500_000))
    counted: list[int] = []
    outcome = RegistryClient(chunk=chunk).upload_blob(repository, blob, advance=counted.append)
    assert (outcome, sum(counted)) == (UploadOutcome.UPLOADED, blob.size)
    descriptor = Descriptor(media_type="x", digest=blob.digest, size=blob.size)
    assert RegistryClient().blob(repository, descriptor) == blob.open(0).read()
    assert RegistryClient().upload_blob(repository, blob) is UploadOutcome.PRESENT


def test_blob_is_mounted_from_another_repository(client, repository):
    blob = bytes_source(random.Random(str(repository)).randbytes(1000))
    other = Repository(repository.host, f"{repository.name}/other")
    client.upload_blob(other, blob)
    # crane stores all blobs in one place: they are present everywhere.
    assert client.has(repository, blob.digest) is not None or client.mount(
        repository, blob.digest, blob.size, other
    )
    assert client.has(repository, blob.digest) == blob.size


def test_pushed_image_is_read_by_skopeo(client, repository, tmp_path):
    layers = [
        images.make_layer(tmp_path / "b", [images.text_member("word", word)]) for word in ("a", "b")
    ]
    arches = (Arch.X86_64, Arch.ARM64)
    layout.write_layout(
        tmp_path / "l", {arch: images.image_files(layers, arch) for arch in arches}, "base"
    )
    stored = layout.read_layout(tmp_path / "l")
    for arch in arches:
        image = stored.image(arch)
        for blob in (*image.layers, image.config):
            source = file_source(stored.blob(blob.digest), blob.digest, blob.size)
            client.upload_blob(repository, source)
        data = stored.blob(image.manifest.digest).read_bytes()
        client.put_manifest(repository, data, documents.MANIFEST)
    data = stored.blob(stored.digest).read_bytes()
    assert client.put_manifest(repository, data, documents.INDEX, tag="one") == stored.digest
    command = [needs.require_tool("skopeo"), "copy", "--quiet", "--all", "--src-tls-verify=false"]
    place = f"oci:{tmp_path / 'copy'}:one"
    subprocess.run([*command, f"docker://{repository}:one", place], check=True)
    copied = {path.name for path in (tmp_path / "copy/blobs/sha256").iterdir()}
    assert copied == {path.name for path in (tmp_path / "l/blobs/sha256").iterdir()}


@pytest.mark.parametrize("host", ["docker-registry"], indirect=True)
def test_manifest_without_blobs_is_refused(client, repository):
    with pytest.raises(FetchFailed, match="MANIFEST_BLOB_UNKNOWN"):
        client.put_manifest(repository, image(), documents.MANIFEST, tag="one")
    assert client.resolve(named(repository, "one")) is None


def test_upload_with_wrong_digest_is_refused(client, repository):
    wrong = uploads.BlobSource(f"sha256:{'1' * 64}", EMPTY.size, EMPTY.open)
    with pytest.raises(IntegrityError, match=f"{wrong.digest} .*DIGEST_INVALID"):
        client.upload_blob(repository, wrong)
    assert client.has(repository, wrong.digest) is None


@pytest.mark.parametrize("cuts", [[1_000_000], [2_000_000, 500_000], [100_000] * 3])
def test_push_continues_after_a_dropped_connection(repository, monkeypatch, cuts):
    monkeypatch.setattr(uploads, "CHUNK", 2_000_000)
    blob = bytes_source(random.Random(str(cuts)).randbytes(5_000_000))
    with breaking_line.proxy_to(repository.host) as line:
        line.cuts += cuts
        counted: list[int] = []
        far = Repository(line.host, repository.name)
        outcome = RegistryClient(first_wait=0.01).upload_blob(far, blob, advance=counted.append)
        assert (outcome, sum(counted), line.broken) == (
            UploadOutcome.UPLOADED,
            blob.size,
            len(cuts),
        )
    assert RegistryClient().has(repository, blob.digest) == blob.size
    descriptor = Descriptor(media_type="x", digest=blob.digest, size=blob.size)
    assert RegistryClient().blob(repository, descriptor) == blob.open(0).read()


# -- content discovery


def test_tags_and_referrers_are_listed(client, repository):
    pushed = push(client, repository, "one")
    for tag in ("two", "three"):
        push(client, repository, tag)
    assert sorted(client.tags(repository)) == ["one", "three", "two"]
    subject = {"mediaType": pushed.media_type, "digest": pushed.digest, "size": pushed.size}
    first = push(client, repository, None, subject=subject, artifactType=SBOM,
                 annotations={"name": "sbom"})  # fmt: skip
    second = push(client, repository, None, subject=subject, artifactType="text/plain")
    referrers = client.referrers(repository, pushed.digest)
    assert {referrer.digest for referrer in referrers} == {first.digest, second.digest}
    (referrer,) = client.referrers(repository, pushed.digest, SBOM)
    assert (referrer.digest, referrer.size, referrer.annotations) == (
        first.digest,
        first.size,
        {"name": "sbom"},
    )
    assert client.referrers(repository, first.digest) == ()
    assert client.delete(repository, first.digest)
    assert [each.digest for each in client.referrers(repository, pushed.digest)] == [second.digest]


def test_unknown_repository_has_no_tags(client, host):
    with pytest.raises(NotFound, match="client/nobody"):
        list(client.tags(Repository(host, "client/nobody")))


def test_catalog_with_several_pages_is_read(client, tmp_path):
    names = [f"catalog/{number:03}" for number in range(101)]  # one more than fits on a page
    with docker_registry.serve_registry(tmp_path / "registry") as registry:
        for name in names:
            folder = registry.storage / "docker/registry/v2/repositories" / name
            (folder / "_layers").mkdir(parents=True)
        assert list(client.repositories(registry.host)) == names
        listings = [
            request for request in registry.received_requests() if "_catalog" in request.path
        ]
    assert len(listings) == 2


# -- content management


@pytest.mark.parametrize("host", ["docker-registry"], indirect=True)
def test_manifests_and_tags_are_deleted(client, repository):
    pushed = push(client, repository, "one")
    assert client.delete(repository, pushed.digest)
    assert not client.delete(repository, pushed.digest)
    assert client.resolve(named(repository, "one")) is None


def test_tag_is_deleted_or_the_refusal_of_the_registry_is_reported(client, repository, request):
    """crane deletes tags, but docker-registry 2.8 deletes only digests."""
    pushed = push(client, repository, "one")
    if "docker-registry" in request.node.name:
        with pytest.raises(FetchFailed, match=r"40[05] .*(UNSUPPORTED|DIGEST_INVALID)"):
            client.delete(repository, "one")
    else:
        assert client.delete(repository, "one")
        assert client.resolve(named(repository, "one")) is None
    assert client.resolve(named(repository, pushed.digest)) == pushed
