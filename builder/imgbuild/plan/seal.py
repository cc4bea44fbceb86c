"""The seal: the digests that follow from a lock, `images/TARGET/digests.json`.

Comes in: a lock and the records of its layers. Goes out: a `Seal`, from which the digest of an
image is known before a byte of it is built.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from imgbuild import codec
from imgbuild.errors import LockStale
from imgbuild.lock.lock import Lock, damaged
from imgbuild.oci import documents as oci_documents
from imgbuild.oci.layer import LayerRecord
from imgbuild.plan import documents as image
from imgbuild.plan.plan import Plan, RegistryRecipe, plan
from imgbuild.report import Floors
from imgbuild.values import Arch, Bytes, Digest, digest_of

SEAL_FORMAT = 1


class SealedLayer(msgspec.Struct, frozen=True, kw_only=True):
    """One layer's name, the id of its recipe, and what its bytes are."""

    name: str
    id: Digest
    digest: Digest
    size: Bytes
    diff_id: Digest
    unpacked: Bytes


class SealedImage(msgspec.Struct, frozen=True, kw_only=True):
    """The image on one architecture; `size` is what a pull moves, in bytes.

    `floors` are what it needs of its host, as its files tell; they are the manifest's annotations.
    """

    manifest: Digest
    config: Digest
    size: Bytes
    floors: Floors | None = None
    layers: tuple[SealedLayer, ...]


class Seal(msgspec.Struct, frozen=True, kw_only=True):
    """All digests of a target. `digest` is the index's, or the one manifest's."""

    format: int
    target: str
    digest: Digest
    arch: dict[Arch, SealedImage]


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """The registry documents of one image, as bytes."""

    config: bytes
    manifest: bytes
    layers: tuple[LayerRecord, ...]

    @property
    def size(self) -> int:
        """What a pull moves, in bytes."""
        return sum(layer.size for layer in self.layers) + len(self.config) + len(self.manifest)


def documents(
    planned: Plan, known: Mapping[Digest, LayerRecord], floors: Floors | None = None
) -> Document:
    """Configuration and manifest of a plan whose layers are all in `known` (KeyError otherwise)."""
    layers = tuple(known[layer.id] for layer in planned.layers)
    config = image.config(planned, [layer.diff_id for layer in layers])
    taken = {
        layer.recipe.layer.digest: layer.recipe.layer.media_type
        for layer in planned.layers
        if isinstance(layer.recipe, RegistryRecipe)
    }
    manifest = oci_documents.manifest(
        config, layers, media_types=taken, annotations=needs(floors) if floors else {}
    )
    return Document(config=config, manifest=manifest, layers=layers)


def needs(floors: Floors) -> dict[str, str]:
    """What a manifest says of the host that its image needs; only what is known."""
    said = {
        "cuda": floors.cuda,
        "driver": floors.driver,
        "driver-full": floors.driver_full,
        "gpu": " ".join(floors.gpu),
        "gpu-ptx": " ".join(floors.gpu_ptx),
        "glibc": floors.glibc,
    }
    return {f"dev.imgbuild.needs.{name}": value for name, value in said.items() if value}


def seal(
    lock: Lock,
    known: Mapping[Digest, LayerRecord],
    floors: Mapping[Arch, Floors | None] | None = None,
) -> Seal:
    """The seal of `lock`, given the records of all its layers (KeyError otherwise)."""
    floors = floors or {}
    images: dict[Arch, SealedImage] = {}
    manifests: dict[Arch, bytes] = {}
    for arch in lock.arch:
        planned = plan(lock, arch)
        document = documents(planned, known, floors.get(arch))
        manifests[arch] = document.manifest
        images[arch] = SealedImage(
            manifest=digest_of(document.manifest),
            config=digest_of(document.config),
            size=document.size,
            floors=floors.get(arch),
            layers=tuple(
                SealedLayer(
                    name=layer.name,
                    id=layer.id,
                    digest=record.digest,
                    size=record.size,
                    diff_id=record.diff_id,
                    unpacked=record.unpacked,
                )
                for layer, record in zip(planned.layers, document.layers, strict=True)
            ),
        )
    return Seal(format=SEAL_FORMAT, target=lock.target, digest=top_digest(manifests), arch=images)


def top_digest(manifests: Mapping[Arch, bytes]) -> Digest:
    """The digest that names an image: its one manifest's, or that of the index of several."""
    if len(manifests) == 1:
        return digest_of(next(iter(manifests.values())))
    return digest_of(oci_documents.index(manifests))


def manifests(lock: Lock, sealed: Seal, arches: Iterable[Arch]) -> dict[Arch, bytes]:
    """The manifests of the image of `lock` on `arches`, which follow from its seal."""
    known = sealed_records(sealed)
    return {
        arch: documents(plan(lock, arch), known, sealed.arch[arch].floors).manifest
        for arch in sorted(arches)
    }


def seal_path(images: Path, target: str) -> Path:
    """Where the seal of `target` stands in the folder `images`."""
    return images / target / "digests.json"


def read_seal(images: Path, lock: Lock) -> Seal:
    """Read the seal of `lock`; LockStale if there is none or it is not of this lock.

    A seal is of a lock if every layer id follows from the lock's plan: nothing is built to know it.
    """
    path = seal_path(images, lock.target)
    remedy = f"make it with: imgbuild lock --target {lock.target}"
    if not path.exists():
        message = f"{path}: target {lock.target} is locked but not sealed"
        raise LockStale(message, hint=remedy)
    return read_seal_at(path, lock, hint=remedy)


def read_seal_at(path: Path, lock: Lock, *, hint: str) -> Seal:
    """The seal of `lock` that lies at `path`; LockStale, with `hint`, if it is not of this lock."""
    found = codec.read(path, Seal, what="seal", hint=damaged(lock.target))
    refuse_other(found, lock, str(path), hint=hint)
    return found


def decode_seal(data: bytes, lock: Lock, *, file: str, hint: str) -> Seal:
    """The seal of `lock` that `data`, known as `file`, holds; as `read_seal_at`."""
    found = codec.decode(data, Seal, file=file, what="seal", hint=hint)
    refuse_other(found, lock, file, hint=hint)
    return found


def refuse_other(found: Seal, lock: Lock, file: str, *, hint: str) -> None:
    """LockStale, with `hint`, if the seal in `file` is not of `lock`."""
    known = sealed_records(found)
    try:
        due = seal(lock, known, {arch: item.floors for arch, item in found.arch.items()})
    except KeyError:
        due = None
    if due != found:
        message = f"{file} is not the seal of {lock.target}'s lock"
        raise LockStale(message, hint=hint)


def sealed_records(sealed: Seal) -> dict[Digest, LayerRecord]:
    """Layer id → record, as a seal has them."""
    return {
        layer.id: LayerRecord(
            digest=layer.digest, size=layer.size, diff_id=layer.diff_id, unpacked=layer.unpacked
        )
        for image_ in sealed.arch.values()
        for layer in image_.layers
    }
