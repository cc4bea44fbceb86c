"""Attaches OCI artifacts, such as signatures and SBOMs, to images, and reads them.

Anyone with write access to a repository can attach artifacts. Therefore, callers must check that
the contents describe the image.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from imgbuild import codec
from imgbuild.errors import InputError, IntegrityError
from imgbuild.oci.documents import (
    EMPTY_CONFIG,
    EMPTY_TYPE,
    MANIFEST,
    TITLE,
    Descriptor,
    create_descriptor,
    create_manifest,
)
from imgbuild.registry.client import NotFound, RegistryClient, bytes_source
from imgbuild.registry.image_reference import Repository
from imgbuild.values import Digest, digest_of

LIMIT = 64 << 20  # limit of bytes read in addition to one image


class ArtifactFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file in an artifact."""

    data: bytes
    media_type: str
    annotations: dict[str, str] = {}


class AttachedArtifact(msgspec.Struct, frozen=True, kw_only=True):
    """An artifact that refers to `subject`, with the files of the artifact by name."""

    descriptor: Descriptor
    artifact_type: str
    subject: Digest
    annotations: dict[str, str]
    files: dict[str, ArtifactFile]


class _ArtifactManifest(msgspec.Struct, frozen=True, rename="camel"):
    layers: tuple[Descriptor, ...] = ()
    config: Descriptor | None = None
    artifact_type: str = ""
    subject: Descriptor | None = None
    annotations: dict[str, str] = {}


def artifact_manifest(
    subject: Descriptor,
    artifact_type: str,
    files: Mapping[str, ArtifactFile],
    annotations: Mapping[str, str] | None = None,
) -> bytes:
    """Return the manifest of an artifact with `files` that refers to `subject`."""
    layers = [
        create_descriptor(part.media_type, part.data, {**part.annotations, TITLE: name})
        for name, part in sorted(files.items())
    ]
    return create_manifest(
        create_descriptor(EMPTY_TYPE, EMPTY_CONFIG),
        layers,
        artifact_type=artifact_type,
        subject=subject,
        annotations=annotations,
    )


def attach_artifact(
    client: RegistryClient,
    repository: Repository,
    subject: Descriptor,
    artifact_type: str,
    files: Mapping[str, ArtifactFile],
    annotations: Mapping[str, str] | None = None,
) -> Digest:
    """Attach `files` to `subject`, unless they are attached already.

    Returns the artifact's digest.
    """
    data = artifact_manifest(subject, artifact_type, files, annotations)
    contents = (EMPTY_CONFIG, *(part.data for _, part in sorted(files.items())))
    return put_artifact(client, repository, subject.digest, artifact_type, data, contents)


def put_artifact(
    client: RegistryClient,
    repository: Repository,
    subject: Digest,
    artifact_type: str,
    data: bytes,
    contents: Collection[bytes],
) -> Digest:
    """Upload the manifest `data` and the blobs `contents`, unless they exist and are listed."""
    digest = digest_of(data)
    listed = client.referrers(repository, subject, artifact_type)
    there = any(entry.digest == digest for entry in listed)
    if (
        there
        and client.resolve(repository.with_digest(digest)) is not None
        and has_all_blobs(client, repository, contents)
    ):
        return digest
    for content in contents:
        client.upload_blob(repository, bytes_source(content))
    return client.put_manifest(repository, data, MANIFEST)


def find_artifacts(
    client: RegistryClient,
    repository: Repository,
    subject: Digest,
    artifact_type: str | None = None,
    *,
    skip_damaged: bool = False,
) -> list[AttachedArtifact]:
    """Read the artifacts that refer to `subject`, and their files.

    If `artifact_type` is set, artifacts of other types are omitted. Artifacts that are deleted
    while this function runs are omitted, too. Raises InputError, IntegrityError or NotFound if an
    artifact is damaged or has another subject. With `skip_damaged`, prints a warning instead.
    """
    artifacts = []
    blobs = BlobReader(client, repository)
    for listed in client.referrers(repository, subject, artifact_type):
        try:
            artifact = _read_artifact(blobs, subject, listed, artifact_type)
        except (InputError, IntegrityError, NotFound) as error:
            if not skip_damaged:
                raise
            client.reporter.warn(f"skipped an artifact attached to {subject}: {error.message}")
            continue
        if artifact is not None:
            artifacts.append(artifact)
    return artifacts


class BlobReader:
    """Reads the blobs attached to an image, each once, up to `LIMIT` bytes in total."""

    def __init__(self, client: RegistryClient, repository: Repository) -> None:
        self.client = client
        self.repository = repository
        self._kept: dict[Digest, bytes] = {}
        self._left = LIMIT

    def read(self, layer: Descriptor) -> bytes:
        """Read `layer`. Raises IntegrityError if more than `LIMIT` bytes are read in total."""
        cached = self._kept.get(layer.digest)
        if cached is not None and len(cached) == layer.size:
            return cached
        if layer.size > self._left:
            message = f"more than {LIMIT} bytes are attached to an image of {self.repository}"
            raise IntegrityError(message, hint="remove attachments that do not belong to the image")
        self._left -= layer.size
        self._kept[layer.digest] = self.client.blob(self.repository, layer)
        return self._kept[layer.digest]


def has_all_blobs(
    client: RegistryClient, repository: Repository, contents: Collection[bytes]
) -> bool:
    """Return whether `repository` has all blobs in `contents`."""
    return all(client.has(repository, digest_of(content)) == len(content) for content in contents)


def _read_artifact(
    blobs: BlobReader, subject: Digest, listed: Descriptor, artifact_type: str | None
) -> AttachedArtifact | None:
    """Read a listed artifact. Returns None if it was deleted or has a different type."""
    client, repository = blobs.client, blobs.repository
    try:
        fetched = client.manifest(repository.with_digest(listed.digest))
    except NotFound:
        return None
    place = f"{repository}@{listed.digest}"
    document = codec.decode(fetched.data, _ArtifactManifest, file=place, what="artifact manifest")
    if document.subject is None or document.subject.digest != subject:
        other = document.subject.digest if document.subject else "nothing"
        message = f"{place} is listed as attached to {subject}, but refers to {other}"
        raise IntegrityError(
            message,
            hint="contact the registry's administrator, because the list of referrers is wrong",
        )
    kind = document.artifact_type or (document.config.media_type if document.config else "")
    if artifact_type is not None and kind != artifact_type:
        return None
    return AttachedArtifact(
        descriptor=listed,
        artifact_type=kind,
        subject=subject,
        annotations=document.annotations,
        files={
            layer.annotations.get(TITLE, layer.digest): ArtifactFile(
                data=blobs.read(layer),
                media_type=layer.media_type,
                annotations=layer.annotations,
            )
            for layer in document.layers
        },
    )
