"""Signs an image in a registry, and statements about it, in both forms of cosign.

The same key and statements give the same bytes, so that signing again adds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from imgbuild.attest import in_toto
from imgbuild.attest.signing import forms, statements, stored
from imgbuild.attest.signing.keys import PrivateKey
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
    envelopes = [statements.seal(each, key) for each in payloads]
    kinds = [envelope.statement("a statement to sign").predicate_type for envelope in envelopes]
    entries = [
        forms.attestation(envelope, kind) for envelope, kind in zip(envelopes, kinds, strict=True)
    ]
    stored.add(client, repository, digest, forms.ATTESTATIONS, entries)
    # Bundles come last: where there is one, cosign 3 looks at nothing else.
    about = statements.seal(forms.about_image(digest), key)
    bundles = tuple(
        stored.put_bundle(
            client, repository, subject, forms.bundle(envelope, key.public.hint), kind
        )
        for envelope, kind in zip([*envelopes, about], [*kinds, in_toto.SIGNATURE], strict=True)
    )
    return Signed(digest=digest, statements=tuple(kinds), bundles=bundles)
