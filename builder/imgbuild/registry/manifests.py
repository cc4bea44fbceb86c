"""Resolves, reads, stores and deletes manifests and indexes in a registry.

The digest in a response header is only used if the content is not read.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from imgbuild.errors import FetchFailed, IntegrityError
from imgbuild.http.client import IDENTITY_ENCODING, RequestRefused
from imgbuild.http.headers import parse_integer
from imgbuild.http.request import Request
from imgbuild.oci import documents
from imgbuild.oci.documents import Descriptor, Document
from imgbuild.registry import hosts
from imgbuild.registry.authorizer import RegistryRefused, pull_scope, push_scope
from imgbuild.registry.image_reference import ImageReference, Repository
from imgbuild.registry.transport import RegistryHttp
from imgbuild.values import DIGEST_PATTERN, Digest, digest_of

if TYPE_CHECKING:
    from imgbuild.http.session import Response

T = TypeVar("T")
BLOB_UNKNOWN = "MANIFEST_BLOB_UNKNOWN"  # the distribution specification's code
TYPES = (documents.INDEX, documents.MANIFEST, documents.DOCKER_INDEX, documents.DOCKER_MANIFEST)
ACCEPT = ", ".join(TYPES)
LIMIT = 16 * 1024 * 1024  # registries need not accept more than 4
REFUSED_REMEDY = (
    "do not use this image, because the registry returns different content for the digest"
)


class NotFound(RequestRefused):
    """The registry does not have a manifest, blob, tag or repository."""

    def __init__(self, what: object, refused: RequestRefused) -> None:
        message = f"{what} not found: {refused.message}"
        super().__init__(
            message, status=404, hint="to list existing images, run: imgbuild registry ls"
        )


@contextlib.contextmanager
def convert_not_found(what: object) -> Iterator[None]:
    """Convert a response with status 404 to NotFound."""
    try:
        yield
    except RequestRefused as refused:
        if refused.status != 404:
            raise
        raise NotFound(what, refused) from None


def resolve_reference(
    http: RegistryHttp, reference: ImageReference, capability: str | None = None
) -> Descriptor | None:
    """Return the descriptor of `reference`, or None if it is missing.

    A GET request is sent if the registry does not support HEAD requests, or if the response to HEAD
    lacks the digest, size or type or has another digest than requested. `capability` selects the
    endpoint.
    """
    capability = capability or _capability(reference)

    def _read_descriptor(response: Response) -> Descriptor | None:
        digest = response.headers.get("Docker-Content-Digest", "").strip()
        size = parse_integer(response.headers.get("Content-Length", ""))
        kind = media_type(response)
        whole = re.fullmatch(DIGEST_PATTERN, digest) and kind in TYPES
        if not whole or size is None or reference.digest not in (None, digest):
            return None
        return Descriptor(media_type=kind, digest=digest, size=size)

    try:
        descriptor = http.send_request(
            reference.host, capability, _request(reference, "HEAD"), _read_descriptor
        )
    except RequestRefused as refused:
        if refused.status == 404:
            return None
        if refused.status not in (400, 405, 406, 501):
            raise
        descriptor = None
    if descriptor is not None:
        return descriptor
    try:
        return fetch_manifest(http, reference, capability).descriptor
    except NotFound:
        return None


def fetch_manifest(
    http: RegistryHttp, reference: ImageReference, capability: str | None = None
) -> Document:
    """Read the manifest or index `reference`.

    Raises NotFound if it is missing. Raises IntegrityError if the content does not match the
    digest, or if its media type differs from the type in the response header.
    """

    def _read_document(response: Response) -> Document:
        data = http.client.body(response, LIMIT)
        actual = digest_of(data)
        reported = response.headers.get("Docker-Content-Digest", "").strip()
        required_digest = reference.digest or (
            reported if reported.startswith("sha256:") else actual
        )
        if actual != required_digest:
            message = f"{reference.host} returned {actual} for {reference.name}@{required_digest}"
            raise IntegrityError(message, hint=REFUSED_REMEDY)
        stated, served = documents.stated_type(data, reference), media_type(response)
        if stated and served in TYPES and served != stated:
            message = f"{reference} is served with the media type {served}, but contains {stated}"
            raise IntegrityError(message, hint=REFUSED_REMEDY)
        return Document(data, stated or served)

    capability = capability or _capability(reference)
    with convert_not_found(reference):
        return http.send_request(
            reference.host, capability, _request(reference, "GET"), _read_document
        )


def put_manifest(
    http: RegistryHttp, repository: Repository, data: bytes, kind: str, tag: str | None
) -> tuple[Digest, bool]:
    """Store a manifest by digest or `tag`.

    Returns its digest, and whether the registry has a referrers API. Raises IntegrityError if the
    registry reports that it stored a different digest.
    """
    digest = digest_of(data)
    named = ImageReference(repository.host, repository.name, tag, None if tag else digest)

    def _read_location(response: Response) -> tuple[str, str]:
        return (
            response.headers.get("Docker-Content-Digest", "").strip(),
            response.headers.get("OCI-Subject", "").strip(),
        )

    request = Request(
        f"{repository.name}/manifests/{named.target}",
        {"Content-Type": kind},
        "PUT",
        lambda: data,
        scopes=(push_scope(repository.name),),
        read_timeout=300.0,
    )
    reported, subject = _send_until_accepted(
        lambda: http.send_request(repository.host, hosts.PUSH, request, _read_location)
    )
    if not reported:
        descriptor = resolve_reference(http, named, hosts.PUSH)
        reported = descriptor.digest if descriptor is not None else "nothing"
    if reported == "nothing" or (reported.startswith("sha256:") and reported != digest):
        message = f"{repository.host} stored {reported} for {named}, which was uploaded as {digest}"
        hint = "do not use this tag; push the image again, or contact the registry's administrator"
        raise IntegrityError(message, hint=hint)
    return digest, bool(subject)


def _send_until_accepted(send: Callable[[], T]) -> T:
    """Call `send` again as long as the registry does not find blobs that exist.

    While two clients mount the same blob, docker-registry's link to the blob is temporarily empty.
    """
    for seconds in (0.2, 0.8):
        try:
            return send()
        except RegistryRefused as refused:
            if BLOB_UNKNOWN not in refused.codes:
                raise
            time.sleep(seconds)
    return send()


def delete_manifest(http: RegistryHttp, reference: ImageReference) -> bool:
    """Delete a manifest or a tag. Returns False if it does not exist."""
    scopes = (f"repository:{reference.name}:pull,delete",)
    path = f"{reference.name}/manifests/{reference.target}"
    request = Request(path, method="DELETE", scopes=scopes)
    try:
        return http.send_request(reference.host, hosts.PUSH, request, lambda _: True)
    except RequestRefused as refused:
        if refused.status == 404:
            return False
        if refused.status == 405:
            hint = "enable deletion in the registry (docker-registry: storage.delete.enabled: true)"
            raise FetchFailed(refused.message, hint=hint) from None
        raise


def media_type(response: Response) -> str:
    """Return the media type of a response, without parameters."""
    return response.headers.get("Content-Type", "").partition(";")[0].strip()


def _capability(reference: ImageReference) -> str:
    return hosts.PULL if reference.digest else hosts.RESOLVE


def _request(reference: ImageReference, method: str) -> Request:
    return Request(
        f"{reference.name}/manifests/{reference.target}",
        {**IDENTITY_ENCODING, "Accept": ACCEPT},
        method,
        scopes=(pull_scope(reference.name),),
    )
