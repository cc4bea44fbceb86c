"""Tests that changes of a signed image without its key are detected.

Each change must fail exactly the corresponding check.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from imgbuild import codec
from imgbuild.attest import attachments, bundle, in_toto, provenance
from imgbuild.attest.sbom import cyclonedx, packages, spdx
from imgbuild.attest.signing import forms, statements, stored
from imgbuild.attest.signing.keys import PrivateKey
from imgbuild.lock.lock_file import Lock
from imgbuild.plan import image_digests
from imgbuild.plan.image_digests import TargetDigests
from imgbuild.registry import artifact_store
from imgbuild.registry.artifact_store import ArtifactFile
from imgbuild.registry.client import RegistryClient
from imgbuild.registry.image import RegistrySource
from imgbuild.values import Arch, sha256
from imgbuild.verify.checks import CheckOutcome
from imgbuild.verify.verify import VerifyOptions, verify_image
from tests.support.registry_project import BOTH, NAME
from tests.support.signed_image import LOCK_CHECKS, Sample, project_lock

ARM = Arch.ARM64


# -- valid images


def test_signed_image_passes_every_check(sample):
    assert sample.verify(whole=True) == {}
    assert sample.verify(own=project_lock(sample)) == {}


def test_image_with_one_architecture_passes_verification(sample):
    place = sample.place
    place.registry.tags[NAME, f"{BOTH}-arm64"] = sample.arm.digest
    assert sample.verify(tag=f"{BOTH}-arm64") == {}
    place.registry.tags[NAME, BOTH] = sample.arm.digest
    assert set(sample.verify()) == {"name"}


def test_verification_without_a_key_is_reported(sample):
    checks = sample.verify(key=None)
    assert {name: how for name, (how, _) in checks.items()} == {"signature": CheckOutcome.UNCHECKED}
    assert "without --key" in checks["signature"][1]


def test_second_signing_of_an_image_writes_nothing(sample):
    sample.sign(sample.key)
    assert sample.state() == sample.signed


def test_unsigned_image_fails_verification_only_with_a_key(sample):
    sample.restore(sample.unsigned)
    assert sample.failed(key=None) == {}
    failures = sample.failed()
    assert failures["signature"] == "the image is not signed"
    assert set(failures) == {
        "signature", "lock", "provenance", "SBOM CycloneDX arm64", "SBOM CycloneDX x86_64",
        "SBOM SPDX arm64", "SBOM SPDX x86_64",
    }  # fmt: skip


def test_image_without_attachments_is_compared_with_a_given_lock(sample):
    sample.restore(sample.unsigned)
    sample.remove(bundle.ARTIFACT_TYPE, sample.top)
    sample.remove(in_toto.PAYLOAD_TYPE, sample.top)
    checks = sample.verify(key=None, own=project_lock(sample))
    assert set(checks) == {"signature", "provenance"}
    nothing = sample.checks(key=None)
    assert set(nothing) == {"signature", "lock", "image", "rebuild", *LOCK_CHECKS}
    assert {how for how, _ in nothing.values()} == {CheckOutcome.UNCHECKED}


# -- changed bytes


def test_flipped_byte_in_a_layer_is_detected(sample):
    layer = sample.target_digests.arch[ARM].layers[1].digest
    sample.flip_blob(sample.place.registry.blobs[NAME, layer])
    place = RegistrySource(
        RegistryClient(first_wait=0.001, attempts=2), sample.place.reference(BOTH)
    )
    assert sample.failed() == {}  # no layer is read
    report = verify_image(place, VerifyOptions(key=sample.key.public, whole=True))
    [failed] = [check for check in report.checks if check.outcome is CheckOutcome.FAILED]
    assert failed.name == "layer bytes"
    assert layer in failed.detail


def test_flipped_byte_in_the_configuration_is_detected(sample):
    digest = sample.target_digests.arch[ARM].config
    sample.flip_blob(sample.place.registry.blobs[NAME, digest])
    failures = sample.failed()
    assert set(failures) == {"manifest"}
    assert digest in failures["manifest"]


def test_flipped_byte_in_a_manifest_is_detected(sample):
    data, kind = sample.place.registry.manifests[NAME, sample.arm.digest]
    flipped = data.replace(b'"schemaVersion":2', b'"schemaVersion":3')
    sample.place.registry.manifests[NAME, sample.arm.digest] = (flipped, kind)
    failures = sample.failed()
    assert set(failures) == {"manifest"}
    assert sample.arm.digest in failures["manifest"]


@pytest.mark.parametrize(
    ("kind", "name", "check"),
    [
        (cyclonedx.MEDIA_TYPE, "sbom.cdx.json", "SBOM CycloneDX arm64"),
        (spdx.MEDIA_TYPE, "sbom.spdx.json", "SBOM SPDX arm64"),
    ],
)
def test_flipped_byte_in_an_sbom_is_detected(sample, kind, name, check):
    sample.flip(sample.arm, kind, name)
    assert set(sample.failed()) == {check}
    assert set(sample.failed(key=None)) == {check}


def test_flipped_byte_in_the_provenance_is_detected(sample):
    sample.flip(sample.top, in_toto.PAYLOAD_TYPE, "provenance.json")
    assert set(sample.failed(key=None)) == {"provenance"}
    assert "provenance" in sample.failed()


@pytest.mark.parametrize("name", ["lock.json", "digests.json", "packages.json", "sources.json"])
def test_flipped_byte_in_the_attached_lock_is_detected(sample, name):
    sample.flip(sample.top, bundle.ARTIFACT_TYPE, name)
    assert set(sample.failed()) == {"lock", *LOCK_CHECKS}
    assert set(sample.failed(key=None)) == {"lock"}


def test_flipped_byte_in_a_signature_is_detected(sample):
    for data in list(sample.place.registry.blobs.values()):
        if b'"verificationMaterial"' in data and _about(data) == (sample.top.digest,):
            sample.flip_blob(data)
    assert set(sample.failed()) == {"signature"}


def _about(data: bytes) -> tuple[str, ...]:
    bundle = codec.decode(data, forms.Bundle, file="bundle")
    assert bundle.dsse_envelope is not None
    return bundle.dsse_envelope.parse_statement("bundle").digests


# -- rewritten, with digests that fit


def test_rewritten_signature_matches_no_key(sample):
    """A bit of the envelope's signature is flipped, and the artifact is uploaded again."""
    beside = sample.client.referrers(sample.repository, sample.top.digest, forms.BUNDLE)
    for referrer in beside:
        if referrer.annotations["dev.sigstore.bundle.predicateType"] != in_toto.SIGNATURE:
            continue
        sample.client.delete(sample.repository, referrer.digest)
        envelope = statements.sign_statement(forms.about_image(sample.top.digest), sample.key)
        sig = bytearray(envelope.signatures[0].sig)
        sig[-1] ^= 1
        forged = msgspec.structs.replace(
            envelope, signatures=(statements.EnvelopeSignature(sig=bytes(sig)),)
        )
        data = forms.create_bundle(forged, sample.key.public.hint)
        stored.put_bundle(sample.client, sample.repository, sample.top, data, in_toto.SIGNATURE)
    assert "refers to the key" in sample.failed()["signature"]


def test_verification_detects_a_rewritten_sbom(sample):
    (artifact,) = sample.artifacts(sample.arm, cyclonedx.MEDIA_TYPE)
    data = artifact.files["sbom.cdx.json"].data
    other = data.replace(b'"torch"', b'"t0rch"')
    assert other != data
    sample.replace(sample.arm, cyclonedx.MEDIA_TYPE, {"sbom.cdx.json": other})
    for key in (sample.key.public, None):
        failures = sample.failed(key=key)
        assert set(failures) == {"SBOM CycloneDX arm64"}
        assert "does not match the lock" in failures["SBOM CycloneDX arm64"]


def test_changed_package_metadata_passes_verification_of_the_same_image(sample, monkeypatch):
    """A later push attaches SBOMs and lock again; the earlier attachments remain."""
    wheel = sample.lock.arch[ARM].wheels[0]
    place = packages.packages_path(sample.place.work().project.images)
    before = place.read_bytes() if place.exists() else None
    licensed_package = packages.Package(file=wheel.file, licence="MIT")
    try:
        place.write_bytes(
            codec.encode(packages.SbomPackages(packages={wheel.sha256: licensed_package}))
        )
        project = sample.place.work().project
        attachments.attach_all(
            sample.client, sample.repository, sample.project_lock, project, tuple(Arch)
        )
        assert len(sample.artifacts(sample.arm, cyclonedx.MEDIA_TYPE)) == 2
        assert sample.failed(key=None) == {}
        assert sample.failed(key=None, own=project_lock(sample)) == {}
        message = sample.checks(key=None, own=project_lock(sample))["SBOM CycloneDX arm64"][1]
        assert "also attached, but not matching" in message
        failures = sample.failed(own=project_lock(sample))
        assert "not signed by the key" in failures["SBOM CycloneDX arm64"]
        sample.sign(sample.key)
        assert sample.failed() == {}
        assert sample.failed(own=project_lock(sample)) == {}
    finally:
        place.unlink() if before is None else place.write_bytes(before)


def test_signed_sbom_of_another_imgbuild_version_is_trusted(sample):
    sample.unsign(sample.arm, kinds=(in_toto.CYCLONEDX,))
    data = b'{"bomFormat": "CycloneDX", "specVersion": "1.4"}'
    sample.replace(sample.arm, cyclonedx.MEDIA_TYPE, {"sbom.cdx.json": data})
    statement = statements.create_statement(
        [sample.arm.digest], in_toto.CYCLONEDX, json.loads(data)
    )
    bundle = forms.create_bundle(
        statements.sign_statement(statement, sample.key), sample.key.public.hint
    )
    stored.put_bundle(sample.client, sample.repository, sample.arm, bundle, in_toto.CYCLONEDX)
    checks = sample.verify()
    assert checks["SBOM CycloneDX arm64"][0] is CheckOutcome.UNCHECKED
    assert "another version of imgbuild" in checks["SBOM CycloneDX arm64"][1]
    assert set(sample.failed(key=None)) == {"SBOM CycloneDX arm64"}


def test_payload_signed_with_a_different_type_is_not_a_statement(sample):
    """The envelope has a different type but the same bytes and key."""
    sample.unsign(sample.top, kinds=(in_toto.SIGNATURE,))
    payload = forms.about_image(sample.top.digest)
    bare = statements.Envelope(payload=payload, payload_type="text/plain", signatures=())
    target_digests = statements.EnvelopeSignature(sig=sample.key.sign(bare.signed))
    envelope = msgspec.structs.replace(bare, signatures=(target_digests,))
    assert envelope.by(sample.key.public)
    data = forms.create_bundle(envelope, sample.key.public.hint)
    stored.put_bundle(sample.client, sample.repository, sample.top, data, in_toto.SIGNATURE)
    assert sample.failed()["signature"] == "the image is not signed"


def test_sbom_of_another_architecture_is_detected(sample):
    other = attachments.list_subjects(sample.lock, sample.target_digests, tuple(Arch))[2]
    (artifact,) = sample.artifacts(other, spdx.MEDIA_TYPE)
    sample.replace(
        sample.arm, spdx.MEDIA_TYPE, {"sbom.spdx.json": artifact.files["sbom.spdx.json"].data}
    )
    assert set(sample.failed()) == {"SBOM SPDX arm64"}


def _statement(sample: Sample, **changed: Any) -> bytes:
    circumstances = provenance.build_details(sample.place.work().project, BOTH)
    statement = provenance.create_statement(
        sample.lock,
        sample.target_digests,
        tuple(Arch),
        msgspec.structs.replace(circumstances, **changed),
    )
    assert isinstance(statement, bytes)
    return statement


def test_provenance_of_another_lock_is_refused(sample):
    sample.restore(sample.unsigned)
    other = _statement(sample, lock="0" * 64)
    sample.replace(sample.top, in_toto.PAYLOAD_TYPE, {"provenance.json": other})
    assert f"refers to the lock {'0' * 64}" in sample.failed(key=None)["provenance"]


def test_signed_provenance_of_another_image_is_refused(sample):
    place = sample.place
    place.push()
    lock, target_digests = place.sample.lock, place.sample.target_digests
    details = provenance.build_details(place.work().project, lock.target)
    other = provenance.create_statement(lock, target_digests, tuple(lock.arch), details)
    sample.unsign(sample.top, kinds=(in_toto.PROVENANCE,))
    data = forms.create_bundle(statements.sign_statement(other, sample.key), sample.key.public.hint)
    stored.put_bundle(sample.client, sample.repository, sample.top, data, in_toto.PROVENANCE)
    details = sample.failed()
    assert set(details) == {"lock", "provenance"}
    assert "about another image" in details["provenance"]


def test_rewritten_unsigned_provenance_is_refused(sample):
    sample.unsign(sample.top, kinds=(in_toto.PROVENANCE,))
    other = _statement(sample, builder="https://evil.example/")
    sample.replace(sample.top, in_toto.PAYLOAD_TYPE, {"provenance.json": other})
    assert set(sample.failed()) == {"lock", "provenance"}


def test_builder_of_the_provenance_is_verified(sample):
    assert sample.failed(builder=provenance.LOCAL_BUILDER) == {}
    failures = sample.failed(builder="https://ci.example/")
    assert "expected https://ci.example/" in failures["provenance"]


# -- locks


def _files(lock: Lock, target_digests: TargetDigests, sample: Sample) -> dict[str, bytes]:
    (artifact,) = sample.artifacts(sample.top, bundle.ARTIFACT_TYPE)
    files = {name: part.data for name, part in artifact.files.items()}
    return files | {"lock.json": codec.encode(lock), "digests.json": codec.encode(target_digests)}


def test_older_lock_of_the_target_is_refused(sample):
    """The lock is valid and matches an earlier image."""
    labels = {**sample.lock.settings.labels, "version": "older"}
    settings = msgspec.structs.replace(sample.lock.settings, labels=labels)
    older = msgspec.structs.replace(sample.lock, settings=settings)
    target_digests = image_digests.compute_digests(
        older, image_digests.layer_records(sample.target_digests)
    )
    assert target_digests.digest != sample.target_digests.digest
    files = _files(older, target_digests, sample)
    for key in (sample.key.public, None):
        sample.restore(sample.signed)
        sample.replace(sample.top, bundle.ARTIFACT_TYPE, files)
        failures = sample.failed(key=key)
        assert set(failures) == {"lock", *(LOCK_CHECKS if key else ())}
        assert f"belongs to another image: {BOTH} {target_digests.digest}" in failures["lock"]
    assert set(sample.failed(own=project_lock(sample))) == {"lock", *LOCK_CHECKS}


def test_different_unsigned_lock_of_an_image_is_refused(sample):
    """The signed provenance covers contents outside of the image's digest."""
    other = msgspec.structs.replace(sample.lock, requirements={"torch": "==9"})
    target_digests = image_digests.compute_digests(
        other, image_digests.layer_records(sample.target_digests)
    )
    assert target_digests.digest == sample.target_digests.digest
    sample.replace(sample.top, bundle.ARTIFACT_TYPE, _files(other, target_digests, sample))
    failures = sample.failed()
    assert {"lock", "provenance"} <= set(failures)
    assert "no provenance signed by the key lists" in failures["lock"]
    assert sha256(codec.encode(other)) in failures["provenance"]


def test_wrong_attached_lock_does_not_hide_the_correct_lock(sample):
    """Two other locks are attached: a lock of another image, and an unsigned lock of this image."""
    settings = msgspec.structs.replace(sample.lock.settings, labels={})
    for changed in ({"settings": settings}, {"requirements": {"torch": "==9"}}):
        lock = msgspec.structs.replace(sample.lock, **changed)
        target_digests = image_digests.compute_digests(
            lock, image_digests.layer_records(sample.target_digests)
        )
        files = _files(sample.lock, sample.target_digests, sample) | {
            "lock.json": codec.encode(lock), "digests.json": codec.encode(target_digests),
        }  # fmt: skip
        kind = bundle.ARTIFACT_TYPE
        parts = {name: ArtifactFile(data=data, media_type=kind) for name, data in files.items()}
        saved_state = sample.state()
        artifact_store.attach_artifact(sample.client, sample.repository, sample.top, kind, parts)
        assert sample.verify() == {}
        sample.restore(saved_state)


def test_digests_inconsistent_with_lock_are_refused(sample):
    files = _files(
        sample.lock, msgspec.structs.replace(sample.target_digests, target="other"), sample
    )
    sample.replace(sample.top, bundle.ARTIFACT_TYPE, files)
    assert set(sample.failed()) == {"lock", *LOCK_CHECKS}


# -- signatures


def test_signature_by_another_key_is_refused(sample):
    other = PrivateKey(ec.generate_private_key(ec.SECP256R1()))
    assert "signatures is by the key" in sample.failed(key=other.public)["signature"]
    sample.sign(other)
    assert sample.verify(key=other.public) == {}
    assert sample.verify() == {}


def test_signature_of_another_image_is_refused(sample):
    place = sample.place
    place.push()
    other = place.plan().top
    envelope = statements.sign_statement(forms.about_image(other.digest), sample.key)
    data = forms.create_bundle(envelope, sample.key.public.hint)
    sample.unsign(sample.top, kinds=(in_toto.SIGNATURE,))
    stored.put_bundle(sample.client, sample.repository, sample.top, data, in_toto.SIGNATURE)
    assert f"about another image: {other.digest}" in sample.failed()["signature"]


def test_signed_statement_is_not_accepted_as_an_image_signature(sample):
    sample.unsign(sample.top, kinds=(in_toto.SIGNATURE,))
    assert sample.failed()["signature"] == "the image is not signed"
