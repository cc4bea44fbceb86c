"""Adds learned constraints to `images/constraints.yaml`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from imgbuild import codec
from imgbuild.cache.store import Store
from imgbuild.matrix.constraints import Constraint, constraints_path, encode, merge, read
from imgbuild.values import sha256


def add_constraints(
    images: Path, learned: Iterable[Constraint], store: Store
) -> tuple[Constraint, ...]:
    """Write `learned` to the file and return all entries. Safe for several processes at once."""
    with store.exclusive(f"constraints-{sha256(str(images).encode())}"):
        entries = merge(read(images), learned)
        codec.write_bytes(constraints_path(images), encode(entries), below=images.parent)
    return entries
