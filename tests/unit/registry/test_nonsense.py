"""Tests that invalid registry responses cause only errors of imgbuild."""

from __future__ import annotations

import pytest

from imgbuild.errors import FetchFailed, ImgbuildError
from imgbuild.oci.documents import Descriptor
from imgbuild.registry.client import RegistryClient, UploadOutcome, bytes_source
from tests.support.memory_registry import Fault, change_header

BLOB = bytes_source(b"hello" * 1000)
WHOLE = Descriptor(media_type="x", digest=BLOB.digest, size=BLOB.size)
MANY = "9" * 5000


@pytest.fixture(name="client")
def _client() -> RegistryClient:
    return RegistryClient(attempts=2, first_wait=0.001, timeout=(5, 5))


@pytest.mark.parametrize("wait", ["²", MANY, "-1", "Mon, 99 Jan 2026 00:00:00 GMT"])
def test_invalid_retry_after_header_is_ignored(client, registry, wait):
    registry.faults.append(Fault("HEAD", times=9, status=503, headers={"Retry-After": wait}))
    with pytest.raises(FetchFailed, match="503"):
        client.has(registry.repository("me/x"), BLOB.digest)


@pytest.mark.parametrize("text", ["²", MANY, "-1", ""])
def test_invalid_blob_sizes_are_handled(client, registry, tmp_path, text):
    """The client sends another request, continues without the value, or reports an error."""
    client.upload_blob(registry.repository("me/x"), BLOB)
    for name, value in (
        ("Content-Range", f"bytes 0-0/{text}"),
        ("Content-Range", f"bytes {text}-{text}/5"),
        ("Content-Length", text),
    ):
        edit = change_header(name, value)
        registry.faults[:] = [Fault("(HEAD|GET) .*/blobs/", times=2, edit=edit)]
        try:
            assert client.has(registry.repository("me/x"), BLOB.digest) in (BLOB.size, 5)
        except ImgbuildError as error:
            assert registry.host in error.message  # noqa: PT017 - either is right
    registry.faults[:] = [
        Fault("GET .*/blobs/", edit=change_header("Content-Range", f"bytes {text}/{text}"))
    ]
    (tmp_path / "blob").write_bytes(b"hello")
    client.download(registry.repository("me/x"), WHOLE, tmp_path / "blob")
    assert (tmp_path / "blob").read_bytes() == b"hello" * 1000


@pytest.mark.parametrize("name", ["OCI-Chunk-Min-Length", "Range"])
@pytest.mark.parametrize("text", ["²", MANY, f"0-{MANY}", "0-²"])
def test_invalid_upload_ranges_are_handled(registry, name, text):
    registry.faults.append(
        Fault("(POST|PATCH) .*/uploads/", times=2, edit=change_header(name, text))
    )
    pusher = RegistryClient(chunk=2000, attempts=3, first_wait=0.001)
    assert pusher.upload_blob(registry.repository("me/x"), BLOB) is UploadOutcome.UPLOADED
    assert registry.blobs["me/x", BLOB.digest] == b"hello" * 1000
