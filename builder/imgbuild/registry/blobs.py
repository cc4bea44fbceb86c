"""Checks, reads and downloads blobs in a registry."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from imgbuild.cache.download import Download, FileRequest
from imgbuild.errors import FetchFailed, IntegrityError
from imgbuild.http.client import IDENTITY_ENCODING, RequestRefused
from imgbuild.http.headers import content_range, parse_integer
from imgbuild.http.request import Request
from imgbuild.lock.resolution import LockedFile
from imgbuild.oci.documents import Descriptor
from imgbuild.registry import hosts
from imgbuild.registry.authorizer import pull_scope
from imgbuild.registry.image_reference import Repository
from imgbuild.registry.manifests import REFUSED_REMEDY, convert_not_found
from imgbuild.registry.transport import RegistryHttp
from imgbuild.system import files
from imgbuild.system.threads import StopFlag
from imgbuild.values import Digest, digest_of

if TYPE_CHECKING:
    from imgbuild.http.session import Response

SMALL_BLOB = 64 * 1024 * 1024


def blob_size(
    http: RegistryHttp, repository: Repository, digest: Digest, *, push: bool = False
) -> int | None:
    """Return the size of a blob, or None if it is missing.

    With `push`, the endpoint for pushes is queried.
    """
    scopes = (f"repository:{repository.name}:pull{',push' if push else ''}",)
    capability = hosts.PUSH if push else hosts.PULL
    path, shown = f"{repository.name}/blobs/{digest}", f"{repository}@{digest}"
    for method, headers in (
        ("HEAD", IDENTITY_ENCODING),
        ("GET", {**IDENTITY_ENCODING, "Range": "bytes=0-0"}),
    ):
        request = Request(path, headers, method, shown=shown, scopes=scopes)
        try:
            size = http.send_request(repository.host, capability, request, _size)
        except RequestRefused as refused:
            if refused.status == 404:
                return None
            if refused.status == 416 and method == "GET":
                return 0
            if refused.status not in (400, 403, 405, 501) or method == "GET":
                raise
        else:
            if size is not None:
                return size
    message = f"{shown}: the registry does not report the size"
    raise FetchFailed(message)


def _size(response: Response) -> int | None:
    if response.status_code == 206:
        return content_range(response.headers)[1]
    return parse_integer(response.headers.get("Content-Length", ""))


def read_blob(http: RegistryHttp, repository: Repository, descriptor: Descriptor) -> bytes:
    """Read a blob of at most `SMALL_BLOB` bytes.

    Raises NotFound if the blob is missing, FetchFailed if it is larger, and IntegrityError if the
    content does not match the descriptor.
    """
    if descriptor.size > SMALL_BLOB:
        message = f"{repository}@{descriptor.digest} has {descriptor.size} bytes"
        raise FetchFailed(message, hint="use an image with documents of at most 64 MiB")

    def _read_response(response: Response) -> bytes:
        data = bytearray()
        for chunk in http.client.chunks(response):
            data += chunk
            if len(data) > descriptor.size:
                raise _mismatch(repository, descriptor, "more bytes")
        actual = digest_of(bytes(data))
        if actual != descriptor.digest or len(data) != descriptor.size:
            raise _mismatch(repository, descriptor, f"{len(data)} bytes, {actual}")
        return bytes(data)

    request = Request(
        f"{repository.name}/blobs/{descriptor.digest}",
        IDENTITY_ENCODING,
        shown=f"{repository}@{descriptor.digest}",
        scopes=(pull_scope(repository.name),),
    )
    with convert_not_found(request.shown):
        return http.send_request(repository.host, hosts.PULL, request, _read_response)


def file_request(
    http: RegistryHttp, repository: Repository, locked: LockedFile, *, layer: bool = False
) -> FileRequest:
    """Return the request to download the blob with the SHA-256 of `locked`.

    Mirrors are tried first.
    """
    digest = f"sha256:{locked.sha256}"

    def _urls() -> list[str]:
        path = f"{repository.name}/blobs/{digest}"
        return [each.url(path) for each in http.capable_endpoints(repository.host, hosts.PULL)]

    return FileRequest(locked, _urls, shown=f"{repository}@{digest}", layer=layer)


def download_blob(
    http: RegistryHttp,
    repository: Repository,
    descriptor: Descriptor,
    path: Path,
    advance: Callable[[int], object],
) -> None:
    """Download a blob to the file `path`.

    If the file contains the first bytes of the blob, only the remaining bytes are fetched. Raises
    NotFound if the blob is missing, and IntegrityError if no endpoint serves the right bytes.
    """
    request = file_request(http, repository, locked_blob(repository, descriptor))
    path.touch()
    with (
        files.plain_errors(path),
        path.open("r+b", buffering=0) as file,
        convert_not_found(request.shown),
    ):
        Download(request, file, http.client, advance, http.reporter, StopFlag()).run()


def locked_blob(repository: Repository, descriptor: Descriptor) -> LockedFile:
    """Return the locked file that has the digest and size of `descriptor`."""
    return LockedFile(
        file=f"{repository}@{descriptor.digest}",
        size=descriptor.size,
        sha256=descriptor.digest.removeprefix("sha256:"),
    )


def _mismatch(repository: Repository, descriptor: Descriptor, actual: str) -> IntegrityError:
    message = (
        f"{repository}: expected {descriptor.size} bytes with the digest {descriptor.digest}, but"
        f" received {actual}"
    )
    return IntegrityError(message, hint=REFUSED_REMEDY)
