"""Reads and adds signatures attached to an image in a registry.

Signatures and signed statements are read in all formats of cosign, and written as bundles. Damaged
signatures are listed. Callers decide whether a key is trusted.
"""

from __future__ import annotations

import contextlib
from base64 import b64decode
from collections.abc import Iterator

import msgspec

from imgbuild import codec
from imgbuild.attest import in_toto
from imgbuild.attest.signing import forms
from imgbuild.attest.signing.forms import Bundle, ImageClaim
from imgbuild.attest.signing.keys import PublicKey
from imgbuild.attest.signing.statements import Envelope
from imgbuild.errors import InputError, IntegrityError
from imgbuild.oci.documents import EMPTY_CONFIG, EMPTY_TYPE, Descriptor, Manifest
from imgbuild.registry import artifact_store
from imgbuild.registry.artifact_store import BlobReader
from imgbuild.registry.client import NotFound, RegistryClient
from imgbuild.registry.image_reference import Repository
from imgbuild.values import Digest


class StoredSignature(msgspec.Struct, frozen=True, kw_only=True):
    """A signature with its location, subject and signed bytes.

    `kind` is the predicate type, which is the same for image signatures in all formats. `payload`
    is the statement, or b"" for a signature in a collection.
    """

    place: str
    kind: str
    digests: tuple[Digest, ...]
    signed: bytes
    signatures: tuple[bytes, ...]
    hint: str = ""
    payload: bytes = b""

    def by(self, key: PublicKey) -> bool:
        """Return whether the signature was created with `key`."""
        return any(key.verify(self.signed, each) for each in self.signatures)


class AttachedSignatures(msgspec.Struct, frozen=True, kw_only=True):
    """The signatures attached to an image, and descriptions of damaged signatures."""

    signatures: tuple[StoredSignature, ...]
    damaged: tuple[str, ...]


class _ArtifactManifest(msgspec.Struct, frozen=True, rename="camel"):
    layers: tuple[Descriptor, ...] = ()
    artifact_type: str = ""


def read_signatures(
    client: RegistryClient, repository: Repository, digest: Digest
) -> AttachedSignatures:
    """Read all signatures of the image `digest` in `repository`."""
    signatures: list[StoredSignature] = []
    damaged: list[str] = []
    beside: tuple[Descriptor, ...] = ()
    blobs = BlobReader(client, repository)
    with _record_errors(damaged):
        beside = client.referrers(repository, digest)
    for descriptor in beside:
        with _record_errors(damaged):
            signatures += _bundle_signatures(blobs, descriptor)
    for kind in (forms.SIGNATURES, forms.ATTESTATIONS):
        layers: tuple[Descriptor, ...] = ()
        with _record_errors(damaged):
            layers = _collection_layers(client, repository, digest, kind)
        for number, layer in enumerate(layers, start=1):
            with _record_errors(damaged):
                place = f"layer {number} of {forms.collection_tag(digest, kind)}"
                signatures.append(_collected_signature(blobs.read(layer), layer, place))
    return AttachedSignatures(signatures=tuple(signatures), damaged=tuple(damaged))


@contextlib.contextmanager
def _record_errors(damaged: list[str]) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        damaged.append("; ".join([error.message, *map(str, error.problems)]))
    except (IntegrityError, NotFound) as error:
        damaged.append(error.message)


def _bundle_signatures(blobs: BlobReader, descriptor: Descriptor) -> Iterator[StoredSignature]:
    # cosign's bundles have the artifact type of an empty configuration: the manifest has the real
    # type.
    listed = descriptor.artifact_type
    if not listed.startswith(forms.BUNDLES) and listed not in ("", EMPTY_TYPE):
        return
    label = f"bundle {descriptor.digest}"
    try:
        fetched = blobs.client.manifest(blobs.repository.with_digest(descriptor.digest))
    except NotFound:
        return  # removed since: referrer lists may contain deleted manifests
    try:
        artifact = codec.decode(fetched.data, _ArtifactManifest, file=label, what="artifact")
    except InputError:
        if listed.startswith(forms.BUNDLES):
            raise
        # any artifact may refer to an image: only one of the bundle type can be an invalid bundle
        return
    if not artifact.artifact_type.startswith(forms.BUNDLES):
        return
    for layer in artifact.layers:
        data = blobs.read(layer)
        bundle = codec.decode(data, Bundle, file=label, what="bundle")
        if bundle.dsse_envelope is not None:
            yield _envelope_signature(bundle.dsse_envelope, label, bundle.hint)


def _collected_signature(data: bytes, layer: Descriptor, place: str) -> StoredSignature:
    if layer.media_type == forms.DSSE:
        return _envelope_signature(codec.decode(data, Envelope, file=place, what="envelope"), place)
    claim = codec.decode(data, ImageClaim, file=place, what="signature")
    try:
        signed = b64decode(layer.annotations.get(forms.SIGNATURE_NOTE, ""), validate=True)
    except ValueError as error:  # characters outside base64 or ASCII
        message = f"{place}: the signature is not base64"
        raise IntegrityError(message) from error
    return StoredSignature(
        place=place,
        kind=in_toto.SIGNATURE if claim.critical.type == forms.CLAIM else claim.critical.type,
        digests=(claim.digest,),
        signed=data,
        signatures=(signed,),
    )


def _envelope_signature(envelope: Envelope, place: str, hint: str = "") -> StoredSignature:
    # The envelope has the type of its payload; not every payload is a statement.
    stated = envelope.payload_type == in_toto.PAYLOAD_TYPE
    statement = envelope.parse_statement(place) if stated else None
    return StoredSignature(
        place=place,
        kind=statement.predicate_type if statement else envelope.payload_type,
        digests=statement.digests if statement else (),
        signed=envelope.signed,
        signatures=tuple(each.sig for each in envelope.signatures),
        hint=hint,
        payload=envelope.payload,
    )


def put_bundle(
    client: RegistryClient, repository: Repository, subject: Descriptor, data: bytes, kind: str
) -> Digest:
    """Attach the bundle `data` to `subject` unless it exists. `kind` is the predicate type."""
    manifest = forms.bundle_manifest(subject, data, kind)
    return artifact_store.put_artifact(
        client, repository, subject.digest, forms.BUNDLE, manifest, (EMPTY_CONFIG, data)
    )


def _collection_layers(
    client: RegistryClient, repository: Repository, digest: Digest, kind: str
) -> tuple[Descriptor, ...]:
    tag = forms.collection_tag(digest, kind)
    try:
        fetched = client.manifest(repository.tagged(tag))
    except NotFound:
        return ()
    return codec.decode(fetched.data, Manifest, file=tag, what="image manifest").layers
