"""Attaches OpenVEX documents to images in a registry, and signs them (`cves --attach-to`).

A changed document is attached in addition to older documents. If several statements are about the
same vulnerability, the newest statement applies.
"""

from __future__ import annotations

import contextlib

import msgspec

from imgbuild import codec
from imgbuild.attest import attachments, in_toto
from imgbuild.attest.signing import signer, statements, stored
from imgbuild.attest.signing.keys import PrivateKey
from imgbuild.cves import vex
from imgbuild.cves.vex import MEDIA_TYPE
from imgbuild.errors import InputError
from imgbuild.oci.documents import Descriptor
from imgbuild.registry import artifact_store
from imgbuild.registry.artifact_store import ArtifactFile
from imgbuild.registry.client import RegistryClient
from imgbuild.registry.image_reference import Repository
from imgbuild.values import Digest

FILE = "vex.openvex.json"


def find_pushed_image(
    client: RegistryClient, repository: Repository, digest: Digest, target: str
) -> Descriptor:
    """Return the descriptor of the image `digest` of `target`.

    Raises InputError if it is missing from `repository`.
    """
    descriptor = client.resolve(repository.with_digest(digest))
    if descriptor is None:
        message = f"{repository} does not contain {digest}, the image of the lock of {target}"
        hint = f"run imgbuild push {target} {repository}"
        raise InputError(message, hint=hint)
    return descriptor


def attach_document(
    client: RegistryClient,
    repository: Repository,
    subject: Descriptor,
    document: bytes,
    target: str,
    key: PrivateKey | None = None,
) -> Digest:
    """Attach the OpenVEX `document` to the image `subject` of `target`, signed with `key`.

    Nothing is attached if `document` differs from the newest attached document only in the time.
    With `key`, only attached documents signed by this key are compared. Returns the digest of the
    artifact.
    """
    newest = _newest_document(client, repository, subject.digest, key)
    if newest is not None and _drop_time(newest) == _drop_time(document):
        document = newest
    files = {FILE: ArtifactFile(data=document, media_type=MEDIA_TYPE)}
    digest = artifact_store.attach_artifact(
        client, repository, subject, MEDIA_TYPE, files, {attachments.TARGET: target}
    )
    if key is not None:
        predicate = msgspec.json.decode(document)
        statement = statements.create_statement([subject.digest], in_toto.OPENVEX, predicate)
        signer.sign_statements(client, repository, subject, key, [statement])
    return digest


def _newest_document(
    client: RegistryClient, repository: Repository, digest: Digest, key: PrivateKey | None
) -> bytes | None:
    """Return the newest document that is signed by `key`, or unsigned if `key` is None."""
    if key is not None:
        documents = [
            codec.encode(msgspec.json.decode(each.payload)["predicate"])
            for each in stored.read_signatures(client, repository, digest).signatures
            if each.kind == in_toto.OPENVEX and digest in each.digests and each.by(key.public)
        ]
    else:
        plain = artifact_store.find_artifacts(
            client, repository, digest, MEDIA_TYPE, skip_damaged=True
        )
        documents = [part.data for artifact in plain for part in artifact.files.values()]
    dated = []
    for document in documents:
        with contextlib.suppress(InputError):
            dated.append((vex.decode_vex(document, FILE).timestamp, document))
    return max(dated)[1] if dated else None


def _drop_time(document: bytes) -> dict[str, object]:
    content: dict[str, object] = msgspec.json.decode(document)
    return {**content, "timestamp": None}
