"""Tests uploads to a registry that drops connections, rejects requests and loses data."""

from __future__ import annotations

import io
import random
from typing import BinaryIO

import pytest

from imgbuild.errors import FetchFailed, ImgbuildError, IntegrityError, WorkFailed
from imgbuild.registry import uploads
from imgbuild.registry.client import (
    BlobSource,
    RegistryClient,
    UploadOutcome,
    bytes_source,
    file_source,
)
from imgbuild.system.threads import StoppedThread
from tests.support import memory_registry
from tests.support.memory_registry import SECRET, Answer, Fault, Registry

DATA = random.Random(6).randbytes(300_000)
BLOB = bytes_source(DATA)
PUT = "PUT .*(uploads|elsewhere)/"
PATCH = "PATCH .*(uploads|elsewhere)/"


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "CHUNK", 100_000)


@pytest.fixture(name="client")
def _client() -> RegistryClient:
    return RegistryClient(attempts=4, first_wait=0.001, timeout=(5, 5))


class Counter:
    """A counter of the reported progress."""

    def __init__(self) -> None:
        self.total = 0
        self.result: list[int] = []

    def __call__(self, amount: int) -> None:
        self.total += amount
        self.result.append(amount)


def push(
    client: RegistryClient, registry: Registry, source: BlobSource = BLOB, name: str = "me/x"
) -> UploadOutcome:
    """Upload, and check the invariants of successful uploads."""
    counter = Counter()
    outcome = client.upload_blob(registry.repository(name), source, advance=counter)
    assert counter.total == source.size
    with source.open(0) as reader:
        assert reader.read() == registry.blobs[name, source.digest]
    assert registry.sessions == {}
    return outcome


def sizes(registry: Registry, where: str) -> list[int]:
    return [request.size for request in registry.received_requests(where)]


def test_small_blob_is_uploaded_in_one_request(client, registry):
    assert push(client, registry) is UploadOutcome.UPLOADED
    assert sizes(registry, PUT) == [len(DATA)]
    assert registry.received_requests(PATCH) == []
    assert push(client, registry) is UploadOutcome.PRESENT
    assert len(registry.received_requests(PUT)) == 1


def test_empty_blob_is_uploaded(client, registry):
    assert push(client, registry, bytes_source(b"")) is UploadOutcome.UPLOADED


@pytest.mark.parametrize(("chunk", "count"), [(100_000, 3), (70_000, 5), (1_000_000, 1)])
def test_blob_is_uploaded_in_chunks(registry, chunk, count):
    assert push(RegistryClient(chunk=chunk), registry) is UploadOutcome.UPLOADED
    assert len(registry.received_requests(PATCH)) == count
    assert sizes(registry, PUT) == [0]
    ranges = [request.headers["Content-Range"] for request in registry.received_requests(PATCH)]
    assert ranges[0] == f"0-{min(chunk, len(DATA)) - 1}"
    assert ranges[-1].endswith(f"-{len(DATA) - 1}")


def test_minimum_chunk_size_of_the_registry_is_used(registry):
    registry.chunk_minimum = 120_000
    push(RegistryClient(chunk=1000), registry)
    assert sizes(registry, PATCH) == [120_000, 120_000, 60_000]


@pytest.mark.parametrize("locations", ["absolute", "relative", "foreign"])
@pytest.mark.parametrize("chunk", [None, 100_000])
def test_upload_location_formats_are_accepted(registry, locations, chunk):
    registry.locations = locations
    push(RegistryClient(chunk=chunk), registry)
    sent = registry.received_requests(f"{PUT}|{PATCH}")
    assert {request.server for request in sent} == {
        "storage" if locations == "foreign" else "registry"
    }
    if locations != "foreign":
        assert all(f"_state={SECRET}" in request.path for request in sent)


# -- mounts


def mount(client, registry, name):
    repository, other = registry.repository("me/x"), registry.repository(name)
    return client.mount(repository, BLOB.digest, BLOB.size, other)


def test_blob_of_another_repository_is_mounted(client, registry):
    push(client, registry, name="me/other")
    before = len(registry.received_requests(PUT))
    assert mount(client, registry, "me/other")
    assert len(registry.received_requests(PUT)) == before
    assert registry.blobs["me/x", BLOB.digest] == DATA
    assert registry.sessions == {}


@pytest.mark.parametrize("status", [None, 400, 403, 404])
def test_failed_mount_closes_the_upload_session(client, registry, status):
    push(client, registry, name="me/other")
    registry.mounts = False
    if status is not None:
        registry.faults.append(Fault("POST .*mount=", status=status))
    assert not mount(client, registry, "me/other")
    assert ("me/x", BLOB.digest) not in registry.blobs
    assert registry.sessions == {}


def test_mounted_blob_that_is_missing_afterwards_is_an_error(client, registry):
    def _say(answer: Answer) -> None:
        answer.status = 201

    registry.faults.append(Fault("POST .*mount=", edit=_say))
    assert not mount(client, registry, "me/other")
    assert ("me/x", BLOB.digest) not in registry.blobs


def test_mount_from_another_registry_is_not_requested(client, registry):
    with memory_registry.serve(Registry()) as other:
        neighbour = other.repository("me/x")
        assert not client.mount(registry.repository("me/x"), BLOB.digest, BLOB.size, neighbour)
    assert registry.received_requests("mount=") == []


# -- dropped connections


@pytest.mark.parametrize("cut", [0, 1, 1000, 299_999])
def test_dropped_upload_resumes_after_the_received_bytes(client, registry, cut):
    registry.faults.append(Fault(PUT, cut_request=cut))
    assert push(client, registry) is UploadOutcome.UPLOADED
    # "0-0" means one byte or none: the byte is sent again.
    assert sum(sizes(registry, f"{PUT}|{PATCH}")) == len(DATA) + (1 if cut == 1 else 0)


def test_blobs_after_a_dropped_upload_are_sent_in_chunks(client, registry):
    registry.faults.append(Fault(PUT, cut_request=1000))
    push(client, registry)
    del registry.requests[:]
    push(client, registry, bytes_source(bytes(250_000)))
    assert sizes(registry, PATCH) == [100_000, 100_000, 50_000]
    push(RegistryClient(), registry, bytes_source(b"another client"))
    assert len(registry.received_requests(PATCH)) == 3


def test_chunks_are_used_if_the_registry_discards_a_partial_upload(client, registry):
    registry.keeps_parts = False
    registry.faults.append(Fault(PUT, cut_request=200_000))
    registry.faults.append(Fault(PATCH, cut_request=99_999))
    assert push(client, registry) is UploadOutcome.UPLOADED
    assert sizes(registry, PATCH) == [99_999, 100_000, 100_000, 100_000]


def test_dropped_upload_is_retried_while_it_makes_progress(registry, monkeypatch):
    monkeypatch.setattr(uploads, "_PROGRESS", 10_000)
    registry.faults.append(Fault(f"{PUT}|{PATCH}", times=12, cut_request=20_000))
    push(RegistryClient(attempts=3, first_wait=0.001), registry)


def test_upload_without_progress_fails(client, registry):
    registry.faults.append(Fault(f"{PUT}|{PATCH}", times=99, cut_request=0))
    with pytest.raises(FetchFailed, match=f"upload of {BLOB.digest} to {registry.host}/me/x"):
        client.upload_blob(registry.repository("me/x"), BLOB)
    assert registry.blobs == {}


@pytest.mark.parametrize("where", [PUT, "POST .*/uploads/", "HEAD .*/blobs/"])
def test_upload_succeeds_after_lost_response(client, registry, where):
    registry.faults.append(Fault(where, mute=True))
    counter = Counter()
    outcome = client.upload_blob(registry.repository("me/x"), BLOB, advance=counter)
    assert (outcome, counter.total) == (UploadOutcome.UPLOADED, BLOB.size)
    assert registry.blobs["me/x", BLOB.digest] == DATA
    assert len(registry.received_requests(PUT)) == 1  # it was received, and is not sent again


def test_chunk_upload_succeeds_after_lost_response(registry):
    registry.faults.append(Fault(PATCH, mute=True))
    push(RegistryClient(chunk=100_000, first_wait=0.001), registry)
    assert sizes(registry, PATCH) == [100_000] * 3


@pytest.mark.parametrize("status", [429, 500, 502, 503])
@pytest.mark.parametrize(
    "where", ["HEAD .*/blobs/", "POST .*/uploads/", PUT, PATCH, "GET .*uploads"]
)
def test_upload_to_a_busy_registry_is_retried(registry, status, where):
    registry.faults.append(Fault(where, times=2, status=status, headers={"Retry-After": "0"}))
    registry.faults.append(Fault(PATCH, cut_request=10))
    push(RegistryClient(first_wait=0.001, chunk=100_000 if where != PUT else None), registry)


def test_lost_upload_session_is_restarted(client, registry):
    def _forget(answer: Answer) -> None:
        registry.sessions.clear()
        answer.status, answer.body = 404, b"{}"

    registry.faults.append(Fault("GET .*/uploads/", edit=_forget))
    registry.faults.append(Fault(PUT, cut_request=1000))
    push(client, registry)
    assert len(registry.received_requests("POST .*/uploads/")) == 2


def test_blob_too_large_for_one_request_is_chunked(client, registry):
    registry.largest = 150_000
    push(client, registry)
    assert sizes(registry, PATCH) == [100_000] * 3


# -- false reports


@pytest.mark.parametrize("range_header", ["0-999999", "0-299999", "nonsense", ""])
def test_impossible_range_in_an_upload_response_is_not_trusted(registry, range_header):
    def _lie(answer: Answer) -> None:
        answer.headers["Range"] = range_header

    registry.faults.append(Fault(PATCH, edit=_lie))
    push(RegistryClient(chunk=100_000, first_wait=0.001), registry)


@pytest.mark.parametrize("range_header", ["0-199999", "0-99", "0-0", "0-299999", "0-300000", ""])
def test_upload_handles_a_wrong_resume_offset(client, registry, range_header):
    """The registry reports more or fewer bytes for an upload with 1000 bytes."""

    def _lie(answer: Answer) -> None:
        answer.headers["Range"] = range_header

    registry.faults.append(Fault("GET .*/uploads/", edit=_lie))
    registry.faults.append(Fault(PUT, cut_request=1000))
    push(client, registry)


def test_stored_blob_with_a_different_digest_is_an_error(client, registry):
    def _lie(answer: Answer) -> None:
        answer.headers["Docker-Content-Digest"] = f"sha256:{'0' * 64}"

    registry.faults.append(Fault(PUT, edit=_lie))
    with pytest.raises(IntegrityError, match="reports that it stored sha256:0000"):
        client.upload_blob(registry.repository("me/x"), BLOB)


def test_blob_missing_after_upload_is_an_error(client, registry):
    def _forget(_: Answer) -> None:
        registry.blobs.clear()

    registry.faults.append(Fault(PUT, edit=_forget))
    with pytest.raises(IntegrityError, match="accepted the upload, but does not have the blob"):
        client.upload_blob(registry.repository("me/x"), BLOB)


@pytest.mark.parametrize("there", [True, False])
def test_truncated_blob_is_an_error(client, registry, there):
    def _truncate(_: Answer) -> None:
        registry.blobs["me/x", BLOB.digest] = DATA[:-1]

    if there:
        _truncate(Answer(200))
    registry.faults.append(Fault(PUT, edit=_truncate))
    with pytest.raises(IntegrityError, match="299999 bytes as"):
        client.upload_blob(registry.repository("me/x"), BLOB)


# -- stops


@pytest.mark.parametrize("where", ["in the body", "between tries"])
def test_upload_that_is_stopped_is_cancelled_in_the_registry(client, registry, where):
    """If another thread fails, the next progress call stops the upload."""

    def _advance(amount: int) -> None:
        if amount == 0 or where == "in the body":
            raise StoppedThread

    registry.faults.append(Fault(PUT, times=99, status=503))
    with pytest.raises(StoppedThread):
        client.upload_blob(registry.repository("me/x"), BLOB, advance=_advance)
    assert len(registry.received_requests("POST")) == len(registry.received_requests("DELETE")) == 1
    assert len(registry.received_requests(PUT)) <= 1
    assert registry.sessions == {}
    assert registry.blobs == {}


# -- sources


def test_upload_source_with_wrong_digest_is_refused(client, registry):
    wrong = BlobSource(BLOB.digest, BLOB.size, lambda offset: io.BytesIO(bytes(BLOB.size - offset)))
    with pytest.raises(IntegrityError, match="DIGEST_INVALID") as caught:
        client.upload_blob(registry.repository("me/x"), wrong)
    assert "create the file again" in str(caught.value.hint)
    assert registry.blobs == {}


@pytest.mark.parametrize("chunk", [None, 100_000])
def test_truncated_upload_source_is_refused(registry, chunk):
    short = BlobSource(BLOB.digest, BLOB.size, lambda offset: io.BytesIO(DATA[offset:-5]))
    with pytest.raises(IntegrityError, match="fewer than the expected 300000 bytes"):
        RegistryClient(chunk=chunk).upload_blob(registry.repository("me/x"), short)
    assert registry.blobs == {}


def test_unreadable_upload_source_is_an_error(client, registry, tmp_path):
    gone = file_source(tmp_path / "none", BLOB.digest, BLOB.size)
    with pytest.raises(WorkFailed, match="cannot read sha256:"):
        client.upload_blob(registry.repository("me/x"), gone)


def test_file_on_disk_is_uploaded(client, registry, tmp_path):
    (tmp_path / "blob").write_bytes(DATA)
    push(client, registry, file_source(tmp_path / "blob", BLOB.digest, BLOB.size))


def test_uploaded_blob_is_not_held_in_memory(client, registry):
    largest = 0

    class Reader(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            nonlocal largest
            data = super().read(size)
            largest = max(largest, len(data))
            return data

    def _open(offset: int) -> BinaryIO:
        return Reader(DATA[offset:])

    client.upload_blob(registry.repository("me/x"), BlobSource(BLOB.digest, BLOB.size, _open))
    assert registry.blobs["me/x", BLOB.digest] == DATA
    assert 0 < largest <= uploads.PIECE


def test_refused_upload_is_an_error_with_the_registry_message(client, registry):
    body = b'{"errors": [{"code": "DENIED", "message": "quota is used up"}]}'
    registry.faults.append(Fault(PUT, status=403, body=body))
    with pytest.raises(FetchFailed, match="403 Forbidden: DENIED: quota is used up") as caught:
        client.upload_blob(registry.repository("me/x"), BLOB)
    assert f"docker login {registry.host}" in str(caught.value.hint)
    assert len(registry.received_requests(PUT)) == 1
    assert registry.sessions == {}


@pytest.mark.parametrize("locations", ["absolute", "relative", "foreign"])
@pytest.mark.parametrize("status", [400, 401, 403, 500])
def test_errors_contain_no_upload_location(client, registry, locations, status):
    registry.locations = locations
    registry.faults.append(Fault(PUT, times=99, status=status))
    with pytest.raises(ImgbuildError) as caught:
        client.upload_blob(registry.repository("me/x"), BLOB)
    assert SECRET not in caught.value.message + str(caught.value.hint)
    assert BLOB.digest in caught.value.message
    assert caught.value.__cause__ is None
