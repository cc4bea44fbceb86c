"""Signing what was verified: an image that lies in a registry already.

Comes in: its reference, and a private key or the wish to let cosign sign. Goes out: signatures of
it and of what is said of it, or IntegrityError if it is not what its lock says.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from imgbuild.console import console
from imgbuild.errors import IntegrityError
from imgbuild.oci.documents import Descriptor
from imgbuild.registry.client import Client
from imgbuild.registry.reference import Reference
from imgbuild.signing import keyless, pushed, signer
from imgbuild.signing.keys import PrivateKey
from imgbuild.signing.pushed import Sign
from imgbuild.signing.signer import Signed
from imgbuild.verifying import places
from imgbuild.verifying.checks import Outcome, Verified
from imgbuild.verifying.known import Known
from imgbuild.verifying.places import InRegistry
from imgbuild.verifying.verify import Verification, Wanted


def sign(
    client: Client, reference: Reference, key: PrivateKey | None, own: Known | None
) -> tuple[Signed, ...]:
    """Verify the image, and sign it with `key`, or by cosign without one.

    Its provenance is signed as it is attached: that it names this image and this lock was checked,
    the commit and the run that it names cannot be. One without any lock is signed by its digest.
    """
    place = InRegistry(client, reference)
    work = Verification(place, Wanted(own=own))
    _refuse(work.run())
    how: Sign
    if key is None:
        how = partial(_keyless, place)
    else:
        how = partial(_with_key, place, key)
    if work.held is None:
        console.warn(f"{reference} carries no lock: only its digest is signed")
        found = {one.digest: one for one in (place.top, *places.manifests(place))}
        return tuple(how(one, ()) for one in found.values())
    arches = work.held.due.arches(place.top.digest)
    return pushed.sign_all(work.held.carried, arches, work.provenances(), how)


def _with_key(
    place: InRegistry, key: PrivateKey, subject: Descriptor, said: Sequence[bytes]
) -> Signed:
    return signer.sign(place.client, place.repository, subject, key, said)


def _keyless(place: InRegistry, subject: Descriptor, said: Sequence[bytes]) -> Signed:
    return keyless.sign(place.repository, subject.digest, said)


def _refuse(found: Verified) -> None:
    wrong = [one for one in found.checks if one.outcome is Outcome.FAILED]
    if wrong:
        lines = "".join(f"\n  {one.name} {one.arch or ''}: {one.detail}" for one in wrong)
        message = f"{found.reference} is not signed, since it is not what it should be:{lines}"
        raise IntegrityError(message, hint="push it again; imgbuild verify says more")
