"""Signs images in a registry, and statements about images, in the format of cosign 3.

The same key and statements yield the same bytes, so signing again adds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from imgbuild.attest.signing import forms, statements, stored
from imgbuild.attest.signing.keys import PrivateKey
from imgbuild.oci.documents import Descriptor
from imgbuild.registry.client import Client
from imgbuild.registry.image_reference import Repository
from imgbuild.values import Digest


class Signed(msgspec.Struct, frozen=True, kw_only=True):
    """A signed image, with the types of signed statements and the manifests of bundles."""

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
    """Sign the image `subject`, and the statements `payloads` about this image.

    Callers must check the statements first.
    """
    attested = attest(client, repository, subject, key, payloads)
    about = forms.about_image(subject.digest)
    signature = attest(client, repository, subject, key, [about])
    return msgspec.structs.replace(attested, bundles=(*attested.bundles, *signature.bundles))


def attest(
    client: Client,
    repository: Repository,
    subject: Descriptor,
    key: PrivateKey,
    payloads: Sequence[bytes],
) -> Signed:
    """Sign the statements `payloads` about the image `subject`, but not the image.

    Callers must check the statements first.
    """
    kinds, bundles = [], []
    for payload in payloads:
        envelope = statements.sign(payload, key)
        kind = envelope.statement("a statement to sign").predicate_type
        data = forms.bundle(envelope, key.public.hint)
        kinds.append(kind)
        bundles.append(stored.put_bundle(client, repository, subject, data, kind))
    return Signed(digest=subject.digest, statements=tuple(kinds), bundles=tuple(bundles))
