"""Blobs in a registry: check for them, read small ones, download large ones.

An interrupted download continues from its last byte.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING

import msgspec

from imgbuild.errors import FetchFailed, IntegrityError
from imgbuild.http.client import Refused
from imgbuild.http.headers import content_range, number
from imgbuild.http.request import Request
from imgbuild.oci.documents import Descriptor
from imgbuild.registry import hosts
from imgbuild.registry.manifests import REFUSED, expected
from imgbuild.registry.reference import Repository
from imgbuild.registry.transport import PLAIN, RegistryHttp, at, pulling
from imgbuild.system import files
from imgbuild.values import Digest, digest_of

if TYPE_CHECKING:
    from imgbuild.http.session import Response

SMALL = 64 * 1024 * 1024
_PROGRESS = 1 << 20  # bytes after which a broken connection counts as a new start


def has(
    http: RegistryHttp, repository: Repository, digest: Digest, *, push: bool = False
) -> int | None:
    """The size of a blob; None if there is none. `push`: ask the endpoint that takes pushes."""
    scopes = (f"repository:{repository.name}:pull{',push' if push else ''}",)
    capability = hosts.PUSH if push else hosts.PULL
    path, shown = f"{repository.name}/blobs/{digest}", f"{repository}@{digest}"
    for method, headers in (("HEAD", PLAIN), ("GET", {**PLAIN, "Range": "bytes=0-0"})):
        request = Request(path, headers, method, shown=shown, scopes=scopes)
        try:
            size = http.ask(repository.host, capability, request, _size)
        except Refused as refused:
            if refused.status == 404:
                return None
            if refused.status == 416 and method == "GET":
                return 0
            if refused.status not in (400, 403, 405, 501) or method == "GET":
                raise
        else:
            if size is not None:
                return size
    message = f"{shown}: the registry does not state the size"
    raise FetchFailed(message)


def _size(response: Response) -> int | None:
    if response.status_code == 206:
        return content_range(response.headers)[1]
    return number(response.headers.get("Content-Length", ""))


def read(http: RegistryHttp, repository: Repository, descriptor: Descriptor) -> bytes:
    """A small blob. NotFound if there is none, IntegrityError if it is another."""
    if descriptor.size > SMALL:
        message = f"{repository}@{descriptor.digest} has {descriptor.size} bytes"
        raise FetchFailed(message, hint="at most 64 MiB can be read into memory")

    def _read(response: Response) -> bytes:
        data = bytearray()
        for chunk in http.chunks(response):
            data += chunk
            if len(data) > descriptor.size:
                raise _mismatch(repository, descriptor, "more bytes")
        found = digest_of(bytes(data))
        if found != descriptor.digest or len(data) != descriptor.size:
            raise _mismatch(repository, descriptor, f"{len(data)} bytes, {found}")
        return bytes(data)

    request = _asked(repository, descriptor)
    with expected(request.shown):
        return http.ask(repository.host, hosts.PULL, request, _read)


def _asked(repository: Repository, descriptor: Descriptor) -> Request:
    return Request(
        f"{repository.name}/blobs/{descriptor.digest}",
        PLAIN,
        shown=f"{repository}@{descriptor.digest}",
        scopes=(pulling(repository.name),),
    )


def addresses(http: RegistryHttp, repository: Repository, digest: Digest) -> tuple[str, ...]:
    """Where a blob may be fetched, mirrors first."""
    path = f"{repository.name}/blobs/{digest}"
    return tuple(each.url(path) for each in http.endpoints(repository.host, hosts.PULL))


def download(
    http: RegistryHttp,
    repository: Repository,
    descriptor: Descriptor,
    path: Path,
    advance: Callable[[int], object],
) -> None:
    """Download a blob to the file `path`, which may have its first bytes already.

    IntegrityError, and the file is removed, if no endpoint serves these bytes.
    """
    path.touch()
    with files.plain_errors(path), path.open("r+b", buffering=0) as file:
        work = _Download(http, repository, descriptor, file, advance)
        try:
            work.run()
        except IntegrityError:
            path.unlink()
            raise


class _Download:
    """The download of one blob."""

    def __init__(
        self,
        http: RegistryHttp,
        repository: Repository,
        descriptor: Descriptor,
        file: IO[bytes],
        advance: Callable[[int], object],
    ) -> None:
        self._http = http
        self._repository = repository
        self._descriptor = descriptor
        self._file = file
        self._advance = advance
        self._size = 0
        self._hash = hashlib.sha256()

    def run(self) -> None:
        """Complete the file from the first endpoint that gives it."""
        for chunk in iter(lambda: self._file.read(1 << 20), b""):
            self._count(chunk)
        if self._size > self._descriptor.size:
            self._restart()
        request = _asked(self._repository, self._descriptor)
        with expected(request.shown):
            self._http.one_of(
                self._repository.host,
                hosts.PULL,
                lambda endpoint: self._from(at(endpoint, request)),
            )

    def _from(self, request: Request) -> None:
        from imgbuild.http.session import Transient

        tries, furthest, restarted = 0, self._size, False
        while True:
            begun = self._size
            try:
                if self._size < self._descriptor.size:
                    begun = self._append(request)
                found = f"sha256:{self._hash.hexdigest()}"
                if found == self._descriptor.digest:
                    return
                self._restart()
                if begun == 0 or restarted:
                    raise _mismatch(self._repository, self._descriptor, found)
                restarted = True  # the older part may be what is wrong: once more, from the start
            except Transient as transient:
                tries += transient.cost
                if self._size >= furthest + _PROGRESS:
                    tries, furthest = 0, self._size
                self._http.give_up(request.place, tries, transient.reason, transient.wait)
                self._http.pause(max(1, tries), transient.wait)

    def _append(self, request: Request) -> int:
        """Request the missing bytes; returns the offset from which the answer was used."""
        from imgbuild.http.session import Transient

        more = {"Range": f"bytes={self._size}-"} if self._size else {}
        asked = msgspec.structs.replace(request, headers={**request.headers, **more})
        try:
            with self._http.send(asked) as response:
                start, total = content_range(response.headers)
                if self._size and (response.status_code != 206 or start != self._size):
                    self._restart()  # the server ignores ranges, or gives another one
                    if response.status_code == 206:
                        return self._append(request)
                begun, length = self._size, number(response.headers.get("Content-Length", ""))
                if total is None and length is not None:
                    total = begun + length
                if total not in (None, self._descriptor.size):
                    raise _mismatch(self._repository, self._descriptor, f"{total} bytes")
                for chunk in self._http.chunks(response):
                    if self._size + len(chunk) > self._descriptor.size:
                        self._restart()
                        raise _mismatch(self._repository, self._descriptor, "more bytes")
                    self._file.write(chunk)
                    self._count(chunk)
        except Refused as refused:
            if refused.status != 416 or not self._size:
                raise
            self._restart()
            return self._append(request)
        if self._size < self._descriptor.size:
            reason = "the connection ended early"
            raise Transient(reason)
        return begun

    def _count(self, chunk: bytes) -> None:
        self._hash.update(chunk)
        self._size += len(chunk)
        self._advance(len(chunk))

    def _restart(self) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._advance(-self._size)
        self._size = 0
        self._hash = hashlib.sha256()


def _mismatch(repository: Repository, descriptor: Descriptor, found: str) -> IntegrityError:
    message = f"{repository}: expected {descriptor.size} bytes, {descriptor.digest}, found {found}"
    return IntegrityError(message, hint=REFUSED)
