"""What is known of layers and wheels: `images/layers.json`, so that each is read once.

A layer's record is found by its id, a wheel's by its sha256. Both are facts about immutable files:
records are only ever added, and two that disagree are an error of the tool.
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
    """A wheel whose contents (CRC, sizes, names) were checked: its members and their bytes."""

    file: str
    files: int
    unpacked: Bytes


class Records(msgspec.Struct, frozen=True, kw_only=True):
    """The whole of `layers.json`."""

    format: int = RECORDS_FORMAT
    layers: dict[Digest, LayerRecord] = {}
    wheels: dict[Sha256, WheelFacts] = {}


def records_path(images: Path) -> Path:
    """Where the records stand in the folder `images`."""
    return images / "layers.json"


def read_records(images: Path) -> Records:
    """The records of the folder `images`; empty ones if there are none yet."""
    path = records_path(images)
    if not path.exists():
        return Records()
    records = codec.read(
        path,
        Records,
        what="list of layers",
        hint="restore it from git, or delete it and lock again",
    )
    if records.format != RECORDS_FORMAT:
        message = f"{path}: format {records.format}; this imgbuild reads {RECORDS_FORMAT}"
        raise LockStale(message, hint="use the imgbuild that wrote it, or delete it and lock again")
    return records


def merge(records: Records, others: Iterable[Records]) -> Records:
    """All of them together; IntegrityError where two disagree about a layer or a wheel."""
    layers, wheels = dict(records.layers), dict(records.wheels)
    for other in others:
        _add(layers, other.layers)
        _add(wheels, other.wheels)
    return Records(layers=dict(sorted(layers.items())), wheels=dict(sorted(wheels.items())))


def _add(known: dict[str, Fact], added: dict[str, Fact]) -> None:
    for key, fact in added.items():
        if known.setdefault(key, fact) != fact:
            message = f"{key} was recorded as {known[key]} and is now {fact}"
            raise IntegrityError(message, hint="raise the layer format if its bytes changed")
