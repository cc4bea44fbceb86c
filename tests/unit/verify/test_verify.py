"""A pushed and signed image, and everything that can be changed about it without its key.

Each change is refused by the check that it concerns, and by no other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from imgbuild import codec
from imgbuild.attest import attachments, bundle, provenance
from imgbuild.attest.sbom import cyclonedx, packages, spdx
from imgbuild.attest.signing import forms, signer, statements, stored
from imgbuild.attest.signing.keys import PrivateKey
from imgbuild.lock.lock import Lock
from imgbuild.oci.documents import MANIFEST, Descriptor
from imgbuild.plan import seal as seals
from imgbuild.plan.seal import Seal
from imgbuild.registry import artifacts
from imgbuild.registry.artifacts import ArtifactFile
from imgbuild.registry.client import Client
from imgbuild.registry.image import InRegistry
from imgbuild.values import Arch, sha256
from imgbuild.verify.checks import CheckOutcome
from imgbuild.verify.verify import VerifyOptions, verify
from tests.support import signed_image
from tests.support.memory_registry import named
from tests.support.registry_project import BOTH, NAME
from tests.support.signed_image import OF_A_LOCK, World, own

ARM = Arch.ARM64


@pytest.fixture(name="whole", scope="module")
def _whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    yield from signed_image.make(tmp_path_factory.mktemp("verifying"))


@pytest.fixture(name="world")
def _world(whole: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    return signed_image.use(whole, monkeypatch, tmp_path)


# -- what is as it should be


def test_a_signed_image_passes_every_check(world):
    assert world.verify(whole=True) == {}
    assert world.verify(own=own(world)) == {}


def test_one_architecture_alone_passes(world):
    place = world.place
    place.registry.tags[NAME, BOTH] = world.arm.digest
    assert world.verify() == {}


def test_without_a_key_it_says_so(world):
    found = world.verify(key=None)
    assert {name: how for name, (how, _) in found.items()} == {"signature": CheckOutcome.UNCHECKED}
    assert "no --key" in found["signature"][1]


def test_signing_again_writes_nothing(world):
    world.sign(world.key)
    assert world.state() == world.signed


def test_an_unsigned_image_fails_with_a_key_and_not_without(world):
    world.restore(world.unsigned)
    assert world.failed(key=None) == {}
    found = world.failed()
    assert found["signature"] == "it is not signed"
    assert set(found) == {
        "signature", "lock", "provenance", "SBOM CycloneDX arm64", "SBOM CycloneDX x86_64",
        "SBOM SPDX arm64", "SBOM SPDX x86_64",
    }  # fmt: skip


def test_an_image_without_attachments_is_held_against_ones_own_lock(world):
    world.restore(world.unsigned)
    world.remove(bundle.ARTIFACT_TYPE, world.top)
    world.remove(provenance.MEDIA_TYPE, world.top)
    found = world.verify(key=None, own=own(world))
    assert set(found) == {"signature", "provenance"}
    nothing = world.checks(key=None)
    assert set(nothing) == {"signature", "lock", "image", "rebuild", *OF_A_LOCK}
    assert {how for how, _ in nothing.values()} == {CheckOutcome.UNCHECKED}


# -- a byte of what is stored


def test_a_flipped_byte_in_a_layer(world):
    layer = world.sealed.arch[ARM].layers[1].digest
    world.flip_blob(world.place.registry.blobs[NAME, layer])
    place = InRegistry(Client(first_wait=0.001, attempts=2), world.place.reference(BOTH))
    found = verify(place, VerifyOptions(key=world.key.public, whole=True))
    failed = [one.name for one in found.checks if one.outcome is CheckOutcome.FAILED]
    assert failed == ["layer bytes"]


def test_a_flipped_byte_in_a_configuration(world):
    digest = world.sealed.arch[ARM].config
    world.flip_blob(world.place.registry.blobs[NAME, digest])
    assert set(world.failed()) == {"manifest"}


def test_a_flipped_byte_in_a_manifest(world):
    data, kind = world.place.registry.manifests[NAME, world.arm.digest]
    flipped = data.replace(b'"schemaVersion":2', b'"schemaVersion":3')
    world.place.registry.manifests[NAME, world.arm.digest] = (flipped, kind)
    assert set(world.failed()) == {"manifest"}


@pytest.mark.parametrize(
    ("kind", "name", "check"),
    [
        (cyclonedx.MEDIA_TYPE, "sbom.cdx.json", "SBOM CycloneDX arm64"),
        (spdx.MEDIA_TYPE, "sbom.spdx.json", "SBOM SPDX arm64"),
    ],
)
def test_a_flipped_byte_in_an_sbom(world, kind, name, check):
    world.flip(world.arm, kind, name)
    assert set(world.failed()) == {check}
    assert set(world.failed(key=None)) == {check}


def test_a_flipped_byte_in_a_provenance(world):
    world.flip(world.top, provenance.MEDIA_TYPE, "provenance.json")
    assert set(world.failed(key=None)) == {"provenance"}
    assert "provenance" in world.failed()


@pytest.mark.parametrize("name", ["lock.json", "digests.json", "packages.json", "sources.json"])
def test_a_flipped_byte_in_a_lock(world, name):
    world.flip(world.top, bundle.ARTIFACT_TYPE, name)
    assert set(world.failed()) == {"lock", *OF_A_LOCK}
    assert set(world.failed(key=None)) == {"lock"}


def test_a_flipped_byte_in_a_signature(world):
    claim = forms.claim(str(world.repository), world.top.digest)
    world.flip_blob(claim)
    assert named(claim) in world.failed()["signature"]
    world.restore(world.signed)
    for data in list(world.place.registry.blobs.values()):
        if b'"verificationMaterial"' in data and _about(data) == (world.top.digest,):
            world.flip_blob(data)
    assert set(world.failed()) == {"signature"}


def _about(data: bytes) -> tuple[str, ...]:
    bundle = codec.decode(data, forms.Bundle, file="bundle")
    assert bundle.dsse_envelope is not None
    return bundle.dsse_envelope.statement("bundle").digests


# -- rewritten, with digests that fit


def test_a_signature_that_is_rewritten_fits_no_key(world):
    """The envelope's signature is changed by a bit, and the artifact is put anew."""
    beside = world.client.referrers(world.repository, world.top.digest, forms.BUNDLE)
    for one in beside:
        if one.annotations["dev.sigstore.bundle.predicateType"] != statements.SIGNATURE:
            continue
        world.client.delete(world.repository, one.digest)
        envelope = statements.seal(forms.about_image(world.top.digest), world.key)
        sig = bytearray(envelope.signatures[0].sig)
        sig[-1] ^= 1
        forged = msgspec.structs.replace(envelope, signatures=(statements.Sealed(sig=bytes(sig)),))
        data = forms.bundle(forged, world.key.public.hint)
        stored.put_bundle(world.client, world.repository, world.top, data, statements.SIGNATURE)
    assert "names the key" in world.failed()["signature"]


def test_an_sbom_that_is_rewritten(world):
    (one,) = world.artifacts(world.arm, cyclonedx.MEDIA_TYPE)
    data = one.files["sbom.cdx.json"].data
    other = data.replace(b'"torch"', b'"t0rch"')
    assert other != data
    world.replace(world.arm, cyclonedx.MEDIA_TYPE, {"sbom.cdx.json": other})
    for key in (world.key.public, None):
        found = world.failed(key=key)
        assert set(found) == {"SBOM CycloneDX arm64"}
        assert "not what follows from the lock" in found["SBOM CycloneDX arm64"]


def test_what_is_known_of_packages_may_change_where_the_image_does_not(world, monkeypatch):
    """A later push attaches SBOMs and lock anew; what the earlier one attached stays there."""
    wheel = world.lock.arch[ARM].wheels[0]
    place = packages.packages_path(world.place.work().project.images)
    before = place.read_bytes() if place.exists() else None
    found = packages.Package(file=wheel.file, licence="MIT")
    try:
        place.write_bytes(codec.encode(packages.SbomPackages(packages={wheel.sha256: found})))
        project = world.place.work().project
        attachments.attach_all(world.client, world.repository, world.lock, world.sealed, project)
        assert len(world.artifacts(world.arm, cyclonedx.MEDIA_TYPE)) == 2
        assert world.failed(key=None) == {}
        assert world.failed(key=None, own=own(world)) == {}
        said = world.checks(key=None, own=own(world))["SBOM CycloneDX arm64"][1]
        assert "also attached, and not that" in said
        assert "not signed by the key" in world.failed(own=own(world))["SBOM CycloneDX arm64"]
        world.sign(world.key)
        assert world.failed() == {}
        assert world.failed(own=own(world)) == {}
    finally:
        place.unlink() if before is None else place.write_bytes(before)


def test_an_sbom_of_another_version_of_imgbuild_is_the_keys_word_alone(world):
    world.unsign(world.arm, kinds=(statements.CYCLONEDX,))
    data = b'{"bomFormat": "CycloneDX", "specVersion": "1.4"}'
    world.replace(world.arm, cyclonedx.MEDIA_TYPE, {"sbom.cdx.json": data})
    said = statements.of([world.arm.digest], statements.CYCLONEDX, json.loads(data))
    bundle = forms.bundle(statements.seal(said, world.key), world.key.public.hint)
    stored.put_bundle(world.client, world.repository, world.arm, bundle, statements.CYCLONEDX)
    found = world.verify()
    assert found["SBOM CycloneDX arm64"][0] is CheckOutcome.UNCHECKED
    assert "another version of imgbuild" in found["SBOM CycloneDX arm64"][1]
    assert set(world.failed(key=None)) == {"SBOM CycloneDX arm64"}


def test_a_payload_that_is_signed_as_something_else_is_no_statement(world):
    """The same bytes and key, in an envelope of another type."""
    world.unsign(world.top, kinds=(statements.SIGNATURE,))
    world.place.registry.tags.pop((NAME, forms.tag(world.top.digest, forms.SIGNATURES)))
    payload = forms.about_image(world.top.digest)
    bare = statements.Envelope(payload=payload, payload_type="text/plain", signatures=())
    sealed = statements.Sealed(sig=world.key.sign(bare.signed))
    envelope = msgspec.structs.replace(bare, signatures=(sealed,))
    assert envelope.by(world.key.public)
    data = forms.bundle(envelope, world.key.public.hint)
    stored.put_bundle(world.client, world.repository, world.top, data, statements.SIGNATURE)
    assert world.failed()["signature"] == "it is not signed"


def test_the_sbom_of_another_architecture(world):
    other = attachments.subjects(world.lock, world.sealed, tuple(Arch))[2]
    (one,) = world.artifacts(other, spdx.MEDIA_TYPE)
    world.replace(world.arm, spdx.MEDIA_TYPE, {"sbom.spdx.json": one.files["sbom.spdx.json"].data})
    assert set(world.failed()) == {"SBOM SPDX arm64"}


def _statement(world: World, **changed: Any) -> bytes:
    found = provenance.circumstances(world.place.work().project, BOTH)
    made = provenance.statement(
        world.lock, world.sealed, tuple(Arch), msgspec.structs.replace(found, **changed)
    )
    assert isinstance(made, bytes)
    return made


def test_a_provenance_of_another_lock_is_refused(world):
    world.restore(world.unsigned)
    other = _statement(world, lock="0" * 64)
    world.replace(world.top, provenance.MEDIA_TYPE, {"provenance.json": other})
    assert f"names the lock {'0' * 64}" in world.failed(key=None)["provenance"]


def test_a_provenance_of_another_image_is_refused_though_the_key_signed_it(world):
    place = world.place
    place.push()
    lock, sealed = place.world.lock, place.world.seal
    found = provenance.circumstances(place.work().project, lock.target)
    other = provenance.statement(lock, sealed, tuple(lock.arch), found)
    world.unsign(world.top, kinds=(statements.PROVENANCE,))
    data = forms.bundle(statements.seal(other, world.key), world.key.public.hint)
    stored.put_bundle(world.client, world.repository, world.top, data, statements.PROVENANCE)
    found = world.failed()
    assert set(found) == {"lock", "provenance"}
    assert "about another image" in found["provenance"]


def test_a_provenance_that_is_rewritten_is_refused_where_none_is_signed(world):
    world.unsign(world.top, kinds=(statements.PROVENANCE,))
    other = _statement(world, builder="https://evil.example/")
    world.replace(world.top, provenance.MEDIA_TYPE, {"provenance.json": other})
    assert set(world.failed()) == {"lock", "provenance"}


def test_the_builder_is_held_to(world):
    assert world.failed(builder=provenance.LOCAL_BUILDER) == {}
    found = world.failed(builder="https://ci.example/")
    assert "https://ci.example/ is asked for" in found["provenance"]


# -- locks


def _files(lock: Lock, sealed: Seal, world: World) -> dict[str, bytes]:
    (one,) = world.artifacts(world.top, bundle.ARTIFACT_TYPE)
    held = {name: part.data for name, part in one.files.items()}
    return held | {"lock.json": codec.encode(lock), "digests.json": codec.encode(sealed)}


def test_an_older_lock_of_the_same_target_is_refused(world):
    """It is whole and was true once, of the image of then."""
    labels = {**world.lock.settings.labels, "version": "older"}
    settings = msgspec.structs.replace(world.lock.settings, labels=labels)
    older = msgspec.structs.replace(world.lock, settings=settings)
    sealed = seals.seal(older, seals.sealed_records(world.sealed))
    assert sealed.digest != world.sealed.digest
    files = _files(older, sealed, world)
    for key in (world.key.public, None):
        world.restore(world.signed)
        world.replace(world.top, bundle.ARTIFACT_TYPE, files)
        found = world.failed(key=key)
        assert set(found) == {"lock", *(OF_A_LOCK if key else ())}
        assert f"is of another image: {BOTH} {sealed.digest}" in found["lock"]
    assert set(world.failed(own=own(world))) == {"lock", *OF_A_LOCK}


def test_another_lock_of_the_same_image_is_refused_by_the_key(world):
    """What an image does not show, its digest does not tell: the signed provenance does."""
    other = msgspec.structs.replace(world.lock, requirements={"torch": "==9"})
    sealed = seals.seal(other, seals.sealed_records(world.sealed))
    assert sealed.digest == world.sealed.digest
    world.replace(world.top, bundle.ARTIFACT_TYPE, _files(other, sealed, world))
    found = world.failed()
    assert {"lock", "provenance"} <= set(found)
    assert "no provenance that the key signed names" in found["lock"]
    assert sha256(codec.encode(other)) in found["provenance"]


def test_a_wrong_lock_does_not_hide_the_right_one(world):
    """Whoever may write can attach: one of another image, one of the same that nobody signed."""
    settings = msgspec.structs.replace(world.lock.settings, labels={})
    for changed in ({"settings": settings}, {"requirements": {"torch": "==9"}}):
        lock = msgspec.structs.replace(world.lock, **changed)
        sealed = seals.seal(lock, seals.sealed_records(world.sealed))
        files = _files(world.lock, world.sealed, world) | {
            "lock.json": codec.encode(lock), "digests.json": codec.encode(sealed),
        }  # fmt: skip
        kind = bundle.ARTIFACT_TYPE
        parts = {name: ArtifactFile(data=data, media_type=kind) for name, data in files.items()}
        held = world.state()
        artifacts.attach(world.client, world.repository, world.top, kind, parts)
        assert world.verify() == {}
        world.restore(held)


def test_a_seal_that_does_not_follow_from_its_lock_is_refused(world):
    files = _files(world.lock, msgspec.structs.replace(world.sealed, target="other"), world)
    world.replace(world.top, bundle.ARTIFACT_TYPE, files)
    assert set(world.failed()) == {"lock", *OF_A_LOCK}


# -- signatures


def test_another_key_is_refused(world):
    other = PrivateKey(ec.generate_private_key(ec.SECP256R1()))
    found = world.failed(key=other.public)
    assert "none by the key" in found["signature"]
    world.sign(other)
    assert world.verify(key=other.public) == {}
    assert world.verify() == {}


def test_a_signature_of_another_image_is_refused(world):
    place = world.place
    place.push()
    other = place.plan().top
    signer.sign(
        world.client,
        world.repository,
        Descriptor(media_type=MANIFEST, digest=other.digest, size=len(other.data)),
        world.key,
    )
    world.unsign(world.top, kinds=(statements.SIGNATURE,))
    tags = place.registry.tags
    tags[NAME, forms.tag(world.top.digest, forms.SIGNATURES)] = tags[
        NAME, forms.tag(other.digest, forms.SIGNATURES)
    ]
    found = world.failed()
    assert f"of another image: {other.digest}" in found["signature"]


def test_a_statement_alone_is_no_signature_of_the_image(world):
    world.unsign(world.top, kinds=(statements.SIGNATURE,))
    place = world.place
    del place.registry.tags[NAME, forms.tag(world.top.digest, forms.SIGNATURES)]
    assert world.failed()["signature"] == "it is not signed"


def test_what_is_listed_and_absent_is_refused(world):
    for one in world.client.referrers(world.repository, world.top.digest, forms.BUNDLE):
        manifest = json.loads(world.place.registry.manifests[NAME, one.digest][0])
        del world.place.registry.blobs[NAME, manifest["layers"][0]["digest"]]
    assert "signature" in world.failed()
