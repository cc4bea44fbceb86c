"""Tests that checks required by options of `imgbuild verify` fail if documents were deleted.

Deleting a document is the simplest downgrade, so a required check that is impossible fails. A lock
that was rejected is not rebuilt, because a build runs code that the lock selects.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from imgbuild.attest import bundle, in_toto, provenance
from imgbuild.attest.sbom import cyclonedx, spdx
from imgbuild.attest.signing import forms, statements, stored
from imgbuild.attest.signing.keys import PrivateKey
from imgbuild.errors import FetchFailed
from imgbuild.oci.documents import INDEX
from imgbuild.values import Arch
from imgbuild.verify import expected_lock
from imgbuild.verify.checks import CheckOutcome
from tests.support.memory_registry import sha256_digest
from tests.support.registry_project import BOTH, NAME
from tests.support.signed_image import LOCK_CHECKS, project_lock

ARM = Arch.ARM64


# -- what is requested and was deleted


def test_checks_that_require_a_key_fail_if_no_lock_is_trusted(sample):
    sample.remove(bundle.ARTIFACT_TYPE, sample.top)
    failures = sample.failed()
    assert set(failures) == {"lock", *LOCK_CHECKS}
    assert failures["lock"] == (
        "no lock is attached; specify a lock with --target or --lock; --key requires this check"
    )
    assert failures["provenance"].endswith(
        "no lock to compare the image with; --key requires this check"
    )


def test_verify_options_that_require_a_lock_fail_without_a_lock(sample):
    built = Builds()
    sample.remove(bundle.ARTIFACT_TYPE, sample.top)
    failures = sample.failed(key=None, builder=provenance.LOCAL_BUILDER, rebuild=built)
    assert set(failures) == {"provenance", "rebuild"}
    assert failures["provenance"].endswith("--builder-id requires this check")
    assert failures["rebuild"].endswith("--rebuild requires this check")
    assert built.locks == []


def test_blobs_of_an_image_are_verified_without_a_lock(sample):
    sample.remove(bundle.ARTIFACT_TYPE, sample.top)
    checks = sample.checks(key=None, whole=True)
    passed = {name for name, (how, _) in checks.items() if how is CheckOutcome.PASSED}
    assert passed == {"layer sizes", "layer bytes"}
    layer = sample.target_digests.arch[ARM].layers[1].digest
    sample.flip_blob(sample.place.registry.blobs[NAME, layer])
    assert layer in sample.failed(key=None, whole=True)["layer bytes"]


def test_image_without_blobs_fails_verification(sample):
    data = b'{"schemaVersion":2,"mediaType":"%s","manifests":[]}' % INDEX.encode()
    sample.place.registry.manifests[NAME, sha256_digest(data)] = (data, INDEX)
    sample.place.registry.tags[NAME, BOTH] = sha256_digest(data)
    assert set(sample.failed(key=None, whole=True)) == {"layer sizes", "layer bytes"}


@pytest.mark.parametrize("form", ["attached", "signed", "both"])
def test_verification_detects_a_deleted_provenance(sample, form):
    if form != "signed":
        sample.remove(in_toto.PAYLOAD_TYPE, sample.top)
    if form != "attached":
        sample.unsign(sample.top, kinds=(in_toto.PROVENANCE,))
    locked = project_lock(sample)
    options = {"key": None, "builder": provenance.LOCAL_BUILDER}
    # A signed one is also in an envelope, so the attachment may be deleted.
    assert set(sample.failed(own=locked)) == (set() if form == "attached" else {"provenance"})
    assert set(sample.failed(own=locked, **options)) == (
        {"provenance"} if form == "both" else set()
    )
    assert sample.failed(own=locked, key=None) == {}


@pytest.mark.parametrize(
    ("kind", "predicate", "check"),
    [
        (cyclonedx.MEDIA_TYPE, in_toto.CYCLONEDX, "SBOM CycloneDX arm64"),
        (spdx.MEDIA_TYPE, in_toto.SPDX, "SBOM SPDX arm64"),
    ],
)
def test_verification_detects_a_deleted_sbom(sample, kind, predicate, check):
    sample.remove(kind, sample.arm)
    sample.unsign(sample.arm, kinds=(predicate,))
    for locked in (None, project_lock(sample)):
        failures = sample.failed(own=locked)
        assert check in failures
        assert "none is attached; --key requires this check" in failures[check]
    assert sample.failed(key=None) == {}


def test_statement_of_an_unverified_signature_replaces_a_missing_attachment(sample):
    """Without a key, the envelope of a signature is read like an attachment."""
    sample.remove(cyclonedx.MEDIA_TYPE, sample.arm)
    assert sample.failed(key=None) == {}
    sample.unsign(sample.arm, kinds=(in_toto.CYCLONEDX,))
    statement = statements.create_statement(
        [sample.arm.digest], in_toto.CYCLONEDX, {"bomFormat": "CycloneDX"}
    )
    bundle = forms.create_bundle(
        statements.sign_statement(statement, sample.key), sample.key.public.hint
    )
    stored.put_bundle(sample.client, sample.repository, sample.arm, bundle, in_toto.CYCLONEDX)
    assert "does not match the lock" in sample.failed(key=None)["SBOM CycloneDX arm64"]


# -- built again


class Builds:
    """A stub that records locks instead of building them; other tests build them."""

    def __init__(self) -> None:
        self.locks: list[str] = []

    def __call__(self, trusted_lock: expected_lock.ExpectedLock, arches: Sequence[Arch]) -> str:
        self.locks.append(trusted_lock.sha256)
        return f"built for {', '.join(arches)}"


def test_image_is_rebuilt_from_a_trusted_lock(sample):
    for options in ({}, {"key": None}, {"key": None, "own": project_lock(sample)}):
        built = Builds()
        assert sample.checks(rebuild=built, **options)["rebuild"] == (
            CheckOutcome.PASSED,
            "built for arm64, x86_64",
        )
        assert built.locks == [project_lock(sample).sha256]


def test_image_is_not_rebuilt_from_an_unsigned_lock(sample):
    """A build runs code of packages in the lock."""
    built = Builds()
    other = PrivateKey(ec.generate_private_key(ec.SECP256R1()))
    failures = sample.failed(key=other.public, rebuild=built)
    assert failures["rebuild"] == (
        "not built, because the check of the lock's origin failed; --rebuild requires this check"
    )
    sample.unsign(sample.top, kinds=(in_toto.PROVENANCE,))
    assert "rebuild" in sample.failed(rebuild=built)
    assert built.locks == []


def test_failed_rebuild_is_reported_as_a_separate_check(sample):
    """If an index is unavailable, the required check fails and other results are kept."""

    def _built(trusted_lock: expected_lock.ExpectedLock, arches: Sequence[Arch]) -> str:
        message = "no route to the index"
        raise FetchFailed(message, hint="try again")

    checks = sample.checks(rebuild=_built)
    assert checks["signature"][0] is CheckOutcome.PASSED
    assert checks["rebuild"] == (
        CheckOutcome.FAILED,
        "not built: no route to the index (try again); --rebuild requires this check",
    )


def test_given_lock_of_another_image_is_not_rebuilt(sample):
    place = sample.place
    place.push()
    locked = expected_lock.lock_of_project(place.work().project, place.sample.lock.target)
    built = Builds()
    failures = sample.failed(key=None, own=locked, rebuild=built)
    assert "the image does not match this lock" in failures["rebuild"]
    assert built.locks == []


def test_artifact_that_is_listed_but_missing_is_refused(sample):
    for referrer in sample.client.referrers(sample.repository, sample.top.digest, forms.BUNDLE):
        manifest = json.loads(sample.place.registry.manifests[NAME, referrer.digest][0])
        del sample.place.registry.blobs[NAME, manifest["layers"][0]["digest"]]
    assert "signature" in sample.failed()
