"""What is attached to a pushed image: SBOMs, provenance, and the lock itself.

SBOMs of an architecture refer to its manifest; provenance and lock refer to what the tag names and
to each manifest, so that they are found from either digest.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from imgbuild.attest import bundle, in_toto, provenance
from imgbuild.attest.bundle import LockBundle
from imgbuild.attest.sbom import cyclonedx, document, spdx
from imgbuild.lock.lock import Lock
from imgbuild.oci import documents as oci_documents
from imgbuild.oci.documents import INDEX, MANIFEST, Descriptor
from imgbuild.plan import seal
from imgbuild.plan.seal import Seal
from imgbuild.project import Project
from imgbuild.registry import artifacts as attach
from imgbuild.registry.artifacts import ArtifactFile
from imgbuild.registry.client import Client
from imgbuild.registry.reference import Repository
from imgbuild.system.boundary import reading
from imgbuild.values import Arch, Digest

PREDICATE = "in-toto.io/predicate-type"  # where others look for the kind of a statement
TARGET = "dev.imgbuild.target"


class PlannedArtifact(msgspec.Struct, frozen=True, kw_only=True):
    """An artifact to attach: the image it refers to, its type and its files."""

    subject: Descriptor
    artifact_type: str
    files: dict[str, ArtifactFile]
    annotations: dict[str, str] = {}


def attach_all(
    client: Client,
    repository: Repository,
    own: LockBundle,
    project: Project,
    arches: Collection[Arch],
) -> tuple[Digest, ...]:
    """Attach everything to the image of `own`, a lock of `project`, on `arches`.

    Existing attachments are kept. Returns the digests of all artifacts.
    """
    statement = _statement(client, repository, own, arches, project)
    with client.reporter.step(f"attaching SBOMs, provenance and lock of {own.lock.target}"):
        return tuple(
            attach.attach(
                client, repository, due.subject, due.artifact_type, due.files, due.annotations
            )
            for due in artifacts(own, arches, statement)
        )


def artifacts(own: LockBundle, arches: Collection[Arch], statement: bytes) -> list[PlannedArtifact]:
    """Everything that is attached to the image of `own` on `arches`."""
    lock, sealed = own.lock, own.sealed
    found = subjects(lock, sealed, arches)
    manifests = found if len(found) == 1 else found[1:]
    about = {TARGET: lock.target}
    due = []
    for arch, subject in zip(sorted(arches), manifests, strict=True):
        for media_type, files in sboms(own, arch).items():
            named = {**about, "dev.imgbuild.arch": str(arch)}
            due.append(
                PlannedArtifact(
                    subject=subject, artifact_type=media_type, files=files, annotations=named
                )
            )
    kind = {PREDICATE: in_toto.PROVENANCE}
    said = ArtifactFile(data=statement, media_type=in_toto.PAYLOAD_TYPE, annotations=kind)
    for subject in found:
        due.append(
            PlannedArtifact(
                subject=subject,
                artifact_type=in_toto.PAYLOAD_TYPE,
                files={"provenance.json": said},
                annotations={**about, **kind},
            )
        )
        due.append(
            PlannedArtifact(
                subject=subject,
                artifact_type=bundle.ARTIFACT_TYPE,
                files=bundle.parts(own),
                annotations=about,
            )
        )
    return due


def sboms(own: LockBundle, arch: Arch) -> Mapping[str, dict[str, ArtifactFile]]:
    """The SBOMs on `arch`, by media type."""
    with reading(f"the list of packages of {own.lock.target}", hint=bundle.OTHER):
        made = document.sbom(own.lock, own.sealed, arch, own.packages)
    documents = {
        cyclonedx.MEDIA_TYPE: ("sbom.cdx.json", cyclonedx.document(made)),
        spdx.MEDIA_TYPE: ("sbom.spdx.json", spdx.document(made)),
    }
    return {
        media_type: {name: ArtifactFile(data=data, media_type=media_type)}
        for media_type, (name, data) in documents.items()
    }


def subjects(lock: Lock, sealed: Seal, arches: Collection[Arch]) -> list[Descriptor]:
    """What the tag names, and below an index each manifest, in the order of architectures."""
    manifests = seal.manifests(lock, sealed, arches)
    each = [oci_documents.descriptor(MANIFEST, data) for data in manifests.values()]
    if len(each) == 1:
        return each
    return [oci_documents.descriptor(INDEX, oci_documents.index(manifests)), *each]


def _statement(
    client: Client,
    repository: Repository,
    own: LockBundle,
    arches: Collection[Arch],
    project: Project,
) -> bytes:
    """The provenance to attach: an attached one with the same `basis`, else a new one.

    Another run or commit that pushes the same image adds no provenance. An attached statement may
    be from anyone, so it is never signed: see `signing`.
    """
    lock, sealed = own.lock, own.sealed
    found = provenance.circumstances(project, lock.target)
    made = provenance.statement(lock, sealed, sorted(arches), found)
    top = subjects(lock, sealed, arches)[0]
    for known in attach.find(
        client, repository, top.digest, in_toto.PAYLOAD_TYPE, skip_damaged=True
    ):
        for part in known.files.values():
            if provenance.basis(part.data) == provenance.basis(made):
                return part.data
    return made
