"""Signs an image in a registry, and statements about it, in both forms of cosign.

The same key and statements give the same bytes, so that signing again adds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from imgbuild.attest import in_toto
from imgbuild.attest.signing import forms, statements, stored
from imgbuild.attest.signing.keys import PrivateKey
from imgbuild.attest.signing.statements import Envelope
from imgbuild.oci.documents import Descriptor
from imgbuild.registry.client import Client
from imgbuild.registry.reference import Repository
from imgbuild.values import Digest


class Signed(msgspec.Struct, frozen=True, kw_only=True):
    """An image that was signed: which statements of it too, and the manifests of the bundles."""

    digest: Digest
    statements: tuple[str, ...]
    bundles: tuple[Digest, ...]


def sign(
    client: Client,
    repository: Repository,
    subject: Descriptor,
    key: PrivateKey,
    payloads: Sequence[bytes] = (),
) -> Signed:
    """Sign the image `subject`, and each of the statements `payloads`, which are about it.

    Callers must have checked the statements.
    """
    digest = subject.digest
    claim = forms.claim(str(repository), digest)
    stored.add(
        client, repository, digest, forms.SIGNATURES, [forms.signature(claim, key.sign(claim))]
    )
    attested = attest(client, repository, subject, key, payloads)
    about = statements.seal(forms.about_image(digest), key)
    last = _put_bundle(client, repository, subject, key, about, in_toto.SIGNATURE)
    return msgspec.structs.replace(attested, bundles=(*attested.bundles, last))


def attest(
    client: Client,
    repository: Repository,
    subject: Descriptor,
    key: PrivateKey,
    payloads: Sequence[bytes],
) -> Signed:
    """Sign the statements `payloads`, which are about the image `subject`, but not the image.

    Callers must have checked the statements.
    """
    digest = subject.digest
    envelopes = [statements.seal(each, key) for each in payloads]
    kinds = [envelope.statement("a statement to sign").predicate_type for envelope in envelopes]
    pairs = list(zip(envelopes, kinds, strict=True))
    entries = [forms.attestation(envelope, kind) for envelope, kind in pairs]
    stored.add(client, repository, digest, forms.ATTESTATIONS, entries)
    # Bundles come last: where there is one, cosign 3 looks at nothing else.
    bundles = tuple(_put_bundle(client, repository, subject, key, *pair) for pair in pairs)
    return Signed(digest=digest, statements=tuple(kinds), bundles=bundles)


def _put_bundle(
    client: Client,
    repository: Repository,
    subject: Descriptor,
    key: PrivateKey,
    envelope: Envelope,
    kind: str,
) -> Digest:
    data = forms.bundle(envelope, key.public.hint)
    return stored.put_bundle(client, repository, subject, data, kind)
