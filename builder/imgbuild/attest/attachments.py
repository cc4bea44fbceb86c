"""Attaches SBOMs, provenance and the lock to a pushed image.

SBOMs are attached to the manifest of their architecture. Provenance and the lock are attached to
the tagged manifest or index, and to each manifest of an index, so that clients can find them by any
of these digests.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from imgbuild.attest import bundle, in_toto, provenance
from imgbuild.attest.bundle import LockBundle
from imgbuild.attest.sbom import cyclonedx, document, spdx
from imgbuild.lock.lock_file import Lock
from imgbuild.matrix.project_paths import Project
from imgbuild.oci.documents import INDEX, MANIFEST, Descriptor, create_descriptor, create_index
from imgbuild.plan import image_digests
from imgbuild.plan.image_digests import TargetDigests
from imgbuild.registry import artifact_store
from imgbuild.registry.artifact_store import ArtifactFile
from imgbuild.registry.client import RegistryClient
from imgbuild.registry.image_reference import Repository
from imgbuild.system.boundary import convert_read_errors
from imgbuild.values import Arch, Digest

PREDICATE = "in-toto.io/predicate-type"  # where other tools look for a statement's type
TARGET = "dev.imgbuild.target"


class PlannedArtifact(msgspec.Struct, frozen=True, kw_only=True):
    """An artifact to attach, with its subject, type and files."""

    subject: Descriptor
    artifact_type: str
    files: dict[str, ArtifactFile]
    annotations: dict[str, str] = {}


def attach_all(
    client: RegistryClient,
    repository: Repository,
    lock_bundle: LockBundle,
    project: Project,
    arches: Collection[Arch],
) -> tuple[Digest, ...]:
    """Attach all artifacts to the image of `lock_bundle`, a lock of `project`, on `arches`.

    Existing attachments are kept. Return the digests of all artifacts.
    """
    statement = _statement(client, repository, lock_bundle, arches, project)
    with client.reporter.step(f"attaching SBOMs, provenance and lock of {lock_bundle.lock.target}"):
        return tuple(
            artifact_store.attach_artifact(
                client,
                repository,
                artifact.subject,
                artifact.artifact_type,
                artifact.files,
                artifact.annotations,
            )
            for artifact in planned_artifacts(lock_bundle, arches, statement)
        )


def planned_artifacts(
    lock_bundle: LockBundle, arches: Collection[Arch], statement: bytes
) -> list[PlannedArtifact]:
    """Return all artifacts for the image of `lock_bundle` on `arches`."""
    lock, target_digests = lock_bundle.lock, lock_bundle.target_digests
    descriptors = list_subjects(lock, target_digests, arches)
    manifests = descriptors if len(descriptors) == 1 else descriptors[1:]
    about = {TARGET: lock.target}
    planned = []
    for arch, subject in zip(sorted(arches), manifests, strict=True):
        for media_type, files in sbom_files(lock_bundle, arch).items():
            named = {**about, "dev.imgbuild.arch": str(arch)}
            planned.append(
                PlannedArtifact(
                    subject=subject, artifact_type=media_type, files=files, annotations=named
                )
            )
    kind = {PREDICATE: in_toto.PROVENANCE}
    provenance_file = ArtifactFile(
        data=statement, media_type=in_toto.PAYLOAD_TYPE, annotations=kind
    )
    for subject in descriptors:
        planned.append(
            PlannedArtifact(
                subject=subject,
                artifact_type=in_toto.PAYLOAD_TYPE,
                files={"provenance.json": provenance_file},
                annotations={**about, **kind},
            )
        )
        planned.append(
            PlannedArtifact(
                subject=subject,
                artifact_type=bundle.ARTIFACT_TYPE,
                files=bundle.bundle_files(lock_bundle),
                annotations=about,
            )
        )
    return planned


def sbom_files(lock_bundle: LockBundle, arch: Arch) -> Mapping[str, dict[str, ArtifactFile]]:
    """Return the SBOMs for `arch` by media type."""
    with convert_read_errors(
        f"the package list of {lock_bundle.lock.target}", hint=bundle.OTHER_REMEDY
    ):
        sbom = document.create_sbom(
            lock_bundle.lock, lock_bundle.target_digests, arch, lock_bundle.packages
        )
    documents = {
        cyclonedx.MEDIA_TYPE: ("sbom.cdx.json", cyclonedx.cyclonedx_document(sbom)),
        spdx.MEDIA_TYPE: ("sbom.spdx.json", spdx.spdx_document(sbom)),
    }
    return {
        media_type: {name: ArtifactFile(data=data, media_type=media_type)}
        for media_type, (name, data) in documents.items()
    }


def list_subjects(
    lock: Lock, target_digests: TargetDigests, arches: Collection[Arch]
) -> list[Descriptor]:
    """Return the tagged manifest, or the tagged index and each of its manifests."""
    manifests = image_digests.image_manifests(lock, target_digests, arches)
    each = [create_descriptor(MANIFEST, data) for data in manifests.values()]
    if len(each) == 1:
        return each
    return [create_descriptor(INDEX, create_index(manifests)), *each]


def _statement(
    client: RegistryClient,
    repository: Repository,
    lock_bundle: LockBundle,
    arches: Collection[Arch],
    project: Project,
) -> bytes:
    """Return an equivalent provenance that is already attached, or else a new statement.

    Thus, no provenance is added if the same image is pushed from another CI run or commit. Attached
    statements are never signed, because anyone can attach them.
    """
    lock, target_digests = lock_bundle.lock, lock_bundle.target_digests
    details = provenance.build_details(project, lock.target)
    statement = provenance.create_statement(lock, target_digests, sorted(arches), details)
    top = list_subjects(lock, target_digests, arches)[0]
    for attached in artifact_store.find_artifacts(
        client, repository, top.digest, in_toto.PAYLOAD_TYPE, skip_damaged=True
    ):
        for part in attached.files.values():
            if provenance.comparable_fields(part.data) == provenance.comparable_fields(statement):
                return part.data
    return statement
