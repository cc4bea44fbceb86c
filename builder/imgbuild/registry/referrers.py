"""Finds referrers of a manifest, such as signatures and SBOMs, with the API or by tag.

If a registry has no referrers API, clients store an index of the referrers under the tag
`sha256-HEX`.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

import msgspec

from imgbuild import codec
from imgbuild.errors import FetchFailed
from imgbuild.http.client import IDENTITY_ENCODING, RequestRefused
from imgbuild.http.request import Request
from imgbuild.oci import documents
from imgbuild.oci.documents import Descriptor, Index
from imgbuild.registry import hosts, manifests, pages
from imgbuild.registry.authorizer import pull_scope
from imgbuild.registry.image_reference import Repository
from imgbuild.registry.manifests import NotFound
from imgbuild.registry.transport import RegistryHttp
from imgbuild.system import decoding
from imgbuild.values import Digest, digest_of

# The response status of registries without the API; the specification defines only 404.
_NO_API_STATUSES = (400, 404, 405, 406, 501)
_ROUNDS = 5


class ReferrerManifest(msgspec.Struct, frozen=True, rename="camel"):
    """The fields that describe a referrer in its manifest."""

    media_type: str = ""
    artifact_type: str = ""
    config: dict[str, Any] = {}
    subject: Descriptor | None = None
    annotations: dict[str, str] = {}


def referrers_tag(digest: Digest) -> str:
    """Return the tag that lists the referrers of `digest` in a registry without referrers API."""
    return digest.replace(":", "-", 1)


def find_referrers(
    http: RegistryHttp, repository: Repository, digest: Digest, artifact_type: str | None
) -> tuple[Descriptor, ...]:
    """Return the referrers of `digest`. If `artifact_type` is set, other types are omitted."""
    descriptors = _referrers_by_api(http, repository, digest, artifact_type)
    if descriptors is None:
        entries = _referrers_by_tag(http, repository, digest)
        descriptors = tuple(decoding.convert(entry, Descriptor) for entry in entries)
    unique = {descriptor.digest: descriptor for descriptor in descriptors}
    return tuple(
        descriptor
        for descriptor in unique.values()
        if artifact_type in (None, descriptor.artifact_type)
    )


def add_referrer(http: RegistryHttp, repository: Repository, data: bytes, kind: str) -> None:
    """Add the manifest `data` to the tag that lists the referrers of its subject.

    Other clients can write the tag at the same time. Therefore, the tag is read again, and written
    again if the manifest is missing.
    """
    manifest = decoding.decode_json(data, ReferrerManifest)
    if manifest.subject is None:
        return
    digest = digest_of(data)
    entry = {
        "mediaType": kind,
        "digest": digest,
        "size": len(data),
        "artifactType": manifest.artifact_type or manifest.config.get("mediaType", ""),
        "annotations": manifest.annotations,
    }
    for _ in range(_ROUNDS):
        entries = _referrers_by_tag(http, repository, manifest.subject.digest, hosts.PUSH)
        if any(existing.get("digest") == digest for existing in entries):
            return
        shown = {name: value for name, value in entry.items() if value}
        _write_entries(http, repository, manifest.subject.digest, [*entries, shown])
    subject = manifest.subject.digest
    message = f"{repository}: the referrers of {subject} are being modified by other clients"
    raise FetchFailed(message, hint="wait for these clients, and run the command again")


def remove_referrer(
    http: RegistryHttp, repository: Repository, subject: Digest, digest: Digest
) -> None:
    """Remove the referrer `digest` from the tag that lists the referrers of `subject`."""
    entries = _referrers_by_tag(http, repository, subject, hosts.PUSH)
    left = [entry for entry in entries if entry.get("digest") != digest]
    if len(left) != len(entries):
        _write_entries(http, repository, subject, left)


def has_api(http: RegistryHttp, repository: Repository, digest: Digest) -> bool:
    """Return whether the registry has a referrers API."""
    return _referrers_by_api(http, repository, digest, None) is not None


def subject_of_manifest(data: bytes) -> Descriptor | None:
    """Return the subject of a manifest, or None if it has no subject."""
    try:
        return decoding.decode_json(data, ReferrerManifest).subject
    except msgspec.DecodeError:
        return None


def _referrers_by_api(
    http: RegistryHttp, repository: Repository, digest: Digest, artifact_type: str | None
) -> tuple[Descriptor, ...] | None:
    """Return the referrers of `digest`, or None if the registry has no referrers API."""
    query = f"?{urlencode({'artifactType': artifact_type})}" if artifact_type else ""
    path = f"{repository.name}/referrers/{digest}{query}"
    headers = {**IDENTITY_ENCODING, "Accept": documents.INDEX}
    descriptors: list[Descriptor] = []
    request = Request(path, headers, scopes=(pull_scope(repository.name),))
    try:
        for page in pages.iterate_pages(http, repository.host, request):
            if page.media_type not in (documents.INDEX, "application/json"):
                return None  # an HTML page, which some servers return for unknown paths
            descriptors += codec.decode(page.data, Index, file=f"referrers of {digest}").manifests
    except RequestRefused as refused:
        if refused.status not in _NO_API_STATUSES:
            raise
        return None
    return tuple(descriptors)


def _referrers_by_tag(
    http: RegistryHttp, repository: Repository, digest: Digest, capability: str | None = None
) -> list[dict[str, Any]]:
    try:
        named = repository.tagged(referrers_tag(digest))
        fetched = manifests.fetch_manifest(http, named, capability)
    except NotFound:
        return []
    codec.decode(fetched.data, Index, file=str(named))
    entries: list[dict[str, Any]] = json.loads(fetched.data)["manifests"]
    return entries


def _write_entries(
    http: RegistryHttp, repository: Repository, subject: Digest, entries: list[dict[str, Any]]
) -> None:
    document = {"schemaVersion": 2, "mediaType": documents.INDEX, "manifests": entries}
    data = codec.encode_compact(document)
    http.reporter.detail(f"{repository}:{referrers_tag(subject)}: {len(entries)} referrers")
    manifests.put_manifest(http, repository, data, documents.INDEX, referrers_tag(subject))
