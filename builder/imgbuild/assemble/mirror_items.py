"""Describes the inputs of a lock as artifacts in a mirror.

Every file that a build from the lock downloads is a blob whose digest is the SHA-256 in the lock.
An artifact references all blobs, so that the registry does not delete them, and users can list
them. The artifact contains no timestamp and no property of the machine.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator

import msgspec

from imgbuild.cache.store import Store
from imgbuild.lock.lock_file import Lock
from imgbuild.lock.resolution import LockedFile, RegistryLayer
from imgbuild.oci.documents import (
    EMPTY_CONFIG,
    EMPTY_TYPE,
    TITLE,
    Descriptor,
    create_descriptor,
    create_manifest,
)
from imgbuild.values import Arch, Bytes, Digest, Sha256, sha256

ARTIFACT = "application/vnd.imgbuild.inputs.v1+json"
WHEEL_TYPE = "application/zip"
SDIST_TYPE = "application/gzip"
DEB_TYPE = "application/vnd.debian.binary-package"
OTHER_TYPE = "application/octet-stream"
TARGET = "dev.imgbuild.target"
ARCH = "dev.imgbuild.arch"
DIGITS = 12  # of the artifact's digest in the permanent tag


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """A file that a build from a lock reads. With `layer`, the cache stores the file as a blob."""

    file: str
    digest: Digest
    size: Bytes
    media_type: str
    layer: bool = False

    @property
    def sha256(self) -> Sha256:
        """The hash as hexadecimal digits, as in locks and the store."""
        return self.digest.removeprefix("sha256:")

    @property
    def as_locked_file(self) -> LockedFile:
        """The input as a locked file."""
        return LockedFile(file=self.file, size=self.size, sha256=self.sha256)

    def is_in(self, store: Store) -> bool:
        """Return whether the file exists in `store`."""
        path = store.blob(self.digest) if self.layer else store.file(self.sha256)
        return path is not None


def collect_inputs(lock: Lock, arch: Arch) -> tuple[Input, ...]:
    """Return every input of `lock` for `arch`, without duplicates, sorted by name.

    For a wheel built from an sdist, the wheel, the sdist and the build requirements are included. A
    build uses the wheel. The other files are required to build the wheel again.
    """
    by_digest: dict[Digest, Input] = {}
    for item in _iterate_inputs(lock, arch):
        by_digest.setdefault(item.digest, item)
    return tuple(sorted(by_digest.values(), key=lambda item: (item.file, item.digest)))


def inputs_by_hash(lock: Lock) -> dict[Sha256, Input]:
    """Return the inputs of `lock` for all architectures, by hash."""
    return {item.sha256: item for arch in lock.arch for item in collect_inputs(lock, arch)}


def _iterate_inputs(lock: Lock, arch: Arch) -> Iterator[Input]:
    resolution = lock.arch[arch]
    yield from _files(resolution.wheels, WHEEL_TYPE)
    for built in resolution.built:
        yield from _files((built.wheel, *built.requires), WHEEL_TYPE)
        zipped = built.sdist.file.endswith(".zip")
        yield from _files((built.sdist,), WHEEL_TYPE if zipped else SDIST_TYPE)
    yield from _files(resolution.debs, DEB_TYPE)
    if resolution.python:
        yield from _files((resolution.python,), SDIST_TYPE)
    for item in resolution.base_layers:
        yield layer_input(item)
    if lock.extends is not None:
        yield from _files(lock.extends.files.values(), OTHER_TYPE, folder="files")


def missing_inputs(items: Iterable[Input], store: Store) -> list[Input]:
    """Return the `items` that are missing from `store`."""
    return [item for item in items if not item.is_in(store)]


def layer_input(item: RegistryLayer) -> Input:
    """Return the input for a layer of a registry image."""
    return Input(
        file=item.as_locked_file.file,
        digest=item.digest,
        size=item.size,
        media_type=item.media_type,
        layer=True,
    )


def _files(items: Iterable[LockedFile], media_type: str, *, folder: str = "") -> Iterator[Input]:
    for item in items:
        yield Input(
            file=posixpath.join(folder, item.file),
            digest=f"sha256:{item.sha256}",
            size=item.size,
            media_type=media_type,
        )


def artifact_manifest(lock: Lock, arch: Arch) -> bytes:
    """Return the manifest that references every input of `lock` for `arch`."""
    layers = [
        Descriptor(
            media_type=item.media_type,
            digest=item.digest,
            size=item.size,
            annotations={TITLE: item.file},
        )
        for item in collect_inputs(lock, arch)
    ]
    return create_manifest(
        create_descriptor(EMPTY_TYPE, EMPTY_CONFIG),
        layers,
        artifact_type=ARTIFACT,
        annotations={TARGET: lock.target, ARCH: arch.value},
    )


def artifact_tags(lock: Lock, arch: Arch, data: bytes) -> tuple[str, str]:
    """Return the permanent tag of the artifact `data`, and the tag for the latest inputs."""
    moved = latest_tag(lock.target, arch)
    return f"{moved}-{sha256(data)[:DIGITS]}", moved


def latest_tag(target: str, arch: Arch) -> str:
    """Return the tag of a target's latest inputs, which is not the tag TARGET-ARCH of an image."""
    return f"{target}-{arch}-inputs"
