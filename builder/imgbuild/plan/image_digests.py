"""Computes the digests of a target, `images/TARGET/digests.json`, from its lock.

The lock and the records of layers determine the digests, so the digest of an image is known before
the image is built.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from imgbuild import codec
from imgbuild.errors import LockStale
from imgbuild.lock.lock_file import Lock, damaged_lock_remedy
from imgbuild.matrix.fields import Name
from imgbuild.oci import documents as oci_documents
from imgbuild.oci.layer import LayerRecord
from imgbuild.plan import image_documents
from imgbuild.plan.plan import Plan, RegistryRecipe, base_plan, create_plan
from imgbuild.report import Floors
from imgbuild.values import Arch, Bytes, Digest, digest_of

DIGESTS_FORMAT = 1


class LayerDigests(msgspec.Struct, frozen=True, kw_only=True):
    """The name, recipe ID, digests and sizes (in bytes) of a layer."""

    name: Name
    id: Digest
    digest: Digest
    size: Bytes
    diff_id: Digest
    unpacked: Bytes


class ImageDigests(msgspec.Struct, frozen=True, kw_only=True):
    """The digests for one architecture. `size` is the number of bytes that a pull transfers.

    `floors` are the image's requirements for the host, read from files in the image. They become
    annotations of the manifest.
    """

    manifest: Digest
    config: Digest
    size: Bytes
    floors: Floors | None = None
    layers: tuple[LayerDigests, ...]


class TargetDigests(msgspec.Struct, frozen=True, kw_only=True):
    """All digests of a target. `digest` is the digest of the index or of the only manifest."""

    format: int
    target: Name
    digest: Digest
    arch: dict[Arch, ImageDigests]


class ImageDocuments(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration and manifest of an image as bytes, and its layers, bottom layer first."""

    config: bytes
    manifest: bytes
    layers: tuple[LayerRecord, ...]

    @property
    def size(self) -> int:
        """The number of bytes that a pull transfers."""
        return sum(layer.size for layer in self.layers) + len(self.config) + len(self.manifest)


def plan_documents(
    lock: Lock, target_digests: TargetDigests, arches: Iterable[Arch], *, only_base: bool = False
) -> tuple[dict[Arch, Plan], dict[Arch, ImageDocuments]]:
    """Return the plans and documents of `lock`, with only the base layers if `only_base` is set."""
    plans = {arch: create_plan(lock, arch) for arch in arches}
    if only_base:
        plans = {arch: base_plan(planned) for arch, planned in plans.items()}
    records = layer_records(target_digests)
    return plans, {
        arch: create_documents(
            planned, records, None if only_base else target_digests.arch[arch].floors
        )
        for arch, planned in plans.items()
    }


def create_documents(
    planned: Plan, layer_records: Mapping[Digest, LayerRecord], floors: Floors | None = None
) -> ImageDocuments:
    """Return the documents of a plan. `layer_records` maps layer IDs to records.

    Raises KeyError if the record of a layer is missing.
    """
    layers = tuple(layer_records[layer.id] for layer in planned.layers)
    config = image_documents.image_configuration(planned, [layer.diff_id for layer in layers])
    taken = {
        layer.recipe.layer.digest: layer.recipe.layer.media_type
        for layer in planned.layers
        if isinstance(layer.recipe, RegistryRecipe)
    }
    manifest = oci_documents.docker_manifest(
        config, layers, media_types=taken, annotations=floor_annotations(floors) if floors else {}
    )
    return ImageDocuments(config=config, manifest=manifest, layers=layers)


def floor_annotations(floors: Floors) -> dict[str, str]:
    """Convert `floors` to manifest annotations. Unknown values are omitted."""
    values = {
        "cuda": floors.cuda,
        "driver": floors.driver,
        "driver-full": floors.driver_full,
        "gpu": " ".join(floors.gpu),
        "gpu-ptx": " ".join(floors.gpu_ptx),
        "glibc": floors.glibc,
    }
    return {f"dev.imgbuild.needs.{name}": value for name, value in values.items() if value}


def compute_digests(
    lock: Lock,
    layer_records: Mapping[Digest, LayerRecord],
    floors: Mapping[Arch, Floors | None] | None = None,
) -> TargetDigests:
    """Compute the digests of `lock`. `layer_records` maps layer IDs to records.

    Raises KeyError if the record of a layer is missing.
    """
    floors = floors or {}
    images: dict[Arch, ImageDigests] = {}
    manifests: dict[Arch, bytes] = {}
    for arch in lock.arch:
        planned = create_plan(lock, arch)
        document = create_documents(planned, layer_records, floors.get(arch))
        manifests[arch] = document.manifest
        images[arch] = ImageDigests(
            manifest=digest_of(document.manifest),
            config=digest_of(document.config),
            size=document.size,
            floors=floors.get(arch),
            layers=tuple(
                LayerDigests(name=layer.name, id=layer.id, **msgspec.structs.asdict(record))
                for layer, record in zip(planned.layers, document.layers, strict=True)
            ),
        )
    return TargetDigests(
        format=DIGESTS_FORMAT, target=lock.target, digest=top_digest(manifests), arch=images
    )


def top_digest(manifests: Mapping[Arch, bytes]) -> Digest:
    """Return the digest of the only manifest, or of the index of several manifests."""
    if len(manifests) == 1:
        return digest_of(next(iter(manifests.values())))
    return digest_of(oci_documents.create_index(manifests))


def image_manifests(
    lock: Lock, target_digests: TargetDigests, arches: Iterable[Arch]
) -> dict[Arch, bytes]:
    """Return the manifests of the image of `lock` for `arches`, computed from `target_digests`."""
    records = layer_records(target_digests)
    return {
        arch: create_documents(
            create_plan(lock, arch), records, target_digests.arch[arch].floors
        ).manifest
        for arch in sorted(arches)
    }


def digests_path(images: Path, target: str) -> Path:
    """Return the path of a target's `digests.json` in the folder `images`."""
    return images / target / "digests.json"


def read_digests(images: Path, lock: Lock) -> TargetDigests:
    """Read the digests of `lock`. Raises LockStale if they are missing or do not match the lock.

    The digests are compared with the plan of the lock, without building the image.
    """
    path = digests_path(images, lock.target)
    remedy = f"to create the file, run: imgbuild lock {lock.target}"
    if not path.exists():
        message = f"{path} is missing, although {lock.target} has a lock"
        raise LockStale(message, hint=remedy)
    return read_digests_at(path, lock, hint=remedy)


def read_digests_at(path: Path, lock: Lock, *, hint: str) -> TargetDigests:
    """Read the digests at `path`. Raises LockStale with `hint` if they do not match `lock`."""
    target_digests = codec.read_document(
        path, TargetDigests, what="list of digests", hint=damaged_lock_remedy(lock.target)
    )
    refuse_other(target_digests, lock, str(path), hint=hint)
    return target_digests


def decode_digests(data: bytes, lock: Lock, *, file: str, hint: str) -> TargetDigests:
    """Decode the digests in `data`, the content of `file`.

    Raises LockStale with `hint` if they do not match `lock`.
    """
    target_digests = codec.decode(data, TargetDigests, file=file, what="list of digests", hint=hint)
    refuse_other(target_digests, lock, file, hint=hint)
    return target_digests


def refuse_other(target_digests: TargetDigests, lock: Lock, file: str, *, hint: str) -> None:
    """Raise LockStale with `hint` if the digests in `file` do not match `lock`."""
    records = layer_records(target_digests)
    try:
        expected = compute_digests(
            lock, records, {arch: item.floors for arch, item in target_digests.arch.items()}
        )
    except KeyError:
        expected = None
    if expected != target_digests:
        message = f"{file} does not match the lock of {lock.target}"
        raise LockStale(message, hint=hint)


def layer_records(target_digests: TargetDigests) -> dict[Digest, LayerRecord]:
    """Return the records of all layers in `target_digests`, by layer ID."""
    return {
        layer.id: LayerRecord(
            digest=layer.digest, size=layer.size, diff_id=layer.diff_id, unpacked=layer.unpacked
        )
        for image_ in target_digests.arch.values()
        for layer in image_.layers
    }
