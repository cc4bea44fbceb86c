"""Creates a small published target on disk, and a user's repository that extends it.

Lock and digests are real. The records of layers are invented, because no test reads the layers.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from imgbuild import codec
from imgbuild.lock import published as extend
from imgbuild.lock.lock_file import Lock
from imgbuild.lock.published import ExtendedMatrix
from imgbuild.lock.resolution import Deb, Resolution, Wheel
from imgbuild.matrix.model import DroppedFiles
from imgbuild.oci.layer import LayerRecord
from imgbuild.plan import image_digests
from imgbuild.plan.plan import Plan, create_plan
from imgbuild.values import Arch, Digest, sha256
from tests.support import samples

OWN_TARGET = "ours"
ROW = """\
version: 1
published:
  small:
    lock: published/small
    from: ../project
targets:
  ours:
    extends: small
    summary: our image
    as_of: 2025-07-01
"""
MATRIX = (
    ROW
    + """\
    pins: {wandb: "0.20.1"}
    requires:
      einops: {spec: ">=0.8", reason: our models use it}
    packages: [rsync]
    files:
      /opt/team/train.sh: {from: train.sh, mode: "0755"}
    links:
      /opt/team/start: {to: train.sh, reason: the old name}
    env:
      WANDB_MODE: {value: offline, reason: nodes have no network}
    labels: {org.example.team: rl}
"""
)
SCRIPT = b"#!/bin/sh\necho training\n"
DROP = DroppedFiles(
    package="numpy", paths=("bin/f2py",), reason="another one ships it too", beside="wandb"
)


def published_lock(*wheels: Wheel) -> Lock:
    """The lock of the sample target with `wheels`; a file is dropped because of wandb."""
    sample_lock = samples.lock(samples.wheel("numpy", "2.2.6", 5000), *wheels)
    return msgspec.structs.replace(sample_lock, drop=(DROP,))


def invented_records(planned: Iterable[Plan]) -> dict[Digest, LayerRecord]:
    """A record for each layer, derived from the layer's ID."""
    return {
        layer.id: LayerRecord(
            digest=f"sha256:{sha256(layer.id.encode())}",
            size=100,
            diff_id=f"sha256:{sha256(layer.id.encode() + b'tar')}",
            unpacked=200,
        )
        for each in planned
        for layer in each.layers
    }


def publish_target(folder: Path, lock: Lock) -> None:
    """Write lock and digests of a target into `folder`."""
    target_digests = image_digests.compute_digests(
        lock, invented_records(create_plan(lock, arch) for arch in lock.arch)
    )
    codec.write_document(folder / extend.LOCK, lock)
    codec.write_document(folder / extend.DIGESTS_FILE, target_digests)


def create_repository(folder: Path, text: str = MATRIX, lock: Lock | None = None) -> Path:
    """Create a user's repository, and return the path of its matrix."""
    publish_target(folder / "published/small", lock or published_lock())
    (folder / "train.sh").write_bytes(SCRIPT)
    (folder / "matrix.yaml").write_text(text, encoding="utf-8")
    return folder / "matrix.yaml"


def read_extended(path: Path) -> ExtendedMatrix:
    """The matrix at `path`, which must extend a published target."""
    matrix = extend.load_matrix(path)
    assert isinstance(matrix, ExtendedMatrix)
    return matrix


def published_target(matrix: ExtendedMatrix) -> extend.PublishedTarget:
    """The published target that OWN extends."""
    return matrix.overlays[OWN_TARGET].published


def resolve_additions(
    matrix: ExtendedMatrix, *more: Wheel, debs: Iterable[Deb] = ()
) -> dict[Arch, Resolution]:
    """A resolution of the published packages and `more`."""
    old = published_target(matrix).lock.arch[Arch.X86_64]
    added = (samples.wheel("wandb", "0.20.1", 5000), samples.wheel("einops", "0.8.1"), *more)
    chosen = (*old.debs, *(debs or (samples.deb("rsync"), samples.deb("libpopt0"))))
    return {
        Arch.X86_64: msgspec.structs.replace(
            old,
            wheels=tuple(sorted((*old.wheels, *added), key=lambda item: item.package)),
            debs=tuple(sorted(chosen, key=lambda item: item.package)),
        )
    }
