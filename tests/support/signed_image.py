"""Provides a pushed and signed image for two architectures, for tests that tamper with it.

The image is created once for each test file; the registry is reset for each test.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from imgbuild.attest import attachments, bundle
from imgbuild.attest.bundle import LockBundle
from imgbuild.attest.signing import forms, pushed
from imgbuild.attest.signing.keys import PrivateKey
from imgbuild.lock.lock_file import Lock
from imgbuild.oci.documents import Descriptor
from imgbuild.plan.image_digests import TargetDigests
from imgbuild.publish import push
from imgbuild.publish.push_plan import PushPlan
from imgbuild.registry import artifact_store
from imgbuild.registry.artifact_store import ArtifactFile
from imgbuild.registry.client import RegistryClient
from imgbuild.registry.image import RegistrySource
from imgbuild.values import Arch
from imgbuild.verify import expected_lock
from imgbuild.verify.checks import CheckOutcome
from imgbuild.verify.expected_lock import ExpectedLock
from imgbuild.verify.verify import VerifyOptions, verify_image
from tests.support import memory_registry, registry_project
from tests.support.memory_registry import sha256_digest
from tests.support.registry_project import BOTH, NAME, Place

CheckResults = dict[str, tuple[CheckOutcome, str]]
# Checks that a key requires and that are impossible without a lock.
LOCK_CHECKS = frozenset({"provenance", "SBOM CycloneDX", "SBOM SPDX"})


class Sample:
    """The image with its inputs and the key that signed it."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.plan: PushPlan = place.both()
        self.key = PrivateKey(ec.generate_private_key(ec.SECP256R1()))
        self.client = RegistryClient(first_wait=0.001, attempts=2)
        self.repository = place.repository
        push.push_target(place.work(), self.plan)
        attachments.attach_all(
            self.client, self.repository, self.project_lock, place.work().project, tuple(Arch)
        )
        self.unsigned = self.state()
        self.sign(self.key)
        self.signed = self.state()

    @property
    def lock(self) -> Lock:
        return self.plan.lock

    @property
    def target_digests(self) -> TargetDigests:
        return self.plan.target_digests

    @property
    def project_lock(self) -> LockBundle:
        return bundle.create_lock_bundle(self.lock, self.target_digests, self.place.work().project)

    @property
    def top(self) -> Descriptor:
        return attachments.list_subjects(self.lock, self.target_digests, tuple(Arch))[0]

    @property
    def arm(self) -> Descriptor:
        return attachments.list_subjects(self.lock, self.target_digests, tuple(Arch))[1]

    def state(self) -> tuple[dict[Any, Any], ...]:
        registry = self.place.registry
        return dict(registry.manifests), dict(registry.blobs), dict(registry.tags)

    def restore(self, state: tuple[dict[Any, Any], ...]) -> None:
        registry = self.place.registry
        registry.manifests, registry.blobs, registry.tags = (dict(each) for each in state)

    def sign(self, key: PrivateKey) -> None:
        project = self.place.work().project
        pushed.sign_pushed(
            self.client, self.repository, self.project_lock, project, tuple(Arch), key
        )

    def checks(self, tag: str = BOTH, **options: Any) -> CheckResults:
        """The outcome of every check."""
        options.setdefault("key", self.key.public)
        place = RegistrySource(
            RegistryClient(first_wait=0.001, attempts=2), self.place.reference(tag)
        )
        verification = verify_image(place, VerifyOptions(**options))
        outcomes = [check.outcome for check in verification.checks]
        assert verification.ok is (
            CheckOutcome.PASSED in outcomes and CheckOutcome.FAILED not in outcomes
        )
        return {
            " ".join(filter(None, (check.name, check.arch))): (check.outcome, check.detail)
            for check in verification.checks
        }

    def verify(self, **options: Any) -> CheckResults:
        """The checks that did not pass, except checks that require an option."""
        return {
            name: (how, text)
            for name, (how, text) in self.checks(**options).items()
            if how is CheckOutcome.FAILED
            or (how is CheckOutcome.UNCHECKED and name not in ("layer bytes", "rebuild"))
        }

    def failed(self, **options: Any) -> dict[str, str]:
        """The checks that failed, with the reasons."""
        problems = self.verify(**options)
        return {name: text for name, (how, text) in problems.items() if how is CheckOutcome.FAILED}

    def artifacts(self, subject: Descriptor, kind: str) -> list[artifact_store.AttachedArtifact]:
        return artifact_store.find_artifacts(self.client, self.repository, subject.digest, kind)

    def flip(self, subject: Descriptor, kind: str, name: str) -> None:
        """Change a byte of a stored file of an artifact."""
        (artifact,) = self.artifacts(subject, kind)
        self.flip_blob(artifact.files[name].data)

    def flip_blob(self, data: bytes) -> None:
        key = (NAME, sha256_digest(data))
        assert self.place.registry.blobs[key] == data
        middle = len(data) // 2
        flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        self.place.registry.blobs[key] = flipped

    def remove(self, kind: str, *subjects: Descriptor) -> None:
        """Delete the artifacts of a type."""
        for subject in subjects:
            for artifact in self.artifacts(subject, kind):
                self.client.delete(self.repository, artifact.descriptor.digest)

    def replace(self, subject: Descriptor, kind: str, files: Mapping[str, bytes]) -> None:
        """Replace the files of an artifact, as the publisher could."""
        self.remove(kind, subject)
        parts = {name: ArtifactFile(data=data, media_type=kind) for name, data in files.items()}
        artifact_store.attach_artifact(self.client, self.repository, subject, kind, parts)

    def unsign(self, *subjects: Descriptor, kinds: tuple[str, ...]) -> None:
        """Remove the signed statements of the given kinds in both formats."""
        registry = self.place.registry
        for subject in subjects:
            registry.tags.pop(
                (NAME, forms.collection_tag(subject.digest, forms.ATTESTATIONS)), None
            )
            for referrer in self.client.referrers(self.repository, subject.digest, forms.BUNDLE):
                if referrer.annotations["dev.sigstore.bundle.predicateType"] in kinds:
                    self.client.delete(self.repository, referrer.digest)


def project_lock(sample: Sample) -> ExpectedLock:
    """The lock of the project that pushed the image."""
    return expected_lock.lock_of_project(sample.place.work().project, BOTH)


def create_signed_image(folder: Path) -> Iterator[Sample]:
    """A `Sample` below `folder`, for a fixture of a whole file."""
    with pytest.MonkeyPatch.context() as patch:
        for place in registry_project.place(folder, patch):
            yield Sample(place)


def reset_sample(sample: Sample, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Sample:
    """Reset `sample` for one test, and use its project and cache without the user's settings."""
    memory_registry.isolate_logins(monkeypatch, folder)
    monkeypatch.setenv("IMGBUILD_CACHE", str(sample.place.sample.folder.parent / "cache"))
    monkeypatch.delenv("IMGBUILD_CACHE_SIZE", raising=False)
    monkeypatch.chdir(sample.place.sample.folder)
    sample.restore(sample.signed)
    return sample
