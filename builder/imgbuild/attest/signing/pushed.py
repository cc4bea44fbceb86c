"""Signs the digest, provenance and SBOMs of a pushed image.

Signatures are attached to the index and to each manifest, so that a single architecture can be
verified. Statements are created from the lock. Statements in the registry are never signed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

import msgspec

from imgbuild.attest import attachments, in_toto, provenance
from imgbuild.attest.bundle import LockBundle
from imgbuild.attest.sbom import cyclonedx, spdx
from imgbuild.attest.signing import signer, statements, stored
from imgbuild.attest.signing.keys import PrivateKey
from imgbuild.attest.signing.signer import SignedSubject
from imgbuild.matrix.project_paths import Project
from imgbuild.oci.documents import Descriptor
from imgbuild.registry.client import RegistryClient
from imgbuild.registry.image_reference import Repository
from imgbuild.values import Arch, Digest

SignFunction = Callable[[Descriptor, Sequence[bytes]], SignedSubject]
PREDICATES = {cyclonedx.MEDIA_TYPE: in_toto.CYCLONEDX, spdx.MEDIA_TYPE: in_toto.SPDX}


def sign_pushed(
    client: RegistryClient,
    repository: Repository,
    lock_bundle: LockBundle,
    project: Project,
    arches: Collection[Arch],
    key: PrivateKey,
) -> tuple[SignedSubject, ...]:
    """Sign the pushed image of `lock_bundle`, a lock of `project`, on `arches`."""
    circumstances = provenance.build_details(project, lock_bundle.lock.target)
    statement = provenance.create_statement(
        lock_bundle.lock, lock_bundle.target_digests, sorted(arches), circumstances
    )
    with client.reporter.step(f"signing {lock_bundle.lock.target}"):
        return sign_image(client, repository, lock_bundle, arches, statement, key)


def sign_image(
    client: RegistryClient,
    repository: Repository,
    lock_bundle: LockBundle,
    arches: Collection[Arch],
    statement: bytes,
    key: PrivateKey,
) -> tuple[SignedSubject, ...]:
    """Sign the image of `lock_bundle` on `arches`, the SBOMs, and the provenance `statement`.

    If `key` has already signed an equivalent provenance, this provenance is used instead of
    `statement`.
    """
    sign = partial(signer.sign_subject, client, repository, key=key)

    def _sign_subject(subject: Descriptor, payloads: Sequence[bytes]) -> SignedSubject:
        signed_statement = _signed_provenance(client, repository, subject.digest, statement, key)
        return sign(subject, payloads=[signed_statement or statement, *payloads])

    return sign_manifests(lock_bundle, arches, (), _sign_subject)


def sign_manifests(
    lock_bundle: LockBundle,
    arches: Collection[Arch],
    provenances: Sequence[bytes],
    sign: SignFunction,
) -> tuple[SignedSubject, ...]:
    """Call `sign` for the index and for each manifest, with the statements about it."""
    subjects = attachments.list_subjects(lock_bundle.lock, lock_bundle.target_digests, arches)
    manifests = dict(
        zip(
            (descriptor.digest for descriptor in subjects[-len(arches) :]),
            sorted(arches),
            strict=True,
        )
    )
    return tuple(
        sign(
            subject,
            [
                *provenances,
                *(
                    sbom_statements(lock_bundle, manifests[subject.digest])
                    if subject.digest in manifests
                    else ()
                ),
            ],
        )
        for subject in subjects
    )


def sbom_statements(lock_bundle: LockBundle, arch: Arch) -> tuple[bytes, ...]:
    """Return statements about the manifest for `arch` with the SBOMs of `lock_bundle`."""
    digest = lock_bundle.target_digests.arch[arch].manifest
    return tuple(
        statements.create_statement(
            [digest], PREDICATES[media_type], msgspec.json.decode(part.data)
        )
        for media_type, files in attachments.sbom_files(lock_bundle, arch).items()
        for part in files.values()
    )


def _signed_provenance(
    client: RegistryClient,
    repository: Repository,
    digest: Digest,
    statement: bytes,
    key: PrivateKey,
) -> bytes | None:
    """Return an attached provenance that `key` signed and that is equivalent to `statement`.

    Return None if the image has no such provenance.
    """
    for each in stored.read_signatures(client, repository, digest).signatures:
        about = each.kind == in_toto.PROVENANCE and digest in each.digests
        same = about and provenance.comparable_fields(each.payload) == provenance.comparable_fields(
            statement
        )
        if same and each.by(key.public):
            return each.payload
    return None
