"""What an image stands on: Debian packages, or the layers of a registry image.

Comes in: a base of the matrix. Goes out: its part of a resolution on one architecture.
"""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from imgbuild.deb import apt
from imgbuild.errors import IntegrityError
from imgbuild.fetch import Http
from imgbuild.matrix.model import Base, DebianBase
from imgbuild.oci import registry
from imgbuild.resolution import Deb, RegistryLayer
from imgbuild.store import Store
from imgbuild.values import Arch, Digest

ACCOUNTS = ("etc/passwd", "etc/group")  # the image's user is added to these


class Below(msgspec.Struct, frozen=True, kw_only=True):
    """A base on one architecture: the fields of `Resolution` that it gives."""

    debs: tuple[Deb, ...] = ()
    layers: tuple[RegistryLayer, ...] = ()
    manifest: Digest | None = None
    files: dict[str, str] = {}


def resolve_base(base: Base, arch: Arch, store: Store, http: Http) -> Below:
    """`base` on `arch`: the packages of a Debian base, or a registry image's layers and accounts.

    The layers of a registry image are fetched, for its accounts stand in one of them.
    """
    if isinstance(base, DebianBase):
        return Below(debs=apt.resolve_debs(base, arch, store, http))
    image = registry.base(base.image, arch)
    registry.fetch_layers(base.image, image.layers, store)
    blobs = [path for layer in image.layers if (path := store.blob(layer.digest)) is not None]
    return Below(layers=image.layers, manifest=image.manifest, files=accounts(blobs))


def accounts(blobs: Sequence[Path]) -> dict[str, str]:
    """The text of etc/passwd and etc/group in `blobs` (bottom first), as far as they exist."""
    found: dict[str, str | None] = {}
    for blob in reversed(blobs):
        own = _read(blob)
        found = {**own, **found}
        if len(found) == len(ACCOUNTS):
            break
    return {path: text for path, text in sorted(found.items()) if text is not None}


def _read(blob: Path) -> dict[str, str | None]:
    """The accounts in one layer; None for one that the layer removes."""
    found: dict[str, str | None] = {}
    try:
        with tarfile.open(blob, encoding="utf-8") as tar:
            for member in tar:
                path = member.name.removeprefix("./").strip("/")
                folder, _, name = path.rpartition("/")
                if path in ACCOUNTS and member.isreg() and (file := tar.extractfile(member)):
                    found[path] = file.read().decode("utf-8", "surrogateescape")
                elif name.startswith(".wh.") and f"{folder}/{name[4:]}" in ACCOUNTS:
                    found.setdefault(f"{folder}/{name[4:]}", None)
    except (tarfile.TarError, EOFError, OSError) as error:
        message = f"the layer {blob} cannot be read: {error}"
        raise IntegrityError(
            message, hint="remove it from the cache, and run this again"
        ) from error
    return found
