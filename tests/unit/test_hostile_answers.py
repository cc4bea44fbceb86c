"""Tests changed responses of registries and advisory servers."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from imgbuild.attest import in_toto
from imgbuild.attest.signing import forms, statements, stored
from imgbuild.attest.signing.keys import PrivateKey
from imgbuild.cves import scanner_report
from imgbuild.oci.documents import MANIFEST, Descriptor
from imgbuild.oci.image import list_manifests
from imgbuild.registry import artifact_store
from imgbuild.registry.artifact_store import ArtifactFile
from imgbuild.registry.client import RegistryClient, bytes_source
from imgbuild.registry.image import RegistrySource
from imgbuild.registry.image_reference import Repository
from imgbuild.verify.verify import VerifyOptions, verify_image
from tests.support import advisories, hostile, memory_registry, scanner_reports
from tests.support.memory_registry import Fault, Registry, sha256_digest

pytestmark = pytest.mark.timeout(3600 if hostile.LONG else 60)
SIGNING = Path(__file__).parents[1] / "data/signing"
NAME, TAG, KIND = "me/image", "tiny", "application/vnd.example.words+json"
PARTS = ("tags", "referrers", "artifact", "bundle", "collection", "manifest")


class Served:
    """A registry in this process with a signed image and an attachment."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.repository: Repository = registry.repository(NAME)
        self.changed = ""  # the digest of a manifest that was changed
        self.client = RegistryClient(first_wait=0.001, attempts=1)
        config = b'{"architecture": "amd64", "os": "linux", "rootfs": {"diff_ids": []}}'
        self.client.upload_blob(self.repository, bytes_source(config))
        self.manifest = {
            "schemaVersion": 2, "mediaType": MANIFEST, "layers": [],
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json",
                       "digest": sha256_digest(config), "size": len(config)},
        }  # fmt: skip
        data = json.dumps(self.manifest).encode()
        digest = self.client.put_manifest(self.repository, data, MANIFEST, tag=TAG)
        self.subject = Descriptor(media_type=MANIFEST, digest=digest, size=len(data))
        files = {"a.json": ArtifactFile(data=b'{"a": 1}', media_type=KIND)}
        artifact_store.attach_artifact(
            self.client, self.repository, self.subject, KIND, files, {"b": "c"}
        )
        key = PrivateKey(ec.generate_private_key(ec.SECP256R1()))
        envelope = statements.sign_statement(forms.about_image(digest), key)
        self.bundle = forms.create_bundle(envelope, key.public.hint)
        kind = in_toto.SIGNATURE
        stored.put_bundle(self.client, self.repository, self.subject, self.bundle, kind)
        claim = (SIGNING / "claim.json").read_bytes()
        self.client.upload_blob(self.repository, bytes_source(claim))

    def seed(self, part: str) -> bytes:
        """The registry's response for `part`."""
        if part == "tags":
            return json.dumps({"name": NAME, "tags": ["a", "b"]}).encode()
        if part == "referrers":
            return self._listed(Descriptor(media_type=MANIFEST, digest=sha256_digest(b""), size=5))
        if part == "bundle":
            return self.bundle
        if part == "manifest":
            return json.dumps(self.manifest).encode()
        if part == "collection":
            return (SIGNING / "collection.json").read_bytes()
        files = {"a.json": ArtifactFile(data=b'{"a": 1}', media_type=KIND)}
        return artifact_store.artifact_manifest(self.subject, KIND, files, {"b": "c"})

    def read(self, part: str, data: bytes) -> None:
        """Read the image, or its attachments, with `data` as the response for `part`."""
        self.registry.faults.clear()
        self.registry.manifests.pop((NAME, self.changed), None)
        if part == "tags":
            self._respond("/tags/list", data)
            assert all(isinstance(tag, str) for tag in self.client.tags(self.repository))
            return
        if part in ("manifest", "collection"):
            self._respond("/referrers/", self._listed())
        if part == "manifest":
            self._put(data, TAG)
            place = RegistrySource(self.client, self.repository.tagged(TAG))
            list_manifests(place)
            verify_image(place, VerifyOptions())
            return
        if part == "referrers":
            self._respond("/referrers/", data)
        elif part == "collection":
            self._put(data, forms.collection_tag(self.subject.digest, forms.SIGNATURES))
        else:
            self._respond("/referrers/", self._listed(self._attached(part, data)))
        stored.read_signatures(self.client, self.repository, self.subject.digest)
        artifact_store.find_artifacts(self.client, self.repository, self.subject.digest)

    def _attached(self, part: str, data: bytes) -> Descriptor:
        """An attachment with the manifest `data`, or with `data` as its bundle."""
        if part == "bundle":
            self.registry.blobs[NAME, sha256_digest(data)] = data
            data = forms.bundle_manifest(self.subject, data, in_toto.SIGNATURE)
        return Descriptor(media_type=MANIFEST, digest=self._put(data), size=len(data))

    def _put(self, data: bytes, tag: str = "") -> str:
        self.changed = sha256_digest(data)
        self.registry.manifests[NAME, self.changed] = (data, MANIFEST)
        if tag:
            self.registry.tags[NAME, tag] = self.changed
        return self.changed

    def _respond(self, where: str, data: bytes) -> None:
        headers = {"Content-Type": "application/json"}
        self.registry.faults.append(Fault(where, times=99, status=200, headers=headers, body=data))

    def _listed(self, *descriptors: Descriptor) -> bytes:
        entries = [
            {
                "mediaType": descriptor.media_type,
                "digest": descriptor.digest,
                "size": descriptor.size,
            }
            for descriptor in descriptors
        ]
        return json.dumps({"schemaVersion": 2, "manifests": entries}).encode()


@pytest.fixture(name="served")
def _served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[], Served]]:
    """A registry for each process, because the threads of a server do not survive a fork."""
    memory_registry.isolate_logins(monkeypatch, tmp_path)
    servers: dict[int, Served] = {}
    with contextlib.ExitStack() as stack:

        def _server() -> Served:
            number = os.getpid()
            if number not in servers:
                servers[number] = Served(stack.enter_context(memory_registry.serve(Registry())))
            return servers[number]

        yield _server


@pytest.mark.parametrize("part", PARTS)
def test_changed_registry_responses_are_accepted_or_refused(served, part):
    seed = served().seed(part)
    hostile.attack_reader(seed, lambda data: served().read(part, data), document=True)


@pytest.mark.parametrize("scanner", scanner_reports.REPORTS)
def test_changed_reports_of_scanners_are_read_or_refused(tmp_path, scanner):
    path = tmp_path / "report.json"
    packages = [
        advisories.pypi("torch", "2.5.1"),
        advisories.debian("openssl", advisories.OLD_VERSION),
    ]

    def read(data: bytes) -> Any:
        path.write_bytes(data)
        return scanner_report.find_advisories(path, packages)

    hostile.attack_reader(scanner_reports.REPORTS[scanner], read, document=True)


def test_a_signature_that_is_not_ascii_is_listed_as_damaged(served):
    server = served()
    changed = json.loads(server.seed("collection"))
    changed["layers"][0]["annotations"][forms.SIGNATURE_NOTE] = "ß"
    server.read("collection", json.dumps(changed).encode())
    (damage,) = stored.read_signatures(
        server.client, server.repository, server.subject.digest
    ).damaged
    assert damage.endswith("the signature is not base64")
