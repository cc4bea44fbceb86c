"""The matrix of the catalogue as JSON, which the wheel has beside `matrix.yaml` (see setup.py)."""

from __future__ import annotations

from pathlib import Path

import msgspec

from imgbuild.matrix.model import Matrix
from imgbuild.values import Sha256, sha256


class CompiledMatrix(msgspec.Struct, frozen=True, kw_only=True):
    """A matrix, and the sha256 of the file that it was read from."""

    sha256: Sha256
    matrix: Matrix


def read(path: Path) -> Matrix | None:
    """The matrix in the JSON file beside `path`; None if it is missing or of another file."""
    try:
        document = msgspec.json.decode(path.with_suffix(".json").read_bytes(), type=CompiledMatrix)
        return document.matrix if document.sha256 == sha256(path.read_bytes()) else None
    except (OSError, msgspec.MsgspecError):
        return None
