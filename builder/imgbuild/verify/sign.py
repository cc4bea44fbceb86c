"""Signs an image that is already in a registry, after verifying it.

Attached documents are never signed, because anyone with write access to the registry could have
attached them.
"""

from __future__ import annotations

from collections.abc import Sequence

from imgbuild.attest import provenance
from imgbuild.attest.provenance import BuildDetails
from imgbuild.attest.signing import keyless, pushed, signer
from imgbuild.attest.signing.keys import PrivateKey
from imgbuild.attest.signing.pushed import SignFunction
from imgbuild.attest.signing.signer import SignedSubject
from imgbuild.errors import IntegrityError
from imgbuild.oci.documents import Descriptor
from imgbuild.oci.image import list_manifests
from imgbuild.registry.client import RegistryClient
from imgbuild.registry.image import RegistrySource
from imgbuild.registry.image_reference import ImageReference
from imgbuild.verify import image
from imgbuild.verify.checks import Checklist, CheckOutcome, ImageCheck
from imgbuild.verify.expected_lock import ExpectedLock
from imgbuild.verify.verify import VerifyOptions, verify_image


def sign_verified(
    client: RegistryClient,
    reference: ImageReference,
    key: PrivateKey | None,
    signer_lock: ExpectedLock | None,
) -> tuple[SignedSubject, ...]:
    """Verify the image, and sign it with `key`, or with cosign if `key` is None.

    With `signer_lock`, the signer's lock, provenance and SBOMs are also generated and signed.
    Otherwise, only the digest is signed.
    """
    place = RegistrySource(client, reference)
    if signer_lock is None:
        _refuse_unverified(place, verify_image(place, VerifyOptions(), client.reporter).checks)
        client.reporter.warn(
            f"{reference}: only the digest is signed, because anyone could have attached the "
            "other documents; to also sign provenance and SBOMs, specify your lock with --target "
            "or --lock"
        )
        descriptors = {
            descriptor.digest: descriptor for descriptor in (place.top, *list_manifests(place))
        }
        return tuple(
            _signing_function(place, key)(descriptor, ()) for descriptor in descriptors.values()
        )
    checklist = Checklist(client.reporter)
    image.check_image(place, signer_lock.contents, checklist, whole=False)
    _refuse_unverified(place, checklist.checks)
    arches = signer_lock.contents.arches(place.top.digest)
    lock_bundle = signer_lock.lock_bundle
    statement = provenance.create_statement(
        lock_bundle.lock, lock_bundle.target_digests, arches, _build_details(signer_lock)
    )
    if key is not None:
        return pushed.sign_image(client, reference.repository, lock_bundle, arches, statement, key)
    return pushed.sign_manifests(lock_bundle, arches, (statement,), _signing_function(place, key))


def _build_details(signer_lock: ExpectedLock) -> BuildDetails:
    """Return the build details from the lock's checkout, or from the lock."""
    if signer_lock.project is None:
        return provenance.lock_build_details(signer_lock.sha256)
    return provenance.build_details(signer_lock.project, signer_lock.contents.target)


def _signing_function(place: RegistrySource, key: PrivateKey | None) -> SignFunction:
    """Return the function that signs an image with `key`, or with cosign."""

    def _sign_subject(subject: Descriptor, payloads: Sequence[bytes]) -> SignedSubject:
        if key is None:
            return keyless.sign_with_cosign(place.repository, subject.digest, payloads)
        return signer.sign_subject(place.client, place.repository, subject, key, payloads)

    return _sign_subject


def _refuse_unverified(place: RegistrySource, checks: Sequence[ImageCheck]) -> None:
    wrong = [failure for failure in checks if failure.outcome is CheckOutcome.FAILED]
    if wrong:
        lines = "".join(
            f"\n  {failure.name} {failure.arch or ''}: {failure.detail}" for failure in wrong
        )
        message = f"{place.name} is not signed because verification failed:{lines}"
        raise IntegrityError(
            message, hint="push the image again; to show details, run imgbuild verify"
        )
