"""Tests verification by a third party that has only the name of an image and a public key.

A small project is pushed to Debian's docker-registry and signed with a cosign key. cosign and an
imgbuild with an empty cache verify the image. Changes on the disk of the registry are refused, and
a rebuild detects an image with a wrong lock.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from imgbuild import codec
from imgbuild.attest import attachments, bundle, in_toto, provenance
from imgbuild.attest.sbom import cyclonedx
from imgbuild.attest.signing import forms
from imgbuild.oci import layout
from imgbuild.oci.documents import INDEX, MANIFEST, Descriptor, create_index
from imgbuild.plan import image_digests
from imgbuild.plan.image_digests import TargetDigests
from imgbuild.plan.plan import create_plan
from imgbuild.registry import artifact_store
from imgbuild.registry.client import RegistryClient, bytes_source
from imgbuild.registry.image_reference import ImageReference, Repository
from imgbuild.values import Arch, sha256
from tests.support import docker_registry, images, needs, sample_project
from tests.support.docker_registry import OwnRegistry
from tests.support.sample_project import TARGET, Project
from tests.support.servers import FileSite, serve_site

pytestmark = pytest.mark.engine
NAME = "rl"
BOTH = ("x86_64", "arm64")


@dataclass
class Sample:
    """The pushed project, the registry, and a user with neither checkout nor cache."""

    project: Project
    registry: OwnRegistry
    consumer: Project
    keys: Path
    site: FileSite

    @property
    def reference(self) -> str:
        return f"{self.registry.host}/{NAME}:{TARGET}"

    @property
    def repository(self) -> Repository:
        return Repository(self.registry.host, NAME)

    @property
    def target_digests(self) -> TargetDigests:
        return codec.read_document(
            self.project.folder / f"images/{TARGET}/digests.json", TargetDigests
        )

    def verify(self, *options: str, status: int = 0, reference: str = "") -> dict[str, str]:
        """The outcome of each check reported to the consumer."""
        done = self.consumer.run(
            "verify", reference or self.reference, *options, "--json", status=status
        )
        return {
            " ".join(filter(None, (check["name"], check["arch"]))): check["outcome"]
            for check in json.loads(done.stdout)["checks"]
        }

    def signed(self, *options: str, status: int = 0) -> dict[str, str]:
        """Verify with the public key."""
        return self.verify("--key", str(self.keys / "cosign.pub"), *options, status=status)

    def file(self, digest: str) -> Path:
        """The path of a blob or manifest on the registry's disk."""
        paths = list(self.registry.storage.rglob(f"blobs/sha256/*/{digest[7:]}/data"))
        assert len(paths) == 1
        return paths[0]


@pytest.fixture(name="sample", scope="module")
def _sample(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sample]:
    folder = tmp_path_factory.mktemp("verify")
    cosign("generate-key-pair", cwd=folder)
    with (
        docker_registry.serve_registry(folder / "registry") as registry,
        serve_site(FileSite(files=sample_project.sample_index().site_files())) as site,
    ):
        env = {"COSIGN_PASSWORD": "pw"}
        project = Project(folder / "project", site.url("simple"), folder / "cache", env)
        below = {"kind": "registry", "image": _base(folder, site), "python": "3.11",
                 "glibc": "2.36", "interpreter": "/usr/bin/python3.11"}  # fmt: skip
        project.write(below, arches=BOTH)
        project.run("lock", TARGET)
        project.run(
            "push", TARGET, f"{registry.host}/{NAME}", "--sign-key", str(folder / "cosign.key")
        )
        consumer = Project(folder / "elsewhere", site.url("simple"), folder / "empty")
        consumer.folder.mkdir()
        yield Sample(project, registry, consumer, folder, site)


def _base(folder: Path, site: FileSite) -> str:
    members = [
        *(
            images.text_member(f"etc/{name}", "root:x:0:0::/:/bin/sh\n")
            for name in ("passwd", "group")
        ),
        images.text_member("usr/bin/python3.11", "", mode=0o755),
    ]
    layers = [images.make_layer(folder / "blobs", members)]
    layout.write_layout(
        folder / "base", {arch: images.image_files(layers, arch) for arch in Arch}, "base"
    )
    return sample_project.serve_image(site, folder / "base", "upstream/base")


def cosign(*arguments: str, cwd: Path | None = None) -> str:
    """The output of the real cosign, which must succeed."""
    done = subprocess.run(
        [needs.require_tool("cosign", "cosign of Debian sid"), *arguments],
        cwd=cwd, env={**os.environ, "COSIGN_PASSWORD": "pw"},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_consumer_verifies_and_rebuilds_image(sample):
    outcomes = sample.signed("--blobs", "--rebuild")
    assert set(outcomes.values()) == {"passed"}
    assert {"signature", "lock", "provenance", "rebuild", "layer bytes"} <= outcomes.keys()
    assert {
        f"SBOM {kind} {arch}" for kind in ("CycloneDX", "SPDX") for arch in BOTH
    } <= outcomes.keys()


def test_cosign_accepts_signatures_and_statements(sample):
    key = ("--key", str(sample.keys / "cosign.pub"), "--insecure-ignore-tlog")
    target_digests = sample.target_digests
    lock = sha256((sample.project.folder / f"images/{TARGET}/lock.json").read_bytes())
    for digest in (
        target_digests.digest,
        *(arch_digests.manifest for arch_digests in target_digests.arch.values()),
    ):
        name = f"{sample.registry.host}/{NAME}@{digest}"
        assert digest in cosign("verify", *key, name)
        statement = _statement(
            cosign("verify-attestation", *key, "--type", "slsaprovenance1", name)
        )
        assert provenance.comparable_fields(statement) is not None
        assert lock in statement.decode()
    for arch_digests in target_digests.arch.values():
        name = f"{sample.registry.host}/{NAME}@{arch_digests.manifest}"
        for kind in ("cyclonedx", "spdxjson"):
            cosign("verify-attestation", *key, "--type", kind, name)


def _statement(answer: str) -> bytes:
    payload = base64.b64decode(json.loads(answer.splitlines()[0])["payload"])
    return codec.encode_compact(json.loads(payload))


def _stored(sample: Sample) -> dict[str, tuple[str, str]]:
    """The digest of each document, with the check that fails if the document is changed."""
    client, target_digests = RegistryClient(), sample.target_digests
    arm = target_digests.arch[Arch.ARM64]

    sbom_file = (cyclonedx.MEDIA_TYPE, "sbom.cdx.json")

    def _file(subject: str, kind: str, name: str) -> str:
        (artifact,) = artifact_store.find_artifacts(client, sample.repository, subject, kind)
        return f"sha256:{sha256(artifact.files[name].data)}"

    return {
        "layer": (arm.layers[-1].digest, "layer bytes"),
        "config": (arm.config, "manifest"),
        "manifest": (arm.manifest, "manifest"),
        "SBOM": (_file(arm.manifest, *sbom_file), "SBOM CycloneDX arm64"),
        "provenance": (
            _file(target_digests.digest, in_toto.PAYLOAD_TYPE, "provenance.json"), "provenance",
        ),
        "lock": (_file(target_digests.digest, bundle.ARTIFACT_TYPE, "lock.json"), "lock"),
        "digests": (_file(target_digests.digest, bundle.ARTIFACT_TYPE, "digests.json"), "lock"),
        "signature": (_signature(client, sample, target_digests.digest), "signature"),
    }  # fmt: skip


def _signature(client: RegistryClient, sample: Sample, digest: str) -> str:
    """The bundle that signs the image `digest` itself."""
    for listed in client.referrers(sample.repository, digest, forms.BUNDLE):
        manifest = json.loads(client.manifest(sample.repository.with_digest(listed.digest)).data)
        if in_toto.SIGNATURE in manifest["annotations"].values():
            return str(manifest["layers"][0]["digest"])
    raise AssertionError("the image is not signed")


@pytest.mark.long  # unit/verify/test_verify.py flips bytes
def test_verify_refuses_a_flipped_byte_on_the_disk_of_the_registry(sample):
    for what, (digest, check) in _stored(sample).items():
        path = sample.file(digest)
        whole = path.read_bytes()
        middle = len(whole) // 2
        path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
        outcomes = sample.signed("--blobs", status=9)
        assert outcomes[check] == "failed", (what, outcomes)
        path.write_bytes(whole)
    assert "failed" not in sample.signed("--blobs").values()


@pytest.mark.long  # unit/verify/test_verify_options.py has a rebuild with another digest
def test_consistently_replaced_layer_is_detected_by_rebuild(sample):
    """A layer was replaced consistently in all documents, so only a build detects it."""
    here = sample.project.folder / "images" / TARGET
    honest = bundle.read_folder(here)
    client, repository = RegistryClient(), Repository(sample.registry.host, "evil")
    records = image_digests.layer_records(honest.target_digests)
    victim = next(
        layer
        for layer in honest.target_digests.arch[Arch.X86_64].layers
        if layer.name == "thewheel"
    )
    record, path = images.make_layer(
        sample.keys / "evil", [images.text_member("opt/evil", "evil\n")]
    )
    records[victim.id] = record
    target_digests = image_digests.compute_digests(honest.lock, records)
    assert target_digests.digest != honest.target_digests.digest
    client.upload_blob(repository, bytes_source(path.read_bytes()))
    manifests = {}
    for arch in Arch:
        arch_documents = image_digests.create_documents(
            create_plan(honest.lock, arch), records, None
        )
        manifests[arch] = arch_documents.manifest
        client.upload_blob(repository, bytes_source(arch_documents.config))
        for layer in arch_documents.layers:
            if layer.digest != record.digest:
                client.upload_blob(repository, bytes_source(sample.file(layer.digest).read_bytes()))
        client.put_manifest(repository, arch_documents.manifest, MANIFEST)
    client.put_manifest(repository, create_index(manifests), INDEX, tag="one")
    assert client.resolve(ImageReference(sample.registry.host, "evil", "one")) == Descriptor(
        media_type=INDEX, digest=target_digests.digest, size=len(create_index(manifests))
    )
    evil = msgspec.structs.replace(
        honest,
        target_digests=target_digests,
        data={**honest.data, "digests.json": codec.encode(target_digests)},
    )
    for artifact in attachments.planned_artifacts(
        evil, tuple(Arch), _claimed(honest, target_digests)
    ):
        artifact_store.attach_artifact(
            client, repository, artifact.subject, artifact.artifact_type, artifact.files
        )
    name = f"{sample.registry.host}/evil:one"
    assert "failed" not in sample.verify("--blobs", reference=name).values()
    outcomes = sample.verify("--rebuild", reference=name, status=9)
    assert [check for check, how in outcomes.items() if how == "failed"] == ["rebuild"]
    lock_option = ("--lock", str(here))
    assert sample.verify(*lock_option, reference=name, status=9)["image"] == "failed"
    assert (
        sample.verify("--key", str(sample.keys / "cosign.pub"), reference=name, status=9)[
            "signature"
        ]
        == "failed"
    )


def _claimed(honest: bundle.LockBundle, target_digests: TargetDigests) -> bytes:
    circumstances = provenance.BuildDetails(lock=sha256(honest.data["lock.json"]), matrix="0" * 64)
    return provenance.create_statement(honest.lock, target_digests, tuple(Arch), circumstances)


def test_keyless_verification_reports_a_cosign_failure(sample):
    """Keyless signing requires a CI identity and servers of sigstore. A workflow tests it."""
    nowhere = {"HTTPS_PROXY": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    alone = Project(
        sample.consumer.folder, sample.consumer.index_url, sample.consumer.cache, nowhere
    )
    done = alone.run("sign", sample.reference, "--keyless", status=1)
    assert "cosign sign --yes" in done.stderr
    assert "TUF" in done.stderr


def test_verified_statements_match_attachments(sample):
    """The statement about the SBOM that cosign reads is the attached SBOM."""
    arm = sample.target_digests.arch[Arch.ARM64].manifest
    (artifact,) = artifact_store.find_artifacts(
        RegistryClient(), sample.repository, arm, cyclonedx.MEDIA_TYPE
    )
    answer = cosign(
        "verify-attestation", "--key", str(sample.keys / "cosign.pub"), "--insecure-ignore-tlog",
        "--type", "cyclonedx", f"{sample.registry.host}/{NAME}@{arm}",
    )  # fmt: skip
    statement: Any = json.loads(_statement(answer))
    assert statement["predicateType"] == in_toto.CYCLONEDX
    assert statement["predicate"] == json.loads(artifact.files["sbom.cdx.json"].data)
