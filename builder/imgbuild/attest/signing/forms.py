"""Defines the formats of signatures that cosign stores in a registry.

A bundle (cosign 3) is an artifact that contains one statement with the image as its `subject`. A
collection (cosign 1 and 2) is an image with the tag `sha256-HEX.sig` (signatures) or
`sha256-HEX.att` (statements), with one layer for each signature or statement. imgbuild writes
bundles, and reads both formats. cosign 3 reads collections only if the image has no bundle.
"""

from __future__ import annotations

import msgspec

from imgbuild import codec
from imgbuild.attest import in_toto
from imgbuild.attest.signing import statements
from imgbuild.attest.signing.statements import Envelope
from imgbuild.oci.documents import (
    EMPTY_CONFIG,
    EMPTY_TYPE,
    Descriptor,
    create_descriptor,
    create_manifest,
)
from imgbuild.values import Digest

BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"
BUNDLES = "application/vnd.dev.sigstore.bundle"  # prefix of the media type of every version
DSSE = "application/vnd.dsse.envelope.v1+json"
SIGNATURES, ATTESTATIONS = "sig", "att"
SIGNATURE_NOTE = "dev.cosignproject.cosign/signature"
CLAIM = "cosign container image signature"


class _PublicKeyHint(msgspec.Struct, frozen=True):
    hint: str = ""


class _Material(msgspec.Struct, frozen=True, rename="camel"):
    public_key: _PublicKeyHint | None = None


class Bundle(msgspec.Struct, frozen=True, rename="camel"):
    """A cosign bundle: a signed envelope and the key. A bundle for a file has no envelope."""

    media_type: str
    verification_material: _Material
    dsse_envelope: Envelope | None = None

    @property
    def hint(self) -> str:
        """The hint of the signing key, or "" for a certificate."""
        named = self.verification_material.public_key
        return named.hint if named else ""


class _Image(msgspec.Struct, frozen=True, rename="kebab"):
    docker_manifest_digest: Digest


class _Critical(msgspec.Struct, frozen=True):
    image: _Image
    type: str


class ImageClaim(msgspec.Struct, frozen=True):
    """The payload of a signature in a collection, a simple-signing document."""

    critical: _Critical

    @property
    def digest(self) -> Digest:
        """The digest of the image."""
        return self.critical.image.docker_manifest_digest


def collection_tag(digest: Digest, kind: str) -> str:
    """Return the tag of the collection for an image. `kind` is "sig" or "att"."""
    return f"{digest.replace(':', '-')}.{kind}"


def create_bundle(envelope: Envelope, hint: str) -> bytes:
    """Return the bundle of a statement. `hint` identifies the key that signed the statement."""
    return codec.encode_compact(
        {
            "mediaType": BUNDLE,
            "verificationMaterial": {"publicKey": {"hint": hint}},
            "dsseEnvelope": envelope,
        }
    )


def bundle_manifest(subject: Descriptor, data: bytes, predicate_type: str) -> bytes:
    """Return the manifest that attaches the bundle `data` to the image `subject`."""
    return create_manifest(
        create_descriptor(EMPTY_TYPE, EMPTY_CONFIG),
        [create_descriptor(BUNDLE, data)],
        artifact_type=BUNDLE,
        subject=subject,
        annotations={
            "dev.sigstore.bundle.content": "dsse-envelope",
            "dev.sigstore.bundle.predicateType": predicate_type,
        },
    )


def about_image(digest: Digest) -> bytes:
    """Return the statement that cosign 3 signs for the image `digest`."""
    return statements.create_statement([digest], in_toto.SIGNATURE, {})
