"""Implements a client for registries (OCI distribution specification 1.1).

A client keeps tokens in memory. Threads can share a client.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from imgbuild.cache.context import Context
from imgbuild.cache.download import FileRequest
from imgbuild.http.client import HttpClient
from imgbuild.lock.resolution import LockedFile
from imgbuild.oci.documents import Descriptor, Document
from imgbuild.registry import blobs, manifests, pages, referrers, uploads
from imgbuild.registry.authorizer import RegistryAuthorizer
from imgbuild.registry.image_reference import ImageReference, Repository
from imgbuild.registry.manifests import REFUSED_REMEDY, NotFound
from imgbuild.registry.transport import RegistryHttp
from imgbuild.registry.uploads import BlobSource, UploadOutcome
from imgbuild.system.reporter import SILENT_REPORTER, Reporter
from imgbuild.values import Digest, digest_of

__all__ = [
    "REFUSED_REMEDY",
    "BlobSource",
    "NotFound",
    "RegistryClient",
    "UploadOutcome",
    "bytes_source",
    "file_source",
]


def _ignore_progress(_: int) -> None:
    """Do nothing. This is the default for `advance`."""


def bytes_source(data: bytes) -> BlobSource:
    """Return a blob source that reads `data`."""

    def _open_bytes(offset: int) -> BinaryIO:
        return io.BytesIO(data[offset:])

    return BlobSource(digest_of(data), len(data), _open_bytes)


def file_source(path: Path, digest: Digest, size: int) -> BlobSource:
    """Return a blob source that reads a file."""

    def _open_file(offset: int) -> BinaryIO:
        file = path.open("rb")
        file.seek(offset)
        return file

    return BlobSource(digest, size, _open_file)


class RegistryClient:
    """A client for registries. Hosts in `plain_http` and this machine are accessed without TLS.

    `attempts`, `first_wait` and `timeout` have the same meaning as in `HttpClient`. With `chunk`,
    blobs are uploaded in chunks of this size in bytes. With `origin`, mirrors are not used. Set it
    to change the content of a registry. All methods raise FetchFailed if a registry rejects a
    request or does not respond, and IntegrityError if content does not match its digest.
    """

    def __init__(
        self,
        *,
        plain_http: Collection[str] = (),
        offline: bool = False,
        attempts: int = 6,
        first_wait: float = 0.5,
        timeout: tuple[float, float] = (20.0, 60.0),
        chunk: int | None = None,
        origin: bool = False,
        reporter: Reporter = SILENT_REPORTER,
    ) -> None:
        authorizer = RegistryAuthorizer(plain_http, reporter)
        http = HttpClient(
            offline=offline,
            attempts=attempts,
            first_wait=first_wait,
            timeout=timeout,
            authorizer=authorizer,
            reporter=reporter,
        )
        self.http = RegistryHttp(http, authorizer, origin=origin)
        self.reporter = reporter
        self._chunk = chunk

    # -- manifests

    def resolve(self, reference: ImageReference) -> Descriptor | None:
        """Return the descriptor of a tag or digest, or None if it is missing."""
        return manifests.resolve_reference(self.http, reference)

    def manifest(self, reference: ImageReference) -> Document:
        """Read a manifest or an index. Raises NotFound if it is missing."""
        return manifests.fetch_manifest(self.http, reference)

    def put_manifest(
        self,
        repository: Repository,
        data: bytes,
        media_type: str,
        *,
        tag: str | None = None,
    ) -> Digest:
        """Store a manifest under `tag`, or only by its digest.

        If the manifest has a subject, and the registry has no referrers API, the manifest is added
        to the tag that lists the subject's referrers.
        """
        digest, has_referrers = manifests.put_manifest(self.http, repository, data, media_type, tag)
        if not has_referrers and referrers.subject_of_manifest(data) is not None:
            referrers.add_referrer(self.http, repository, data, media_type)
        return digest

    def delete(self, repository: Repository, target: str) -> bool:
        """Delete a manifest by digest, or only a tag. Returns False if it does not exist.

        If the registry has no referrers API, a deleted referrer is also removed from the tag that
        lists the subject's referrers.
        """
        if ":" not in target:
            named = repository.tagged(target)
            return manifests.delete_manifest(self.http, named)
        named = repository.with_digest(target)
        try:
            subject = referrers.subject_of_manifest(self.manifest(named).data)
        except NotFound:
            return False
        gone = manifests.delete_manifest(self.http, named)
        if subject and not referrers.has_api(self.http, repository, subject.digest):
            referrers.remove_referrer(self.http, repository, subject.digest, target)
        return gone

    # -- blobs

    def has(self, repository: Repository, digest: Digest) -> int | None:
        """Return the size of a blob, or None if it is missing."""
        return blobs.blob_size(self.http, repository, digest)

    def blob(self, repository: Repository, descriptor: Descriptor) -> bytes:
        """Read a blob of at most 64 MiB."""
        return blobs.read_blob(self.http, repository, descriptor)

    def file_request(
        self, repository: Repository, locked: LockedFile, *, layer: bool = False
    ) -> FileRequest:
        """Return the request to download the blob with the SHA-256 of `locked`.

        Mirrors are tried first.
        """
        return blobs.file_request(self.http, repository, locked, layer=layer)

    def context(self, context: Context) -> Context:
        """Return a copy of `context` for downloads from registries."""
        return msgspec.structs.replace(context, http=self.http.client)

    def download(
        self,
        repository: Repository,
        descriptor: Descriptor,
        path: Path,
        advance: Callable[[int], object] = _ignore_progress,
    ) -> None:
        """Download a blob to `path`.

        If the file contains the first bytes of the blob, only the remaining bytes are fetched.
        """
        blobs.download_blob(self.http, repository, descriptor, path, advance)

    def upload_blob(
        self,
        repository: Repository,
        source: BlobSource,
        *,
        advance: Callable[[int], object] = _ignore_progress,
    ) -> UploadOutcome:
        """Upload a blob, unless the repository has it."""
        return uploads.upload_blob(
            self.http, repository, source, advance=advance, chunk=self._chunk
        )

    def mount(self, repository: Repository, digest: Digest, size: int, source: Repository) -> bool:
        """Mount a blob from the repository `source`. Returns False if mounting is not supported."""
        return uploads.mount_blob(self.http, repository, digest, size, source)

    # -- lists

    def referrers(
        self, repository: Repository, digest: Digest, artifact_type: str | None = None
    ) -> tuple[Descriptor, ...]:
        """Return the referrers of `digest`, such as signatures and SBOMs."""
        return referrers.find_referrers(self.http, repository, digest, artifact_type)

    def tags(self, repository: Repository) -> Iterator[str]:
        """Yield the tags of a repository."""
        return pages.list_tags(self.http, repository)

    def repositories(self, host: str) -> Iterator[str]:
        """Yield the names of the repositories of a registry that has a catalog API."""
        return pages.list_catalog(self.http, host)
