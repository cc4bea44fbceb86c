"""Lists the manifests of a repository, as far as the registry API allows.

A registry lists no manifest without a tag, so manifests without a tag cannot be found.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from imgbuild import codec
from imgbuild.assemble import mirror_items
from imgbuild.errors import FetchFailed, InputError
from imgbuild.oci.documents import Configuration, Descriptor, Document
from imgbuild.publish import tag
from imgbuild.registry.reference import Repository
from imgbuild.system import threads
from imgbuild.values import Bytes, Digest

if TYPE_CHECKING:
    from imgbuild.registry.client import Client
    from imgbuild.system.threads import Stop

THREADS = 8
# Tags that belong to the image whose digest they name: the referrers of registries without that
# part of the API, and signatures, attestations and SBOMs as cosign tags them.
BELONGS = re.compile(r"sha256-([0-9a-f]{64})(?:\.[A-Za-z0-9]+)?")


class ManifestKind(enum.StrEnum):
    """What a manifest is to people."""

    INDEX = "index"
    IMAGE = "image"
    INPUTS = "inputs"  # of a mirror
    ATTACHED = "attached"  # it has a subject, or a tag that belongs to an image
    OTHER = "other"


class StoredManifest(msgspec.Struct, frozen=True, kw_only=True):
    """A manifest or index in a repository. `blobs` are `config` and layers with their sizes.

    `subjects` are the images that it belongs to; `target` is the target of imgbuild that it states.
    """

    digest: Digest
    size: Bytes
    kind: ManifestKind
    artifact_type: str = ""
    target: str = ""
    tags: tuple[str, ...] = ()
    subjects: tuple[Digest, ...] = ()
    children: tuple[Digest, ...] = ()
    config: Digest | None = None
    blobs: dict[Digest, Bytes] = {}


class _Document(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of manifests and indexes that are read here."""

    config: Descriptor | None = None
    layers: tuple[Descriptor, ...] = ()
    manifests: tuple[Descriptor, ...] | None = None
    subject: Descriptor | None = None
    artifact_type: str = ""
    annotations: dict[str, str] = {}


def scan(
    repository: Repository, client: Client, known: Collection[Digest]
) -> dict[Digest, StoredManifest]:
    """Everything in `repository`, by digest; `known` are digests to look for without a tag.

    FetchFailed if there is no such repository or it does not answer.
    """
    named = tag.by_digest(client, repository, client.tags(repository))
    found: dict[Digest, StoredManifest] = {}
    due = {*named, *_untagged(repository, client, set(known) - named.keys())}
    while due:
        fetched = threads.each(
            sorted(due),
            lambda digest, _: _read(repository, client, digest, named.get(digest, ())),
            threads=THREADS,
        )
        new = {item.digest: item for item, _ in fetched if item is not None}
        found |= new
        near = {digest for item in new.values() for digest in item.children}
        near |= {digest for _, referrers in fetched for digest in referrers}
        due = near - found.keys() - due
    return found


def _untagged(
    repository: Repository, client: Client, digests: Collection[Digest]
) -> Iterable[Digest]:
    """Those of `digests` that are manifests there."""

    def _ask(digest: Digest, _: Stop) -> Digest | None:
        reference = repository.with_digest(digest)
        return digest if client.resolve(reference) is not None else None

    found = threads.each(sorted(digests), _ask, threads=THREADS)
    return [digest for digest in found if digest is not None]


def _read(
    repository: Repository, client: Client, digest: Digest, tags: Sequence[str]
) -> tuple[StoredManifest | None, tuple[Digest, ...]]:
    """The manifest `digest`, None if an index names what is not there; and its referrers."""
    from imgbuild.registry.client import NotFound

    reference = repository.with_digest(digest)
    try:
        fetched = client.manifest(reference)
    except NotFound:
        if tags:  # what it names is not known then, and nothing of it may be taken for garbage
            raise
        client.reporter.warn(f"{reference} is named in {repository} but is not there")
        return None, ()
    referrers = tuple(item.digest for item in client.referrers(repository, digest))
    return _manifest(repository, client, fetched, tags), referrers


def _manifest(
    repository: Repository, client: Client, fetched: Document, tags: Sequence[str]
) -> StoredManifest:
    document = codec.decode(
        fetched.data, _Document, file=f"{repository}@{fetched.digest}", what="manifest"
    )
    subjects = {
        f"sha256:{match[1]}" for name in tags if (match := BELONGS.fullmatch(name)) is not None
    }
    if document.subject is not None:
        subjects.add(document.subject.digest)
    blobs = {item.digest: item.size for item in document.layers}
    if document.config is not None:
        blobs[document.config.digest] = document.config.size
    kind = _kind(document, attached=bool(subjects))
    target = (
        document.annotations.get(mirror_items.TARGET, "") if kind is ManifestKind.INPUTS else ""
    )
    if kind is ManifestKind.IMAGE and document.config is not None:
        target = _label(repository, client, document.config)
    return StoredManifest(
        digest=fetched.digest,
        size=len(fetched.data),
        kind=kind,
        artifact_type=document.artifact_type,
        target=target,
        tags=tuple(tags),
        subjects=tuple(sorted(subjects)),
        children=tuple(item.digest for item in document.manifests or ()),
        config=document.config.digest if document.config is not None else None,
        blobs=blobs,
    )


def _kind(document: _Document, *, attached: bool) -> ManifestKind:
    if attached:
        return ManifestKind.ATTACHED
    if document.manifests is not None:
        return ManifestKind.INDEX
    if document.artifact_type == mirror_items.ARTIFACT:
        return ManifestKind.INPUTS
    if document.artifact_type or document.config is None:
        return ManifestKind.OTHER
    return ManifestKind.IMAGE


def _label(repository: Repository, client: Client, config: Descriptor) -> str:
    """The target in the labels of an image; empty for images of other tools."""
    try:
        data = client.blob(repository, config)
        found = codec.decode(data, Configuration, file=f"{repository}@{config.digest}")
    except (FetchFailed, InputError) as error:  # not an image's configuration: not ours
        client.reporter.detail(error.message)
        return ""
    return found.labels.get(mirror_items.TARGET, "")
