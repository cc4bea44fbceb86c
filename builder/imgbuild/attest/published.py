"""Reads the lock attached to an image in a registry."""

from __future__ import annotations

from imgbuild.attest import attachments, bundle
from imgbuild.errors import ImgbuildError
from imgbuild.registry import artifact_store
from imgbuild.registry.client import RegistryClient
from imgbuild.registry.image_reference import Repository
from imgbuild.values import Arch, Digest


def download_attached_lock(
    client: RegistryClient, repository: Repository, image: Digest, arch: Arch
) -> bytes:
    """Return the lock.json attached to the manifest `image` for `arch`, or b"".

    A lock is used only if it matches this manifest, because anyone can attach files.
    """
    artifacts = artifact_store.find_artifacts(
        client, repository, image, bundle.ARTIFACT_TYPE, skip_damaged=True
    )
    for artifact in sorted(artifacts, key=lambda each: each.descriptor.digest):
        place = f"{repository}@{artifact.descriptor.digest}"
        try:
            lock_bundle = bundle.read_lock_bundle(
                {name: part.data for name, part in artifact.files.items()}, place
            )
        except ImgbuildError as error:
            client.reporter.warn(f"ignored the lock attached to {image}: {error.message}")
            continue
        if arch in lock_bundle.target_digests.arch:
            [given] = attachments.list_subjects(
                lock_bundle.lock, lock_bundle.target_digests, [arch]
            )
            if given.digest == image:
                return lock_bundle.data[bundle.LOCK]
        client.reporter.warn(
            f"ignored the lock attached to {image}: {place} belongs to another image"
        )
    return b""
