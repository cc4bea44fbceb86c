"""Tests reading blobs of a registry, with and without faults."""

from __future__ import annotations

import random
import threading

import pytest

from imgbuild.errors import FetchFailed, IntegrityError
from imgbuild.oci.documents import Descriptor
from imgbuild.registry import blobs
from imgbuild.registry.client import RegistryClient, bytes_source
from tests.support.memory_registry import Answer, Fault, change_header

DATA = random.Random(8).randbytes(300_000)
BLOB = bytes_source(DATA)
WHOLE = Descriptor(media_type="x", digest=BLOB.digest, size=BLOB.size)


def test_existing_registry_blob_is_found(client, registry):
    repository = registry.repository("me/x")
    assert client.has(repository, BLOB.digest) is None
    client.upload_blob(repository, BLOB)
    assert client.has(repository, BLOB.digest) == BLOB.size


@pytest.mark.parametrize(
    "fault",
    [
        Fault("HEAD .*/blobs/", status=405),
        Fault("HEAD .*/blobs/", edit=change_header("Content-Length", "")),
    ],
)
@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("source", [BLOB, bytes_source(b"")])
def test_blob_size_is_read_from_a_registry_without_head_requests(
    client, registry, fault, ranges, source
):
    repository = registry.repository("me/x")
    client.upload_blob(repository, source)
    registry.ranges = ranges
    registry.faults.append(fault)
    assert client.has(repository, source.digest) == source.size


def test_small_registry_blob_is_read(client, registry):
    client.upload_blob(registry.repository("me/x"), BLOB)
    registry.faults.append(Fault("GET .*/blobs/", cut_answer=1000))
    assert client.blob(registry.repository("me/x"), WHOLE) == DATA


@pytest.mark.parametrize("data", [DATA[:-1], DATA + b"x", DATA[:-1] + b"x", b""])
def test_downloaded_blob_with_a_wrong_digest_is_refused(client, registry, tmp_path, data):
    registry.blobs["me/x", BLOB.digest] = data
    with pytest.raises(
        IntegrityError,
        match=f"expected {BLOB.size} bytes with the digest {BLOB.digest}, but received",
    ):
        client.blob(registry.repository("me/x"), WHOLE)
    with pytest.raises(IntegrityError, match=f"me/x@{BLOB.digest} from localhost:.*: expected"):
        client.download(registry.repository("me/x"), WHOLE, tmp_path / "blob")


def test_large_blob_is_not_read_into_memory(client, registry):
    large = Descriptor(media_type="x", digest=BLOB.digest, size=blobs.SMALL_BLOB + 1)
    with pytest.raises(FetchFailed, match=f"{BLOB.digest} has {blobs.SMALL_BLOB + 1} bytes"):
        client.blob(registry.repository("me/x"), large)
    assert registry.requests == []


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("had", [0, 1, 1000, 299_999, 300_000, 300_001])
@pytest.mark.parametrize("redirects", [True, False])
def test_blob_download_resumes_from_partial_file(
    client, registry, tmp_path, ranges, had, redirects
):
    client.upload_blob(registry.repository("me/x"), BLOB)
    registry.ranges, registry.redirects = ranges, redirects
    (tmp_path / "blob").write_bytes((DATA + b"x")[:had])
    counted: list[int] = []
    client.download(registry.repository("me/x"), WHOLE, tmp_path / "blob", counted.append)
    assert (tmp_path / "blob").read_bytes() == DATA
    assert sum(counted) == BLOB.size
    if had == BLOB.size:
        assert registry.received_requests("GET .*/blobs/") == []


@pytest.mark.parametrize("ranges", [True, False])
def test_blob_download_resumes_after_dropped_connection(client, registry, tmp_path, ranges):
    client.upload_blob(registry.repository("me/x"), BLOB)
    registry.ranges = ranges
    registry.faults.append(Fault("GET .*/blobs/", cut_answer=100_000))
    registry.faults.append(Fault("GET .*/blobs/", status=500))
    client.download(registry.repository("me/x"), WHOLE, tmp_path / "blob")
    assert (tmp_path / "blob").read_bytes() == DATA
    range_headers = [
        request.headers.get("Range") for request in registry.received_requests("GET .*/blobs/")
    ]
    assert range_headers == [None, "bytes=100000-", "bytes=100000-"]


def test_wrong_partial_file_of_a_blob_is_replaced(client, registry, tmp_path):
    client.upload_blob(registry.repository("me/x"), BLOB)
    (tmp_path / "blob").write_bytes(b"x" * 1000)
    client.download(registry.repository("me/x"), WHOLE, tmp_path / "blob")
    assert (tmp_path / "blob").read_bytes() == DATA


@pytest.mark.parametrize("lie", ["bytes 0-999/300000", "bytes 2000-299999/300000"])
def test_blob_download_handles_a_wrong_content_range(client, registry, tmp_path, lie):
    client.upload_blob(registry.repository("me/x"), BLOB)
    (tmp_path / "blob").write_bytes(DATA[:1000])
    registry.faults.append(Fault("GET .*/blobs/", edit=change_header("Content-Range", lie)))
    client.download(registry.repository("me/x"), WHOLE, tmp_path / "blob")
    assert (tmp_path / "blob").read_bytes() == DATA


def test_unresponsive_registry_is_an_error(registry, tmp_path):
    free = threading.Event()

    def _wait(_: Answer) -> None:
        free.wait(30)

    registry.blobs["me/x", BLOB.digest] = DATA
    registry.faults.append(Fault("GET .*/blobs/", times=9, edit=_wait))
    client = RegistryClient(attempts=2, first_wait=0.001, timeout=(0.2, 0.2))
    try:
        with pytest.raises(FetchFailed, match="timed out"):
            client.download(registry.repository("me/x"), WHOLE, tmp_path / "blob")
    finally:
        free.set()
