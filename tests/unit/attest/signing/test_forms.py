"""Tests statements, envelopes and both signature formats against files written by cosign.

tests/data/signing has an image of the repository 127.0.0.1:5179/signexp(c), which cosign 3.1.1
signed as a bundle and as a collection.
"""

import base64
import json
from pathlib import Path

import msgspec
import pytest

from imgbuild import codec
from imgbuild.attest import in_toto
from imgbuild.attest.signing import forms, keys, statements
from imgbuild.attest.signing.forms import Bundle, ImageClaim
from imgbuild.errors import InputError
from imgbuild.oci.documents import INDEX, Descriptor, Manifest
from imgbuild.values import sha256

DATA = Path(__file__).parents[3] / "data/signing"
DIGEST = "sha256:02d560857c48149546476f40f0f56fd4735f288a7b9dcf67c4b72c5e429af1f4"
OTHER = f"sha256:{'0' * 64}"


@pytest.fixture(name="key", scope="module")
def _key():
    return keys.load_private(DATA / "cosign.key", lambda _: b"pw")


def _bundle():
    return codec.decode((DATA / "bundle.json").read_bytes(), Bundle, file="bundle.json")


def test_signature_in_a_cosign_bundle_verifies_with_its_key(key):
    bundle = _bundle()
    assert bundle.dsse_envelope is not None
    assert bundle.hint == key.public.hint
    assert bundle.dsse_envelope.by(key.public)
    statement = bundle.dsse_envelope.parse_statement("bundle.json")
    assert statement.digests == (DIGEST,)
    assert statement.predicate_type == in_toto.SIGNATURE


def test_modified_payload_type_or_signature_does_not_verify(key):
    envelope = _bundle().dsse_envelope
    assert envelope is not None
    last = bytes([envelope.signatures[0].sig[-1] ^ 1])
    flipped = statements.EnvelopeSignature(sig=envelope.signatures[0].sig[:-1] + last)
    for change in (
        {"payload": envelope.payload.replace(b"02d56085", b"02d56086")},
        {"payload_type": "text/plain"},
        {"signatures": (flipped,)},
        {"signatures": ()},
    ):
        assert not msgspec.structs.replace(envelope, **change).by(key.public)


def test_signature_in_a_cosign_collection_verifies_with_its_key(key):
    data = (DATA / "claim.json").read_bytes()
    layer = codec.decode((DATA / "collection.json").read_bytes(), Manifest, file="x").layers[0]
    assert layer.digest == f"sha256:{sha256(data)}"
    assert key.public.verify(data, base64.b64decode(layer.annotations[forms.SIGNATURE_NOTE]))
    assert codec.decode(data, ImageClaim, file="claim.json").digest == DIGEST


def test_bundle_has_fields_of_cosign_bundle(key):
    envelope = statements.sign_statement(forms.about_image(DIGEST), key)
    ours = json.loads(forms.create_bundle(envelope, key.public.hint))
    theirs = json.loads((DATA / "bundle.json").read_bytes())
    for bundle in (ours, theirs):
        bundle["dsseEnvelope"].pop("signatures")
        bundle["dsseEnvelope"]["payload"] = json.loads(
            base64.b64decode(bundle["dsseEnvelope"]["payload"])
        )
    del theirs["dsseEnvelope"]["payload"]["subject"][0]["annotations"]  # empty in cosign's bundles
    assert ours == theirs


def test_same_statement_yields_same_bundle(key):
    bundles = [
        forms.create_bundle(
            statements.sign_statement(forms.about_image(DIGEST), key), key.public.hint
        )
        for _ in range(2)
    ]
    assert bundles[0] == bundles[1]


def test_bundle_manifest_has_type_and_subject():
    subject = Descriptor(media_type=INDEX, digest=DIGEST, size=506, annotations={"a": "b"})
    manifest = json.loads(forms.bundle_manifest(subject, b"data", in_toto.PROVENANCE))
    assert manifest["artifactType"] == forms.BUNDLE
    assert manifest["subject"] == {"mediaType": INDEX, "digest": DIGEST, "size": 506}
    assert manifest["layers"] == [
        {"mediaType": forms.BUNDLE, "digest": f"sha256:{sha256(b'data')}", "size": 4}
    ]
    assert manifest["config"]["digest"] == f"sha256:{sha256(b'{}')}"


def test_tag_of_a_collection_is_derived_from_the_digest():
    assert forms.collection_tag(DIGEST, forms.SIGNATURES) == f"sha256-{DIGEST[7:]}.sig"


def test_statement_lists_its_subjects():
    data = statements.create_statement([DIGEST, OTHER], in_toto.SPDX, {"a": 1})
    statement = codec.decode(data, statements.Statement, file="x")
    assert statement.digests == (DIGEST, OTHER)
    assert (statement.predicate_type, statement.predicate) == (in_toto.SPDX, {"a": 1})


def test_envelope_of_a_different_type_is_refused(key):
    envelope = statements.sign_statement(b'{"subject": "me"}', key)
    with pytest.raises(InputError, match="here is not a valid in-toto statement"):
        envelope.parse_statement("here")
