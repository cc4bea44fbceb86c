"""A SIF in a registry, beside the image that it was made of: an artifact as Apptainer's own are.

Comes in: a SIF and a repository that has its image. Goes out: an artifact that refers to the
image's manifest, under a tag; `apptainer pull oras://` takes it. The same SIF is the same artifact.
"""

from __future__ import annotations

from imgbuild import codec
from imgbuild.errors import InputError
from imgbuild.oci.documents import MANIFEST, Descriptor
from imgbuild.registry.client import Client, Outcome, bytes_source, file_source
from imgbuild.registry.reference import TAG, Reference, Repository
from imgbuild.sif.convert import Made, Pushed
from imgbuild.system.console import console
from imgbuild.values import Arch, Digest

CONFIG_TYPE = "application/vnd.sylabs.sif.config.v1+json"
LAYER_TYPE = "application/vnd.sylabs.sif.layer.v1.sif"
TITLE = "org.opencontainers.image.title"
EMPTY = b"{}"


def subject(client: Client, repository: Repository, name: str, image: Digest) -> Descriptor:
    """The manifest `image` in `repository`; InputError if it is not there."""
    found = client.resolve(Reference(repository.host, repository.name, digest=image))
    if found is None:
        message = f"{repository} does not have the image {image}, beside which the SIF is to lie"
        raise InputError(message, hint=f"push it first: imgbuild push {name} {repository}")
    return found


def push(client: Client, repository: Repository, made: Made) -> Pushed:
    """Put the SIF `made` into `repository`, under the tag NAME-ARCH-sif.

    InputError if the image that it was made of is not there.
    """
    named = Reference(repository.host, repository.name, tag=tag(made.name, made.arch))
    if TAG.fullmatch(named.target) is None:
        message = f"{made.name!r} makes no tag: {named.target!r}"
        raise InputError(message, hint="name a layout whose image has a plain name")
    config = bytes_source(EMPTY)
    below = subject(client, repository, made.name, made.image)
    document = manifest(made, config.digest, below)
    client.upload(repository, config)
    sif = file_source(made.output, made.digest, made.size)
    with console.progress(f"pushing {made.output.name}", made.size) as bar:
        outcome = client.upload(repository, sif, advance=bar.advance)
    digest = client.put_manifest(repository, document, MANIFEST, tag=named.target)
    moved = made.size if outcome is Outcome.UPLOADED else 0
    return Pushed(reference=str(named), digest=digest, image=made.image, moved=moved)


def tag(name: str, arch: Arch) -> str:
    """What the SIF of the image `name` for `arch` is called beside it."""
    return f"{name}-{arch}-sif"


def manifest(made: Made, config: Digest, image: Descriptor) -> bytes:
    """The artifact's manifest: `apptainer push` writes the same, but for the subject."""
    return codec.compact(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"mediaType": CONFIG_TYPE, "digest": config, "size": len(EMPTY)},
            "layers": [
                {
                    "mediaType": LAYER_TYPE,
                    "digest": made.digest,
                    "size": made.size,
                    "annotations": {TITLE: f"{made.name}.sif"},
                }
            ],
            "subject": {
                "mediaType": image.media_type,
                "digest": image.digest,
                "size": image.size,
            },
        }
    )
