"""Stores digests and sizes of layers and wheels in `images/layers.json`.

The keys are layer IDs and the sha256 of wheels. Layers and wheels are immutable, so each is read
only once. Records are only added. Two different records for a key are an error.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import msgspec

from imgbuild import codec
from imgbuild.errors import IntegrityError, LockStale
from imgbuild.oci.layer import LayerRecord
from imgbuild.values import Bytes, Digest, Sha256

RECORDS_FORMAT = 1

Fact = TypeVar("Fact")


class WheelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The number of files and the unpacked size, in bytes, of a wheel with checked contents."""

    file: str
    files: int
    unpacked: Bytes


class RecordedLayers(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `layers.json`."""

    format: int = RECORDS_FORMAT
    layers: dict[Digest, LayerRecord] = {}
    wheels: dict[Sha256, WheelFacts] = {}


def records_path(images: Path) -> Path:
    """Return the path of `layers.json` in the folder `images`."""
    return images / "layers.json"


def read_records(images: Path) -> RecordedLayers:
    """Return the records in the folder `images`, which are empty if the file is missing.

    Raises InputError if the file is damaged, and LockStale if it has a different format.
    """
    path = records_path(images)
    if not path.exists():
        return RecordedLayers()
    records = codec.read_document(
        path,
        RecordedLayers,
        what="list of layers",
        hint="restore the file from git, or delete it and run `imgbuild lock`",
    )
    if records.format != RECORDS_FORMAT:
        message = f"{path}: unsupported format {records.format} (expected {RECORDS_FORMAT})"
        hint = (
            "use the version of imgbuild that wrote the file, or delete it and run `imgbuild lock`"
        )
        raise LockStale(message, hint=hint)
    return records


def merge_records(records: RecordedLayers, others: Iterable[RecordedLayers]) -> RecordedLayers:
    """Merge `others` into `records`.

    Raises IntegrityError if records of a layer or wheel differ.
    """
    layers, wheels = dict(records.layers), dict(records.wheels)
    for other in others:
        _add_facts(layers, other.layers)
        _add_facts(wheels, other.wheels)
    return RecordedLayers(layers=dict(sorted(layers.items())), wheels=dict(sorted(wheels.items())))


def _add_facts(facts: dict[str, Fact], added: dict[str, Fact]) -> None:
    for key, fact in added.items():
        if facts.setdefault(key, fact) != fact:
            message = f"{key} was recorded as {facts[key]}, but is now {fact}"
            hint = "if the bytes of such layers changed, increase the format number in plan/plan.py"
            raise IntegrityError(message, hint=hint)
