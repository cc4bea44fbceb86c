"""Signs images in a registry, and statements about images, in the format of cosign 3.

The same key and statements yield the same bytes, so that signing again adds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from imgbuild.attest.signing import forms, statements, stored
from imgbuild.attest.signing.keys import PrivateKey
from imgbuild.oci.documents import Descriptor
from imgbuild.registry.client import RegistryClient
from imgbuild.registry.image_reference import Repository
from imgbuild.values import Digest


class SignedSubject(msgspec.Struct, frozen=True, kw_only=True):
    """A signed image, with the types of signed statements and the digests of bundles."""

    digest: Digest
    statements: tuple[str, ...]
    bundles: tuple[Digest, ...]


def sign_subject(
    client: RegistryClient,
    repository: Repository,
    subject: Descriptor,
    key: PrivateKey,
    payloads: Sequence[bytes] = (),
) -> SignedSubject:
    """Sign the image `subject`, and the statements `payloads` about this image.

    Callers must check the statements first.
    """
    attested = sign_statements(client, repository, subject, key, payloads)
    about = forms.about_image(subject.digest)
    signature = sign_statements(client, repository, subject, key, [about])
    return msgspec.structs.replace(attested, bundles=(*attested.bundles, *signature.bundles))


def sign_statements(
    client: RegistryClient,
    repository: Repository,
    subject: Descriptor,
    key: PrivateKey,
    payloads: Sequence[bytes],
) -> SignedSubject:
    """Sign the statements `payloads` about the image `subject`, but not the image.

    Callers must check the statements first.
    """
    kinds, bundles = [], []
    for payload in payloads:
        envelope = statements.sign_statement(payload, key)
        kind = envelope.parse_statement("a statement to sign").predicate_type
        data = forms.create_bundle(envelope, key.public.hint)
        kinds.append(kind)
        bundles.append(stored.put_bundle(client, repository, subject, data, kind))
    return SignedSubject(digest=subject.digest, statements=tuple(kinds), bundles=tuple(bundles))
