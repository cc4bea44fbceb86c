"""Tests that pulls from a faulty registry keep the digest or leave no output."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from imgbuild.cache.store import Store
from imgbuild.errors import FetchFailed, InputError, IntegrityError
from imgbuild.oci import documents, layout
from imgbuild.publish import pull, push
from imgbuild.registry.client import NotFound, RegistryClient
from imgbuild.registry.image_reference import ImageReference
from imgbuild.values import Arch
from tests.support import images, registry_project
from tests.support.inprocess_project import TARGET
from tests.support.memory_registry import Answer, Fault
from tests.support.memory_registry_values import sha256_digest
from tests.support.registry_project import BOTH, NAME, Place

CLIENT = RegistryClient(first_wait=0.001, attempts=3)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Yield a registry with both targets, and an empty cache."""
    for prepared in registry_project.place(tmp_path, monkeypatch):
        prepared.push()
        push.push_target(prepared.work(), prepared.both())
        prepared.forget(monkeypatch)
        prepared.registry.requests.clear()
        yield prepared


def pulled(place: Place, out: Path, tag: str = BOTH, arch: Arch | None = None) -> pull.PulledImage:
    return pull.pull_image(CLIENT, place.reference(tag), out, Store.open(), arch)


def layer(place: Place) -> str:
    """Return a layer that both targets have."""
    manifest = place.registry.manifests[NAME, place.registry.tags[NAME, TARGET]][0]
    digest: str = json.loads(manifest)["layers"][-2]["digest"]
    return digest


def test_pulled_layout_has_the_digest_and_documents_of_the_registry(place, tmp_path):
    done = pulled(place, tmp_path / "image")
    pulled_layout = images.verify_layout(tmp_path / "image")
    assert pulled_layout.digest == done.digest == place.registry.tags[NAME, BOTH]
    assert pulled_layout.name == BOTH
    assert set(pulled_layout.images) == set(Arch)
    assert done.reference == f"{place.repository}@{done.digest}"
    for (_, digest), (data, _) in place.registry.manifests.items():
        if digest == pulled_layout.digest or digest in done.arch.values():
            assert pulled_layout.blob(digest).read_bytes() == data
    assert done.size == sum(
        path.stat().st_size for path in pulled_layout.path.glob("blobs/sha256/*")
    ) - (pulled_layout.top.size) + sum(
        layer.size for layer in pulled_layout.image(Arch.ARM64).layers
    )


def test_second_pull_downloads_nothing(place, tmp_path):
    assert pulled(place, tmp_path / "image").moved > 0
    place.registry.requests.clear()
    again = pulled(place, tmp_path / "image")
    assert (again.unchanged, again.moved) == (True, 0)
    assert len(place.registry.received_requests("GET .*/blobs/")) == len(Arch)  # the configurations


def test_pull_links_cached_layers_and_keeps_layout_layers(place, tmp_path, monkeypatch):
    pulled(place, tmp_path / "one")
    other = pulled(place, tmp_path / "two")
    assert other.moved == 0
    base = layout.read_layout(tmp_path / "two").image(Arch.ARM64).layers[0].digest
    first, second = (layout.blob_path(tmp_path / name, base) for name in ("one", "two"))
    assert first.samefile(second)
    monkeypatch.setenv("IMGBUILD_CACHE", str(tmp_path / "third-cache"))
    (tmp_path / "one/index.json").unlink()  # a pull that was killed
    assert pulled(place, tmp_path / "one").moved == 0
    assert images.verify_layout(tmp_path / "one").digest == other.digest


@pytest.mark.parametrize("cached", [False, True])
def test_damaged_layout_layer_is_pulled_again(place, tmp_path, monkeypatch, cached):
    done = pulled(place, tmp_path / "image")
    if not cached:
        monkeypatch.setenv("IMGBUILD_CACHE", str(tmp_path / "another-cache"))
    path = layout.blob_path(tmp_path / "image", layer(place))
    size = path.stat().st_size
    path.chmod(0o644)
    path.write_bytes(bytes(size))
    again = pulled(place, tmp_path / "image")
    assert (again.unchanged, again.moved) == (False, size)
    assert images.verify_layout(tmp_path / "image").digest == done.digest


def test_layout_with_another_image_is_refused_before_download(place, tmp_path):
    pulled(place, tmp_path / "image")
    place.registry.requests.clear()
    with pytest.raises(InputError, match=f"contains images other than {TARGET}: {BOTH}") as caught:
        pulled(place, tmp_path / "image", TARGET)
    assert "--output" in (caught.value.hint or "")
    assert images.verify_layout(tmp_path / "image").name == BOTH
    assert len(place.registry.received_requests("GET .*/blobs/")) == 1  # the configuration


def test_pull_of_one_architecture_keeps_the_manifest_digest(place, tmp_path):
    done = pulled(place, tmp_path / "image", arch=Arch.ARM64)
    assert done.arch == {Arch.ARM64: done.digest}
    pulled_layout = images.verify_layout(tmp_path / "image")
    assert pulled_layout.digest == done.digest != place.registry.tags[NAME, BOTH]
    assert pulled_layout.top.platform == {"architecture": "arm64", "os": "linux", "variant": "v8"}


@pytest.mark.parametrize("tag", [TARGET, BOTH])
def test_pull_of_a_missing_architecture_is_refused(place, tmp_path, tag):
    index = json.loads(place.registry.manifests[NAME, place.registry.tags[NAME, tag]][0])
    if "manifests" in index:
        index["manifests"] = [
            entry for entry in index["manifests"] if entry["platform"]["architecture"] == "amd64"
        ]
        data = json.dumps(index).encode()
        place.registry.manifests[NAME, sha256_digest(data)] = (data, documents.INDEX)
        place.registry.tags[NAME, tag] = sha256_digest(data)
    with pytest.raises(InputError, match="arm64") as caught:
        pulled(place, tmp_path / "image", tag, Arch.ARM64)
    assert caught.value.hint
    assert not (tmp_path / "image").exists()


def test_pull_resumes_after_dropped_connection(place, tmp_path):
    digest = layer(place)
    place.registry.faults.append(Fault(f"GET .*/blobs/{digest}", times=2, cut_answer=700))
    pulled(place, tmp_path / "image")
    images.verify_layout(tmp_path / "image")
    requests = place.registry.received_requests(f"GET .*/blobs/{digest}")
    assert [request.headers.get("Range") for request in requests] == [
        None,
        "bytes=700-",
        "bytes=1400-",
    ]


def test_failed_pull_can_be_resumed(place, tmp_path):
    digest = layer(place)
    place.registry.faults.append(Fault(f"GET .*/blobs/{digest}", times=40, cut_answer=100))
    with pytest.raises(FetchFailed):
        pulled(place, tmp_path / "image")
    assert not (tmp_path / "image/index.json").exists()
    place.registry.faults.clear()
    place.registry.requests.clear()
    pulled(place, tmp_path / "image")
    images.verify_layout(tmp_path / "image")
    requests = place.registry.received_requests(f"GET .*/blobs/{digest}")
    assert [request.headers.get("Range") for request in requests] == ["bytes=300-"]


def test_pulled_layer_with_a_wrong_digest_is_refused(place, tmp_path):
    digest = layer(place)
    data = place.registry.blobs[NAME, digest]
    place.registry.blobs[NAME, digest] = data[:-1] + bytes([data[-1] ^ 1])
    with pytest.raises(IntegrityError, match="found sha256 ") as caught:
        pulled(place, tmp_path / "image", TARGET)
    assert digest in caught.value.message
    assert not (tmp_path / "image/index.json").exists()
    assert Store.open().blob(digest) is None
    place.registry.blobs[NAME, digest] = data
    pulled(place, tmp_path / "image", TARGET)
    images.verify_layout(tmp_path / "image")


@pytest.mark.parametrize("kind", ["manifests", "blobs"])
def test_pulled_document_with_a_wrong_digest_is_refused(place, tmp_path, kind):
    def _lie(answer: Answer) -> None:
        answer.body = answer.body.replace(b"linux", b"other").replace(b"layers", b"layerz")

    place.registry.faults.append(Fault(f"GET .*/{kind}/sha256:", times=9, edit=_lie))
    with pytest.raises(IntegrityError):
        pulled(place, tmp_path / "image")
    assert not (tmp_path / "image").exists()


def test_pull_of_an_unsupported_image_format_is_refused(place, tmp_path):
    docker = "application/vnd.docker.distribution.manifest.v2+json"
    data = json.dumps({"schemaVersion": 2, "mediaType": docker}).encode()
    place.registry.manifests[NAME, sha256_digest(data)] = (data, docker)
    place.registry.tags[NAME, "old"] = sha256_digest(data)
    with pytest.raises(InputError, match=re.escape(docker)):
        pulled(place, tmp_path / "image", "old")
    with pytest.raises(NotFound, match="absent not found"):
        pulled(place, tmp_path / "image", "absent")


def test_pulled_layout_is_named_after_the_tag_or_the_repository():
    assert pull.layout_name(ImageReference("h.example", "me/rl", "cu124")) == "cu124"
    assert (
        pull.layout_name(ImageReference("h.example", "me/rl", None, "sha256:" + "0" * 64)) == "rl"
    )
