"""Tests that signatures written to a registry are read back, including damaged and moved ones.

A collection, which is the format of cosign 1 and 2, is read from tests/data/signing.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from imgbuild import codec
from imgbuild.attest import in_toto
from imgbuild.attest.signing import forms, keys, signer, statements, stored
from imgbuild.oci.documents import (
    CONFIG,
    EMPTY_TYPE,
    MANIFEST,
    Descriptor,
    create_descriptor,
    create_manifest,
)
from imgbuild.registry.client import RegistryClient, bytes_source
from imgbuild.values import sha256
from tests.support import memory_registry
from tests.support.memory_registry import Registry, sha256_digest

IMAGE = b'{"config":{},"layers":[],"schemaVersion":2}'
OTHER = b'{"config":{},"layers":[],"schemaVersion":2 }'
NAME = "team/image"
NAMED = sha256_digest(IMAGE).replace(":", "-")  # the referrers tag
DATA = Path(__file__).parents[3] / "data/signing"
OLDER = "sha256:02d560857c48149546476f40f0f56fd4735f288a7b9dcf67c4b72c5e429af1f4"
TAG = forms.collection_tag(OLDER, forms.SIGNATURES)


@pytest.fixture(name="key")
def _key():
    return keys.PrivateKey(ec.generate_private_key(ec.SECP256R1()))


@pytest.fixture(name="registry", params=[True, False], ids=["referrers", "tags"])
def _registry(request, monkeypatch, tmp_path: Path):
    memory_registry.isolate_logins(monkeypatch, tmp_path)
    with memory_registry.serve(Registry(referrers_api=request.param)) as registry:
        yield registry


def subject(data=IMAGE):
    return Descriptor(media_type=MANIFEST, digest=sha256_digest(data), size=len(data))


def sign(registry, key, payloads=(), data=IMAGE):
    client, repository = RegistryClient(first_wait=0.001), registry.repository(NAME)
    client.put_manifest(repository, data, MANIFEST)
    return signer.sign_subject(client, repository, subject(data), key, payloads)


def read(registry, data=IMAGE):
    return stored.read_signatures(
        RegistryClient(first_wait=0.001), registry.repository(NAME), sha256_digest(data)
    )


def statement(kind, predicate, data=IMAGE):
    return statements.create_statement([sha256_digest(data)], kind, predicate)


def put_collection(registry, tag, manifest, *contents):
    """Store a collection as cosign 1 and 2 do."""
    registry.blobs |= {(NAME, sha256_digest(data)): data for data in contents}
    registry.manifests[NAME, sha256_digest(manifest)] = (manifest, MANIFEST)
    registry.tags[NAME, tag] = sha256_digest(manifest)


def put_older(registry, manifest=None):
    """Store the signature of the image OLDER in tests/data/signing, and return its key."""
    data = (DATA / "collection.json").read_bytes() if manifest is None else manifest
    put_collection(registry, TAG, data, (DATA / "claim.json").read_bytes())
    return keys.load_private(DATA / "cosign.key", lambda _: b"pw").public


def read_older(registry):
    return stored.read_signatures(
        RegistryClient(first_wait=0.001), registry.repository(NAME), OLDER
    )


def test_stored_signatures_are_read_back(registry, key):
    said = [statement(in_toto.PROVENANCE, {"a": 1}), statement(in_toto.SPDX, {"b": 2})]
    done = sign(registry, key, said)
    found = read(registry)
    assert found.damaged == ()
    assert done.statements == (in_toto.PROVENANCE, in_toto.SPDX)
    kinds = sorted(each.kind for each in found.signatures)
    assert kinds == sorted((in_toto.SIGNATURE, in_toto.PROVENANCE, in_toto.SPDX))
    assert all(each.place.startswith("bundle sha256:") for each in found.signatures)
    assert all(tag == NAMED or not tag.startswith("sha256-") for _, tag in registry.tags)
    assert all(each.by(key.public) for each in found.signatures)
    assert all(each.digests == (sha256_digest(IMAGE),) for each in found.signatures)
    assert {each.payload for each in found.signatures} >= set(said)


def test_second_signing_writes_nothing(registry, key):
    payloads = [statement(in_toto.PROVENANCE, {"a": 1})]
    first = sign(registry, key, payloads)
    contents = (dict(registry.manifests), dict(registry.blobs), dict(registry.tags))
    assert sign(registry, key, payloads) == first
    assert (registry.manifests, registry.blobs, registry.tags) == contents


def test_lost_signature_is_created_again(registry, key):
    payloads = [statement(in_toto.PROVENANCE, {"a": 1})]
    first = sign(registry, key, payloads)
    whole = dict(registry.blobs)
    for place, data in whole.items():
        if b'"verificationMaterial"' in data:
            del registry.blobs[place]
    assert len(registry.blobs) < len(whole)
    assert read(registry).damaged != ()
    assert sign(registry, key, payloads) == first
    assert registry.blobs == whole
    assert read(registry).damaged == ()


def test_referrers_that_are_not_signatures_are_not_reported_as_damaged(registry, key):
    """The other referrers are an index with a subject and a listed manifest that was deleted."""
    sign(registry, key)
    client, repository = RegistryClient(first_wait=0.001), registry.repository(NAME)
    about = {"mediaType": MANIFEST, "digest": sha256_digest(IMAGE), "size": len(IMAGE)}
    index = {
        "schemaVersion": 2,
        "mediaType": memory_registry.INDEX,
        "manifests": [],
        "subject": about,
    }
    digest = client.put_manifest(repository, json.dumps(index).encode(), memory_registry.INDEX)
    stored_signatures = read(registry)
    assert (len(stored_signatures.signatures), stored_signatures.damaged) == (1, ())
    del registry.manifests[NAME, digest]
    assert read(registry) == stored_signatures


def test_signing_with_a_second_key_adds_a_signature(registry, key):
    other = keys.PrivateKey(ed25519.Ed25519PrivateKey.generate())
    sign(registry, key)
    sign(registry, other)
    stored_signatures = read(registry)
    assert [each.by(key.public) for each in stored_signatures.signatures].count(True) == 1
    assert [each.by(other.public) for each in stored_signatures.signatures].count(True) == 1
    assert len(stored_signatures.signatures) == 2


def test_unsigned_image_has_no_signatures(registry):
    RegistryClient().put_manifest(registry.repository(NAME), IMAGE, MANIFEST)
    assert read(registry) == stored.AttachedSignatures(signatures=(), damaged=())


def test_signing_does_not_modify_other_referrers(registry, key):
    client, repository = RegistryClient(first_wait=0.001), registry.repository(NAME)
    sign(registry, key)
    client.upload_blob(repository, bytes_source(b"{}"))
    sbom = {
        **json.loads(forms.bundle_manifest(subject(), b"{}", "x")),
        "artifactType": "application/spdx+json",
    }
    client.put_manifest(repository, json.dumps(sbom).encode(), MANIFEST)
    stored_signatures = read(registry)
    assert (len(stored_signatures.signatures), stored_signatures.damaged) == (1, ())
    assert len(client.referrers(repository, sha256_digest(IMAGE))) == 2


def test_bundle_with_a_flipped_byte_is_damaged_and_other_bundles_are_read(registry, key):
    sign(registry, key, [statement(in_toto.PROVENANCE, {"a": 1})])
    place = next(at for at, data in registry.blobs.items() if b'"verificationMaterial"' in data)
    registry.blobs[place] = bytes([registry.blobs[place][0] ^ 1]) + registry.blobs[place][1:]
    stored_signatures = read(registry)
    (damage,) = stored_signatures.damaged
    assert place[1] in damage
    assert len(stored_signatures.signatures) == 1


def test_cosign_2_signature_and_statements_are_read(registry):
    key = put_older(registry)
    signing = keys.load_private(DATA / "cosign.key", lambda _: b"pw")
    envelope = statements.sign_statement(
        statements.create_statement([OLDER], in_toto.SPDX, {"b": 2}), signing
    )
    data = codec.encode_compact(envelope)
    manifest = create_manifest(
        create_descriptor(CONFIG, b"{}"), [create_descriptor(forms.DSSE, data)]
    )
    put_collection(registry, forms.collection_tag(OLDER, forms.ATTESTATIONS), manifest, data)
    found = read_older(registry)
    assert found.damaged == ()
    assert {each.kind for each in found.signatures} == {in_toto.SIGNATURE, in_toto.SPDX}
    assert all(each.by(key) and each.digests == (OLDER,) for each in found.signatures)


def test_cosign_2_signature_with_flipped_byte_matches_no_key(registry):
    """The signature of a collection is in its manifest, which a registry may rewrite."""
    manifest = json.loads((DATA / "collection.json").read_bytes())
    notes = manifest["layers"][0]["annotations"]
    text = notes[forms.SIGNATURE_NOTE]
    notes[forms.SIGNATURE_NOTE] = text[:20] + ("A" if text[20] != "A" else "B") + text[21:]
    key = put_older(registry, json.dumps(manifest).encode())
    (found,) = read_older(registry).signatures
    assert not found.by(key)


def test_invalid_collection_layer_is_reported_with_location(registry):
    manifest = json.loads((DATA / "collection.json").read_bytes())
    data = b'{"critical": 7}'
    layer = {**manifest["layers"][0], "digest": sha256_digest(data), "size": len(data)}
    put_older(registry, json.dumps({**manifest, "layers": [*manifest["layers"], layer]}).encode())
    registry.blobs[NAME, sha256_digest(data)] = data
    found = read_older(registry)
    (damage,) = found.damaged
    assert f"layer 2 of {TAG}" in damage
    assert len(found.signatures) == 1


def test_missing_collection_layer_is_damaged(registry):
    put_older(registry)
    registry.blobs.clear()
    (damage,) = read_older(registry).damaged
    assert sha256_digest((DATA / "claim.json").read_bytes()) in damage


def test_missing_bundle_is_damaged(registry, key):
    sign(registry, key)
    bundle_place = next(
        place for place, data in registry.blobs.items() if b'"verificationMaterial"' in data
    )
    del registry.blobs[bundle_place]
    stored_signatures = read(registry)
    assert len(stored_signatures.damaged) == 1
    assert stored_signatures.signatures == ()


def test_moved_signature_is_reported_with_its_original_image(registry, key):
    """A signature of another image is not valid for this image, wherever it is stored."""
    sign(registry, key, data=OTHER)
    client, repository = RegistryClient(first_wait=0.001), registry.repository(NAME)
    client.put_manifest(repository, IMAGE, MANIFEST)
    older = put_older(registry)
    registry.tags[NAME, forms.collection_tag(sha256_digest(IMAGE), forms.SIGNATURES)] = (
        registry.tags[NAME, TAG]
    )
    bundle = next(data for data in registry.blobs.values() if b'"verificationMaterial"' in data)
    stored.put_bundle(client, repository, subject(), bundle, in_toto.SIGNATURE)
    stored_signatures = read(registry)
    assert [each.digests for each in stored_signatures.signatures] == [
        (sha256_digest(OTHER),),
        (OLDER,),
    ]
    assert [each.by(key.public) for each in stored_signatures.signatures] == [True, False]
    assert stored_signatures.signatures[1].by(older)


def test_cosign_referrer_listing_of_bundles_is_read(registry, key):
    """cosign 3 lists a bundle by the type of its empty configuration."""
    sign(registry, key)
    if registry.referrers_api:
        return
    tag = sha256_digest(IMAGE).replace(":", "-")
    index = json.loads(registry.manifests[NAME, registry.tags[NAME, tag]][0])
    index["manifests"][0]["artifactType"] = EMPTY_TYPE
    data = json.dumps(index).encode()
    registry.manifests[NAME, f"sha256:{sha256(data)}"] = (data, memory_registry.INDEX)
    registry.tags[NAME, tag] = f"sha256:{sha256(data)}"
    assert len(read(registry).signatures) == 1
