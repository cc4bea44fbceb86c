"""Tests that cosign and imgbuild verify each other's signatures."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from imgbuild import codec
from imgbuild.attest import in_toto
from imgbuild.attest.signing import forms, keys, signer, statements, stored
from imgbuild.attest.signing.signer import SignedSubject
from imgbuild.oci import layout
from imgbuild.oci.documents import MANIFEST, Descriptor, Manifest
from imgbuild.registry.client import RegistryClient, bytes_source
from imgbuild.registry.image_reference import ImageReference, Repository
from imgbuild.values import Arch, Digest
from tests.support import docker_registry, images, needs
from tests.support.docker_registry import OwnRegistry

pytestmark = pytest.mark.engine

OFFLINE = ("--use-signing-config=false", "--tlog-upload=false", "--yes")
KEYS = ("cosign", "openssl", "encrypted", "ed25519")
SAID = {
    "slsaprovenance1": (
        in_toto.PROVENANCE,
        {
            "buildDefinition": {"buildType": "test", "externalParameters": {}},
            "runDetails": {"builder": {"id": "test"}},
        },
    ),
    "cyclonedx": (in_toto.CYCLONEDX, {"bomFormat": "CycloneDX", "specVersion": "1.6"}),
    "openvex": (in_toto.OPENVEX, {"@context": "https://openvex.dev/ns/v0.2.0", "statements": []}),
    "spdxjson": (in_toto.SPDX, {"spdxVersion": "SPDX-2.3", "SPDXID": "SPDXRef-DOCUMENT"}),
}


@pytest.fixture(name="registry", scope="module")
def _registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnRegistry]:
    needs.require_tool("cosign", "cosign of Debian sid")
    with docker_registry.serve_registry(tmp_path_factory.mktemp("cosign") / "registry") as running:
        yield running


@pytest.fixture(name="pairs", scope="module")
def _pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Create pairs of key files with cosign and openssl. The password is pw."""
    folder = tmp_path_factory.mktemp("keys")
    cosign("generate-key-pair", cwd=folder)
    key_pairs = {"cosign": (folder / "cosign.key", folder / "cosign.pub")}
    kinds = {
        "openssl": ("-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"),
        "encrypted": ("-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256",
                      "-aes256", "-pass", "pass:pw"),
        "ed25519": ("-algorithm", "ED25519"),
    }  # fmt: skip
    for name, options in kinds.items():
        private, public = folder / f"{name}.pem", folder / f"{name}.pub"
        run("openssl", "genpkey", *options, "-out", str(private))
        run("openssl", "pkey", "-in", str(private), "-passin", "pass:pw", "-pubout",
            "-out", str(public))  # fmt: skip
        key_pairs[name] = (private, public)
    return key_pairs


def run(*command: str, cwd: Path | None = None, right: bool = True) -> str:
    """Run a command and return its output; it must succeed exactly if `right` is true."""
    env = {**os.environ, "COSIGN_PASSWORD": "pw"}
    done = subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode == 0) is right, done.stdout + done.stderr
    return done.stdout + done.stderr


def cosign(*arguments: str, cwd: Path | None = None, right: bool = True) -> str:
    """Run cosign."""
    return run(
        needs.require_tool("cosign", "cosign of Debian sid"), *arguments, cwd=cwd, right=right
    )


def push(registry: OwnRegistry, folder: Path, name: str, word: str = "hello") -> Descriptor:
    """Push a small image for two architectures to the registry, and return its descriptor."""
    image_layout = layout.read_layout(images.write_tiny_image(folder, tuple(Arch), word))
    client, repository = RegistryClient(), Repository(registry.host, name)
    for image in image_layout.images.values():
        for blob in (image.config, *image.layers):
            client.upload_blob(
                repository, bytes_source(image_layout.blob(blob.digest).read_bytes())
            )
    for descriptor in (
        *(image.manifest for image in image_layout.images.values()),
        image_layout.top,
    ):
        data = image_layout.blob(descriptor.digest).read_bytes()
        client.put_manifest(repository, data, descriptor.media_type, tag="one")
    return image_layout.top


def sign(
    registry: OwnRegistry, name: str, top: Descriptor, private: Path, *types: str
) -> SignedSubject:
    """Sign an image and statements of several types with imgbuild."""
    signed_statements = [statements.create_statement([top.digest], *SAID[each]) for each in types]
    key = keys.load_private(private, lambda _: b"pw")
    return signer.sign_subject(
        RegistryClient(), Repository(registry.host, name), top, key, signed_statements
    )


def verify(
    registry: OwnRegistry, name: str, public: Path, *options: str, right: bool = True
) -> str:
    """Verify with cosign."""
    return cosign(
        "verify", "--key", str(public), "--insecure-ignore-tlog", *options,
        f"{registry.host}/{name}:one", right=right,
    )  # fmt: skip


@pytest.mark.parametrize(
    "kind", [KEYS[0], *(pytest.param(kind, marks=pytest.mark.long) for kind in KEYS[1:])]
)
def test_cosign_verifies_imgbuild_signatures(registry, pairs, tmp_path, kind):
    top = push(registry, tmp_path, kind)
    private, public = pairs[kind]
    sign(registry, kind, top, private, *SAID)
    assert top.digest in verify(registry, kind, public)
    for short, (kind_of, _) in SAID.items():
        result = cosign(
            "verify-attestation", "--key", str(public), "--insecure-ignore-tlog",
            "--type", short, f"{registry.host}/{kind}:one",
        )  # fmt: skip
        assert kind_of in result or "payload" in result
    other = pairs["openssl" if kind != "openssl" else "cosign"][1]
    verify(registry, kind, other, right=False)


@pytest.mark.parametrize("form", ["--new-bundle-format=true", "--new-bundle-format=false"])
def test_imgbuild_reads_cosign_signatures(registry, pairs, tmp_path, form):
    name = f"theirs-{form.rpartition('=')[2]}"
    top = push(registry, tmp_path, name)
    private, public = pairs["cosign"]
    reference = f"{registry.host}/{name}@{top.digest}"
    cosign("sign", "--key", str(private), *OFFLINE, form, reference)
    predicate = tmp_path / "predicate.json"
    predicate.write_text('{"buildDefinition": {}, "runDetails": {}}')
    cosign(
        "attest", "--key", str(private), *OFFLINE, form, "--type", "slsaprovenance1",
        "--predicate", str(predicate), reference,
    )  # fmt: skip
    stored_signatures = stored.read_signatures(
        RegistryClient(), Repository(registry.host, name), top.digest
    )
    assert stored_signatures.damaged == ()
    assert {each.kind for each in stored_signatures.signatures} == {
        in_toto.SIGNATURE, in_toto.PROVENANCE,
    }  # fmt: skip
    key = keys.load_public(public)
    assert all(
        each.by(key) and each.digests == (top.digest,) for each in stored_signatures.signatures
    )


def layer_of(client: RegistryClient, repository: Repository, manifest: Digest) -> Descriptor:
    """The first layer of a manifest."""
    data = client.manifest(repository.with_digest(manifest)).data
    return codec.decode(data, Manifest, file="manifest").layers[0]


@pytest.mark.parametrize("form", ["bundle", "collection"])
def test_cosign_and_imgbuild_refuse_flipped_byte_in_registry(registry, pairs, tmp_path, form):
    """A file on the disk of the registry is changed, as an attacker with access could do."""
    # A separate image, because a registry stores equal bytes once for all its repositories.
    top = push(registry, tmp_path, form, word=form)
    private, public = pairs["cosign"]
    client, repository = RegistryClient(attempts=1), Repository(registry.host, form)
    options: tuple[str, ...] = ()
    if form == "bundle":
        manifest = sign(registry, form, top, private).bundles[-1]
    else:
        options = ("--new-bundle-format=false",)
        cosign("sign", "--key", str(private), *OFFLINE, *options,
               f"{registry.host}/{form}@{top.digest}")  # fmt: skip
        collection = client.resolve(
            repository.tagged(forms.collection_tag(top.digest, forms.SIGNATURES))
        )
        assert collection is not None
        manifest = collection.digest
    digest = layer_of(client, repository, manifest).digest
    place = next(registry.storage.rglob(f"blobs/sha256/*/{digest[7:]}/data"))
    whole = place.read_bytes()
    for number in (0, len(whole) // 2, len(whole) - 1):
        flipped = whole[:number] + bytes([whole[number] ^ 1]) + whole[number + 1 :]
        place.write_bytes(flipped)
        verify(registry, form, public, *options, right=False)
        damaged = stored.read_signatures(client, repository, top.digest).damaged
        assert [digest in damage for damage in damaged] == [True], damaged
    place.write_bytes(whole)
    assert stored.read_signatures(client, repository, top.digest).damaged == ()
    verify(registry, form, public, *options)


@pytest.mark.parametrize("form", ["bundle", "collection"])
def test_cosign_and_imgbuild_refuse_signature_of_another_image(registry, pairs, tmp_path, form):
    name = f"moved-{form}"
    signed_image = push(registry, tmp_path / "one", name, word="one")
    private, public = pairs["cosign"]
    client, repository = RegistryClient(), Repository(registry.host, name)
    if form == "bundle":
        manifest = sign(registry, name, signed_image, private).bundles[-1]
        data = client.blob(repository, layer_of(client, repository, manifest))
        other = push(registry, tmp_path / "other", name, word="other")
        stored.put_bundle(client, repository, other, data, in_toto.SIGNATURE)
    else:
        cosign("sign", "--key", str(private), *OFFLINE, "--new-bundle-format=false",
               f"{registry.host}/{name}@{signed_image.digest}")  # fmt: skip
        signed = client.manifest(
            repository.tagged(forms.collection_tag(signed_image.digest, forms.SIGNATURES))
        )
        other = push(registry, tmp_path / "other", name, word="other")
        tag = forms.collection_tag(other.digest, forms.SIGNATURES)
        client.put_manifest(repository, signed.data, MANIFEST, tag=tag)
    verify(registry, name, public, right=False)
    (signature,) = stored.read_signatures(client, repository, other.digest).signatures
    assert signature.by(keys.load_public(public))
    assert signature.digests == (signed_image.digest,)
    assert client.resolve(ImageReference(registry.host, name, "one")) is not None
