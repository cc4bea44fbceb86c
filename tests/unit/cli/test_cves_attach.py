"""Tests that `imgbuild cves --attach-to` attaches, signs and verifies OpenVEX documents."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from imgbuild.attest import in_toto
from imgbuild.attest.signing import forms, keys, signer, statements, stored
from imgbuild.attest.signing.keys import PrivateKey
from imgbuild.cves import attach
from imgbuild.cves.vex import MEDIA_TYPE
from imgbuild.errors import AuditFailed, InputError, IntegrityError
from imgbuild.lock import lock_file
from imgbuild.oci.documents import MANIFEST, Descriptor
from imgbuild.plan import image_digests
from imgbuild.registry import artifact_store
from imgbuild.registry.client import RegistryClient
from imgbuild.values import Arch
from tests.support import advisories, inprocess_project, memory_registry
from tests.support.advisories import TARGET
from tests.support.inprocess_project import Command
from tests.support.memory_registry import Registry

NAME = "me/rl"


@pytest.fixture(name="registry")
def _registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """A registry with the image of `advisories.write_project`, which is the current folder."""
    memory_registry.isolate_logins(monkeypatch, tmp_path)
    folder = inprocess_project.enter_folder(tmp_path, monkeypatch)
    advisories.write_project(folder)
    advisories.write_digests(folder)
    lock = lock_file.read_lock(folder / "images", TARGET)
    target_digests = image_digests.read_digests(folder / "images", lock)
    data = image_digests.image_manifests(lock, target_digests, [Arch.X86_64])[Arch.X86_64]
    with (
        memory_registry.serve(Registry()) as registry,
        advisories.serve(advisories.advisory_site()) as site,
    ):
        monkeypatch.setenv("IMGBUILD_OSV", site.url)
        registry.manifests[NAME, memory_registry.sha256_digest(data)] = (data, MANIFEST)
        registry.tags[NAME, TARGET] = memory_registry.sha256_digest(data)
        yield registry


@pytest.fixture(name="key")
def _key(tmp_path: Path) -> Path:
    """A private key; the public key is in the same folder."""
    private_key = ec.generate_private_key(ec.SECP256R1())
    pem = serialization.Encoding.PEM
    path = tmp_path / "key.pem"
    path.write_bytes(
        private_key.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    path.with_suffix(".pub").write_bytes(
        private_key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return path


@pytest.fixture(name="cves")
def _cves(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], registry: Registry
) -> Callable[..., Any]:
    run = Command(monkeypatch, capsys)
    return lambda *words: run("cves", TARGET, "--attach-to", f"{registry.host}/{NAME}", *words)


def attached(registry: Registry) -> list[dict[str, Any]]:
    """The documents that are attached to the image."""
    attachments = artifact_store.find_artifacts(
        RegistryClient(), registry.repository(NAME), registry.tags[NAME, TARGET], MEDIA_TYPE
    )
    return [json.loads(attachment.files[attach.FILE].data) for attachment in attachments]


def test_openvex_document_is_attached_again_only_if_it_changed(registry, cves):
    done = cves()
    assert done.status == AuditFailed.exit_code, done.stderr
    (document,) = attached(registry)
    digest = registry.tags[NAME, TARGET]
    products = {
        product["@id"] for statement in document["statements"] for product in statement["products"]
    }
    place = f"{registry.host}/{NAME}"
    assert products == {f"pkg:oci/rl@{digest}?arch=amd64&repository_url={place}"}
    before = len(registry.requests)
    assert cves().status == AuditFailed.exit_code
    assert {request.method for request in registry.requests[before:]} <= {"GET", "HEAD"}
    accepted = "accept_cves: [{id: CVE-2025-32434, reason: we load none, expires: 2999-01-01}]\n"
    with Path("matrix.yaml").open("a") as file:
        file.write(accepted)
    cves()
    assert len(attached(registry)) == 2
    assert registry.tags[NAME, TARGET] == digest


def test_signed_openvex_documents_are_verified_and_unsigned_ones_are_ignored(
    imgbuild, registry, cves, key
):
    assert cves("--sign-key", str(key), "--author", "team").status == AuditFailed.exit_code
    digest = registry.tags[NAME, TARGET]
    repository = registry.repository(NAME)
    (signed,) = {
        signature.payload
        for signature in stored.read_signatures(RegistryClient(), repository, digest).signatures
    }
    statement = json.loads(signed)
    assert statement["predicateType"] == "https://openvex.dev/ns"
    assert statement["subject"] == [{"digest": {"sha256": digest.removeprefix("sha256:")}}]
    assert [statement["predicate"]] == attached(registry)
    # A newer one, signed with another key, is not used.
    image = attach.find_pushed_image(RegistryClient(), repository, digest, TARGET)
    later = statement["predicate"] | {"timestamp": "2999-01-01T00:00:00Z"}
    later_statement = statements.create_statement([digest], in_toto.OPENVEX, later)
    other_key = PrivateKey(ec.generate_private_key(ec.SECP256R1()))
    signer.sign_statements(RegistryClient(), repository, image, other_key, [later_statement])
    before = len(registry.requests)
    cves("--sign-key", str(key), "--author", "team")
    assert {request.method for request in registry.requests[before:]} <= {"GET", "HEAD"}
    # A newer one that anyone may attach is neither counted nor signed.
    other = statement["predicate"] | {"timestamp": "3000-01-01T00:00:00Z", "author": "x"}
    attach.attach_document(RegistryClient(), repository, image, json.dumps(other).encode(), TARGET)
    words = ("verify", f"{registry.host}/{NAME}:{TARGET}", "--target", TARGET)
    text = imgbuild(*words, "--key", str(key.with_suffix(".pub"))).stdout
    (line,) = [line for line in text.splitlines() if "VEX" in line]
    assert "passed" in line
    assert "by team" in line
    assert "4 affected; signed by the key" in line
    text = imgbuild(*words).stdout
    assert "by x, 3000-01-01: 4 affected; signature not checked" in text


@pytest.mark.parametrize(
    ("predicate", "about", "message"),
    [
        ({"author": "a", "timestamp": "2026-01-01T00:00:00Z", "statements": []}, "0" * 64,
         "is about another image"),
        ({"author": "a", "timestamp": "today", "statements": []}, "", "OpenVEX document"),
        ([], "", "OpenVEX document"),
        ({"author": "a", "timestamp": "2026-01-01T00:00:00Z", "statements": [{"status": "safe"}]},
         "", "Invalid enum value 'safe'"),
    ],
)  # fmt: skip
def test_incorrect_signed_statement_is_an_error(imgbuild, registry, key, predicate, about, message):
    private = keys.load_private(key)
    digest = registry.tags[NAME, TARGET]
    size = len(registry.manifests[NAME, digest][0])
    subject = Descriptor(media_type=MANIFEST, digest=digest, size=size)
    data = statements.create_statement(
        [f"sha256:{about}" if about else digest], in_toto.OPENVEX, predicate
    )
    bundle = forms.create_bundle(statements.sign_statement(data, private), private.public.hint)
    repository = registry.repository(NAME)
    stored.put_bundle(RegistryClient(), repository, subject, bundle, in_toto.OPENVEX)
    done = imgbuild("verify", f"{registry.host}/{NAME}:{TARGET}", "--target", TARGET,
               "--key", str(key.with_suffix(".pub")))  # fmt: skip
    assert done.status == IntegrityError.exit_code
    (line,) = [line for line in done.stdout.splitlines() if line.strip().startswith("VEX")]
    assert message in line


def test_invalid_repository_is_refused_before_vulnerabilities_are_queried(imgbuild, registry):
    words = ("--attach-to", f"{registry.host}/{NAME}:tag", "--osv", "http://127.0.0.1:9")
    done = imgbuild("cves", TARGET, *words)
    assert (done.status, "a repository is expected" in done.stderr) == (InputError.exit_code, True)


def test_cves_attach_refuses_an_image_that_is_not_pushed(registry, cves):
    registry.manifests.clear()
    done = cves()
    assert done.status == InputError.exit_code
    assert f"does not contain {registry.tags[NAME, TARGET]}" in done.stderr
    assert f"imgbuild push {TARGET}" in done.stderr


def test_key_option_requires_a_repository(imgbuild, registry, key):
    done = imgbuild("cves", TARGET, "--sign-key", str(key))
    assert (done.status, "--sign-key requires --attach-to" in done.stderr) == (
        InputError.exit_code,
        True,
    )
