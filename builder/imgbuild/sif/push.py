"""Pushes a SIF to the repository of its image, in the format of `apptainer push`.

The artifact refers to the image's manifest. It has a tag, for `apptainer pull oras://`. The same
SIF always results in the same artifact.
"""

from __future__ import annotations

from imgbuild.errors import InputError
from imgbuild.oci.documents import (
    EMPTY_CONFIG,
    MANIFEST,
    TITLE,
    Descriptor,
    create_descriptor,
    create_manifest,
)
from imgbuild.registry.client import RegistryClient, UploadOutcome, bytes_source, file_source
from imgbuild.registry.image_reference import TAG, Repository
from imgbuild.sif.convert import ConvertedImage, PushedSif
from imgbuild.values import Arch, Digest

CONFIG_TYPE = "application/vnd.sylabs.sif.config.v1+json"
LAYER_TYPE = "application/vnd.sylabs.sif.layer.v1.sif"


def find_subject(
    client: RegistryClient, repository: Repository, name: str, image: Digest
) -> Descriptor:
    """Return the descriptor of the manifest `image`.

    Raises InputError if it is missing from `repository`.
    """
    resolved = client.resolve(repository.with_digest(image))
    if resolved is None:
        message = f"{repository} has no image {image}, on which the SIF is based"
        raise InputError(message, hint=f"push the image first: imgbuild push {name} {repository}")
    return resolved


def push_sif(
    client: RegistryClient,
    repository: Repository,
    sif_image: ConvertedImage,
) -> PushedSif:
    """Push the SIF `sif_image` to `repository`, with the tag NAME-ARCH-sif.

    Raises InputError if the image is not in the repository.
    """
    named = repository.tagged(sif_tag(sif_image.name, sif_image.arch))
    if TAG.fullmatch(named.target) is None:
        message = f"{sif_image.name!r} results in an invalid tag: {named.target!r}"
        raise InputError(
            message,
            hint="use a layout whose image name is valid in a tag: letters, digits, _, . and -",
        )
    below = find_subject(client, repository, sif_image.name, sif_image.image)
    document = sif_manifest(sif_image, below)
    client.upload_blob(repository, bytes_source(EMPTY_CONFIG))
    sif = file_source(sif_image.output, sif_image.digest, sif_image.size)
    outcome = client.upload_blob(repository, sif)
    digest = client.put_manifest(repository, document, MANIFEST, tag=named.target)
    moved = sif_image.size if outcome is UploadOutcome.UPLOADED else 0
    return PushedSif(reference=str(named), digest=digest, image=sif_image.image, moved=moved)


def sif_tag(name: str, arch: Arch) -> str:
    """Return the tag for the SIF of the image `name` for `arch`."""
    return f"{name}-{arch}-sif"


def sif_manifest(sif_image: ConvertedImage, image: Descriptor) -> bytes:
    """Return the artifact's manifest in the format of `apptainer push`, with a subject."""
    sif = Descriptor(
        media_type=LAYER_TYPE,
        digest=sif_image.digest,
        size=sif_image.size,
        annotations={TITLE: f"{sif_image.name}.sif"},
    )
    return create_manifest(create_descriptor(CONFIG_TYPE, EMPTY_CONFIG), [sif], subject=image)
