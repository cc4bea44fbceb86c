"""The base of a resolution: a registry image is taken layer by layer, Debian needs nothing here.

Comes in: a resolution of wheels. Goes out: the same with the layers of its registry base, and with
the texts of its user database, to which the image's own user is added.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import msgspec

from imgbuild.errors import IntegrityError
from imgbuild.matrix.model import Base, RegistryBase
from imgbuild.oci import registry
from imgbuild.resolution import Resolution
from imgbuild.store import Store
from imgbuild.values import Arch

USER_FILES = ("etc/passwd", "etc/group")


def with_base(resolution: Resolution, base: Base, arch: Arch, store: Store) -> Resolution:
    """Add what a registry base brings; its layers are then in the store.

    InputError if the image has no such architecture or a layer that cannot be read; IntegrityError
    if it has no user database.
    """
    if not isinstance(base, RegistryBase):
        return resolution
    image = registry.base(base.image, arch)
    registry.fetch_layers(base.image, image.layers, store)
    texts: dict[str, str] = {}
    for layer in image.layers:
        path = store.blob(layer.digest)
        if path is not None:
            texts |= user_files(path, f"{base.image}: layer {layer.digest}")
    missing = [name for name in USER_FILES if name not in texts]
    if missing:
        message = f"{base.image} has no /{missing[0]}, so it cannot have the image's user"
        raise IntegrityError(message, hint="take a base with a shell and a user database")
    return msgspec.structs.replace(
        resolution,
        base_layers=image.layers,
        base_manifest=image.manifest,
        base_files=dict(sorted(texts.items())),
    )


def user_files(blob: Path, label: str) -> dict[str, str]:
    """The texts of etc/passwd and etc/group that the layer at `blob` holds."""
    found = {}
    try:
        with tarfile.open(blob) as layer:
            for member in layer:
                name = member.name.removeprefix("./")
                if name in USER_FILES and (file := layer.extractfile(member)) is not None:
                    found[name] = file.read().decode()
    except (tarfile.TarError, UnicodeDecodeError) as error:
        message = f"{label} cannot be read: {error}"
        raise IntegrityError(message, hint="a gzip or plain layer is needed, not zstd") from error
    return found
