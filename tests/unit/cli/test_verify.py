"""Tests the exit statuses, output and errors of `imgbuild sign` and `imgbuild verify`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization as forms
from cryptography.hazmat.primitives.asymmetric import ec

from imgbuild import codec
from imgbuild.assemble import image_layout
from imgbuild.attest import bundle, in_toto, provenance
from imgbuild.attest.signing import keys, stored
from imgbuild.publish.push_plan import PushPlan
from imgbuild.registry import artifact_store
from imgbuild.registry.artifact_store import ArtifactFile
from imgbuild.values import Arch
from imgbuild.verify import expected_lock
from tests.support.inprocess_project import read_json
from tests.support.registry_project import BOTH, NAME, Place
from tests.support.signed_image import Sample

MARK = "sha256:"


@pytest.fixture(name="place")
def _place(signed: Sample) -> Place:
    """The pushed image with all attachments, without a signature."""
    signed.restore(signed.unsigned)
    return signed.place


@pytest.fixture(name="pair")
def _pair(tmp_path: Path) -> tuple[str, str]:
    """A private and a public key file."""
    key = ec.generate_private_key(ec.SECP256R1())
    private, public = tmp_path / "key.pem", tmp_path / "key.pub"
    private.write_bytes(
        key.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption())
    )
    spki = forms.PublicFormat.SubjectPublicKeyInfo
    public.write_bytes(key.public_key().public_bytes(forms.Encoding.PEM, spki))
    return str(private), str(public)


def outcomes(answer) -> dict[str, str]:
    """The outcome of each check in the JSON output."""
    report = json.loads(answer.stdout)
    return {
        " ".join(filter(None, (check["name"], check["arch"]))): check["outcome"]
        for check in report["checks"]
    }


def ref(place: Place) -> str:
    return str(place.reference(BOTH))


def test_verify_needs_no_project_folder(place, imgbuild, pair, tmp_path, monkeypatch):
    signed = imgbuild("sign", ref(place), "--target", BOTH, "--sign-key", pair[0], "--json")
    assert len(read_json(signed)) == 3  # the index and two manifests
    away = tmp_path / "away"
    away.mkdir()
    monkeypatch.chdir(away)
    verification = imgbuild("verify", ref(place), "--key", pair[1], "--blobs", "--json")
    assert verification.status == 0, verification.stdout + verification.stderr
    assert json.loads(verification.stdout)["ok"] is True
    assert set(outcomes(verification).values()) == {"passed", "not checked"}
    assert [name for name, how in outcomes(verification).items() if how == "not checked"] == [
        "rebuild"
    ]
    result = imgbuild("verify", ref(place), "--key", pair[1])
    assert result.stdout.splitlines()[0].split() == [
        "check",
        "arch",
        "outcome",
        "details",
    ]
    assert ": 16 passed, 2 not checked" in result.stderr


def test_second_sign_command_writes_nothing(place, imgbuild, pair):
    words = ("sign", ref(place), "--target", BOTH, "--sign-key", pair[0], "--json")
    first = read_json(imgbuild(*words))
    written = len(place.writes())
    previous = dict(place.registry.manifests)
    assert read_json(imgbuild(*words)) == first
    assert place.registry.manifests == previous
    assert place.writes()[written:] == []


def test_failed_verification_is_reported_with_exit_status(place, imgbuild, pair):
    verification = imgbuild("verify", ref(place), "--key", pair[1])
    assert verification.status == 9
    assert "the image is not signed" in verification.stdout
    assert "failed verification: 7 failed" in verification.stderr


@pytest.mark.parametrize("words", [(), ("--target", BOTH)])
def test_image_that_differs_from_lock_is_not_signed(place, imgbuild, pair, words):
    expected = expected_lock.lock_of_project(place.work().project, BOTH).contents
    digest = expected.manifest_digest(Arch.ARM64)
    data, kind = place.registry.manifests[NAME, digest]
    place.registry.manifests[NAME, digest] = (
        data.replace(b'"schemaVersion":2', b'"schemaVersion":3'),
        kind,
    )
    previous = dict(place.registry.manifests)
    answer = imgbuild("sign", ref(place), *words, "--sign-key", pair[0])
    assert answer.status == 9
    assert digest in answer.stderr
    assert "is not signed because verification failed" in answer.stderr
    assert place.registry.manifests == previous


@pytest.mark.parametrize("lock", ["attached", "none"])
def test_only_the_digest_is_signed_without_a_local_lock(signed, place, imgbuild, pair, lock):
    if lock == "none":
        signed.remove(bundle.ARTIFACT_TYPE, signed.top)
    answer = imgbuild("sign", ref(place), "--sign-key", pair[0], "--json")
    assert "only the digest is signed" in answer.stderr
    assert "specify your lock with --target" in answer.stderr
    signed_images = read_json(answer)
    assert [image["statements"] for image in signed_images] == [[], [], []]
    verification = imgbuild("verify", ref(place), "--key", pair[1], "--json")
    assert (verification.status, outcomes(verification)["signature"]) == (9, "passed")
    assert outcomes(verification)["lock"] == "failed"


VICTIM = "https://host.example/victim/rl/.github/workflows/release.yml@refs/heads/main"


def forge(signed: Sample) -> None:
    """Attach a statement of a third party about the image with another builder and commit."""
    for subject in (signed.top, signed.arm):
        (attachment,) = signed.artifacts(subject, in_toto.PAYLOAD_TYPE)
        statement = json.loads(attachment.files["provenance.json"].data)
        statement["predicate"]["runDetails"]["builder"]["id"] = VICTIM
        commit = {"name": "repository", "digest": {"gitCommit": "f" * 40}}
        statement["predicate"]["buildDefinition"]["resolvedDependencies"].append(commit)
        part = ArtifactFile(data=codec.encode_compact(statement), media_type=in_toto.PAYLOAD_TYPE)
        kind = in_toto.PAYLOAD_TYPE
        files = {"provenance.json": part}
        artifact_store.attach_artifact(signed.client, signed.repository, subject, kind, files)


@pytest.mark.parametrize("lock", ["target", "file", "none"])
def test_provenance_of_another_builder_is_never_signed(
    signed, place, imgbuild, pair, tmp_path, lock
):
    forge(signed)
    project_lock = expected_lock.lock_of_project(place.work().project, BOTH)
    words = {"target": ("--target", BOTH), "file": ("--lock", str(tmp_path / "own")), "none": ()}
    (tmp_path / "own").mkdir()
    for name, part in bundle.bundle_files(project_lock.lock_bundle).items():
        (tmp_path / "own" / name).write_bytes(part.data)
    assert imgbuild("sign", ref(place), *words[lock], "--sign-key", pair[0]).status == 0
    key = keys.load_public(Path(pair[1]))
    signed = [
        each
        for subject in (signed.top, signed.arm)
        for each in stored.read_signatures(
            signed.client, signed.repository, subject.digest
        ).signatures
        if each.by(key) and each.kind == in_toto.PROVENANCE
    ]
    bases = {provenance.comparable_fields(each.payload) for each in signed}
    ours = {provenance.LOCAL_BUILDER} if words[lock] else set()
    assert {basis.builder for basis in bases if basis} == ours
    assert not any(b"f" * 40 in each.payload for each in signed)
    check = ("verify", ref(place), "--key", pair[1], "--json")
    assert outcomes(imgbuild(*check, "--builder-id", VICTIM))["provenance"] == "failed"
    answer = imgbuild(*check, "--builder-id", provenance.LOCAL_BUILDER)
    assert answer.status == (0 if words[lock] else 9), answer.stdout


def test_expected_lock_of_verify_is_given_by_target_or_file(place, imgbuild, tmp_path, monkeypatch):
    verification = imgbuild("verify", ref(place), "--target", BOTH, "--json")
    assert (verification.status, outcomes(verification)["lock"]) == (0, "passed")
    folder = tmp_path / "pulled"
    folder.mkdir()
    for name, part in bundle.bundle_files(
        expected_lock.lock_of_project(place.work().project, BOTH).lock_bundle
    ).items():
        (folder / name).write_bytes(part.data)
    monkeypatch.chdir(tmp_path)
    for path in (folder, folder / "lock.json", place.sample.folder / "images" / BOTH / "lock.json"):
        verification = imgbuild("verify", ref(place), "--lock", str(path), "--json")
        assert (verification.status, outcomes(verification)["lock"]) == (0, "passed")
    for path in (folder / "absent.json", folder / "digests.json", tmp_path / "absent"):
        verification = imgbuild("verify", ref(place), "--lock", str(path))
        assert verification.status == 2
        assert f"{path.name} is neither a lock.json" in "".join(verification.stderr.split("\n"))
    (folder / "digests.json").unlink()
    assert imgbuild("verify", ref(place), "--lock", str(folder)).status == 2


def build_layout(place: Place, plan: PushPlan, out: Path) -> None:
    """Build the image of `plan` for both architectures in the folder `out`."""
    image_layout.build_layout(
        plan.lock,
        plan.target_digests,
        tuple(Arch),
        out,
        place.work().inputs,
        processes=1,
        verify=False,
    )


def test_a_layout_is_verified_by_a_lock(place, imgbuild, tmp_path):
    plan, out = place.both(), tmp_path / "layout"
    build_layout(place, plan, out)
    verification = imgbuild("verify", str(out), "--target", BOTH, "--blobs", "--json")
    assert verification.status == 0
    assert outcomes(verification)["layer bytes"] == "passed"
    assert outcomes(verification)["signature"] == "not checked"
    layer = (
        out / "blobs/sha256" / plan.target_digests.arch[Arch.ARM64].layers[1].digest[len(MARK) :]
    )
    data = layer.read_bytes()
    layer.unlink()
    layer.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert imgbuild("verify", str(out), "--target", BOTH, "--blobs").status == 9
    bare = imgbuild("verify", str(out), "--json")
    assert (bare.status, set(outcomes(bare).values())) == (9, {"not checked"})
    assert json.loads(bare.stdout)["ok"] is False
    assert "could not be checked" in bare.stderr
    assert "--target" in bare.stderr


def test_a_tag_that_was_moved_to_another_target_is_reported(place, imgbuild, pair):
    """The image is signed and complete, so only the tag is wrong."""
    imgbuild("sign", ref(place), "--target", BOTH, "--sign-key", pair[0])
    tags = place.registry.tags
    for tag, outcome in (
        (f"{BOTH}-20261121", "passed"),
        (f"{BOTH}-extra", "not checked"),
        ("cu124-vllm", "not checked"),
    ):
        tags[NAME, tag] = tags[NAME, BOTH]
        verification = imgbuild("verify", str(place.reference(tag)), "--key", pair[1], "--json")
        assert (verification.status, outcomes(verification)["name"]) == (0, outcome)
    digest = tags[NAME, BOTH]
    verification = imgbuild("verify", f"{place.repository}@{digest}", "--key", pair[1], "--json")
    assert "name" not in outcomes(verification)


def test_requested_checks_that_a_layout_does_not_support_fail(place, imgbuild, pair, tmp_path):
    plan, out = place.both(), tmp_path / "layout"
    build_layout(place, plan, out)
    words = ("verify", str(out), "--target", BOTH, "--json")
    assert imgbuild(*words).status == 0
    verification = imgbuild(*words, "--key", pair[1], "--builder-id", provenance.LOCAL_BUILDER)
    assert verification.status == 9
    assert {name for name, how in outcomes(verification).items() if how == "failed"} >= {
        "signature", "provenance", "SBOM SPDX arm64",
    }  # fmt: skip


def test_verification_of_an_image_with_deleted_attachments_fails(signed, place, imgbuild, pair):
    """A user with write access to the registry can delete attachments with one request."""
    assert imgbuild("sign", ref(place), "--target", BOTH, "--sign-key", pair[0]).status == 0
    signed.remove(bundle.ARTIFACT_TYPE, signed.top)
    assert imgbuild("verify", ref(place)).status == 9
    for words in (("--rebuild",), ("--key", pair[1])):
        verification = imgbuild("verify", ref(place), *words, "--json")
        assert (verification.status, json.loads(verification.stdout)["ok"]) == (9, False), words
    assert imgbuild("verify", ref(place), "--blobs").status == 0


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("sign", "REF"), 2, "specify either --sign-key"),
        (("sign", "REF", "--sign-key", "PRIVATE", "--keyless"), 2, "specify either --sign-key"),
        (("sign", "REF", "--sign-key", "PUBLIC"), 2, "not a private key"),
        (("sign", "REF", "--keyless"), 6, "cosign is not installed"),
        (("verify", "REF", "--key", "PRIVATE"), 2, "is a private key"),
        (("verify", "REF", "--builder-id", "https://x"), 2, "--builder-id requires --key"),
        (
            ("verify", "REF", "--target", BOTH, "--lock", "lock.json"),
            2,
            "--target and --lock can be specified only once",
        ),
        (("verify", "REF", "--target", "cu999"), 5, "no lock for target cu999"),
        (("verify", "REF-absent"), 7, "absent"),
        (("verify", "Not a reference"), 2, "Not a reference"),
        (("verify", "localhost/name"), 2, "a tag or digest is required"),
    ],
)
def test_impossible_verify_requests_are_refused_with_a_reason(
    place, imgbuild, pair, words, status, message
):
    names = {"PRIVATE": pair[0], "PUBLIC": pair[1]}
    answer = imgbuild(*(names.get(word, word.replace("REF", ref(place))) for word in words))
    assert answer.status == status, answer.stderr
    assert message in answer.stderr


def test_verify_sends_no_registry_request_in_offline_mode(place, imgbuild):
    before = len(place.registry.requests)
    assert imgbuild("verify", ref(place), "--offline").status == 7
    assert len(place.registry.requests) == before
