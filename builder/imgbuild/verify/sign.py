"""Signs an image that is already in a registry, after verifying it.

What is attached already is never signed: anyone who can write to the registry could have attached
a false builder or commit.
"""

from __future__ import annotations

from collections.abc import Sequence

from imgbuild.attest import provenance
from imgbuild.attest.provenance import BuildDetails
from imgbuild.attest.signing import keyless, pushed, signer
from imgbuild.attest.signing.keys import PrivateKey
from imgbuild.attest.signing.pushed import Sign
from imgbuild.attest.signing.signer import Signed
from imgbuild.errors import IntegrityError
from imgbuild.oci import image as images
from imgbuild.oci.documents import Descriptor
from imgbuild.registry.client import Client
from imgbuild.registry.image import InRegistry
from imgbuild.registry.reference import Reference
from imgbuild.verify import image
from imgbuild.verify.checks import Checklist, CheckOutcome, ImageCheck
from imgbuild.verify.expected_lock import ExpectedLock
from imgbuild.verify.verify import VerifyOptions, verify


def sign(
    client: Client, reference: Reference, key: PrivateKey | None, own: ExpectedLock | None
) -> tuple[Signed, ...]:
    """Verify the image, and sign it with `key`, or by cosign without one.

    Of `own`, the signer's lock, provenance and SBOMs are made here and signed too, whatever is
    attached. Without it the digest is signed alone.
    """
    place = InRegistry(client, reference)
    if own is None:
        _refuse(place, verify(place, VerifyOptions(), client.reporter).checks)
        client.reporter.warn(
            f"{reference}: only its digest is signed, since anyone could have"
            " attached the other documents;"
            " to sign provenance and SBOMs too, name your own lock with --target or --lock"
        )
        found = {one.digest: one for one in (place.top, *images.manifests(place))}
        return tuple(_how(place, key)(one, ()) for one in found.values())
    checklist = Checklist(client.reporter)
    image.check(place, own.due, checklist, whole=False)
    _refuse(place, checklist.checks)
    arches = own.due.arches(place.top.digest)
    held = own.carried
    made = provenance.statement(held.lock, held.sealed, arches, _circumstances(own))
    if key is not None:
        return pushed.sign_made(client, reference.repository, held, arches, made, key)
    return pushed.sign_all(held, arches, (made,), _how(place, key))


def _circumstances(own: ExpectedLock) -> BuildDetails:
    """The circumstances of the lock's checkout; for a lock alone, little more than its digest."""
    if own.project is None:
        return provenance.bare(own.sha256)
    return provenance.circumstances(own.project, own.due.target)


def _how(place: InRegistry, key: PrivateKey | None) -> Sign:
    """The function that signs one image: with `key`, or by cosign without one."""

    def _sign(subject: Descriptor, payloads: Sequence[bytes]) -> Signed:
        if key is None:
            return keyless.sign(place.repository, subject.digest, payloads)
        return signer.sign(place.client, place.repository, subject, key, payloads)

    return _sign


def _refuse(place: InRegistry, checks: Sequence[ImageCheck]) -> None:
    wrong = [one for one in checks if one.outcome is CheckOutcome.FAILED]
    if wrong:
        lines = "".join(f"\n  {one.name} {one.arch or ''}: {one.detail}" for one in wrong)
        message = f"{place.name} is not signed, since it failed verification:{lines}"
        raise IntegrityError(message, hint="push it again; imgbuild verify says more")
