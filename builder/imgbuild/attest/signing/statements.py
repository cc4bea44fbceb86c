"""Creates in-toto statements, and signs them in DSSE envelopes.

The signed bytes contain the bytes of the statement (DSSE's pre-authentication encoding), so that
readers do not have to reproduce the JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from imgbuild import codec
from imgbuild.attest import in_toto
from imgbuild.attest.signing.keys import PrivateKey, PublicKey
from imgbuild.values import Digest


class StatementSubject(msgspec.Struct, frozen=True):
    """The subject of a statement: an image by digest."""

    digest: dict[str, str]
    name: str = ""


class Statement(msgspec.Struct, frozen=True, rename={"type": "_type"}):
    """A statement about images."""

    type: str
    subject: tuple[StatementSubject, ...]
    predicate_type: str = msgspec.field(name="predicateType")
    predicate: Any = None

    @property
    def digests(self) -> tuple[Digest, ...]:
        """The digests of the images that the statement is about."""
        hashes = (subject.digest.get("sha256") for subject in self.subject)
        return tuple(f"sha256:{text}" for text in hashes if text)


class EnvelopeSignature(msgspec.Struct, frozen=True, omit_defaults=True):
    """A signature of an envelope."""

    sig: bytes
    keyid: str = ""


class Envelope(msgspec.Struct, frozen=True, rename="camel"):
    """A payload and its signatures (DSSE 1). In JSON, bytes are in base64."""

    payload: bytes
    payload_type: str
    signatures: tuple[EnvelopeSignature, ...]

    @property
    def signed(self) -> bytes:
        """The bytes that are signed."""
        kind = self.payload_type.encode()
        return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(self.payload), self.payload)

    def by(self, key: PublicKey) -> bool:
        """Return whether one of the signatures was created with `key`."""
        return any(key.verify(self.signed, each.sig) for each in self.signatures)

    def parse_statement(self, label: str) -> Statement:
        """Decode the statement in the envelope. Raises InputError with `label` if it is invalid."""
        return codec.decode(self.payload, Statement, file=label, what="in-toto statement")


def create_statement(digests: Sequence[Digest], kind: str, predicate: object) -> bytes:
    """Encode a statement about the images `digests`. `kind` is the predicate type."""
    subjects = [{"digest": {"sha256": digest.removeprefix("sha256:")}} for digest in digests]
    return codec.encode_compact(
        {
            "_type": in_toto.STATEMENT,
            "subject": subjects,
            "predicateType": kind,
            "predicate": predicate,
        }
    )


def sign_statement(payload: bytes, key: PrivateKey) -> Envelope:
    """Sign a statement with `key`, and return the envelope."""
    bare = Envelope(payload=payload, payload_type=in_toto.PAYLOAD_TYPE, signatures=())
    return msgspec.structs.replace(bare, signatures=(EnvelopeSignature(sig=key.sign(bare.signed)),))
