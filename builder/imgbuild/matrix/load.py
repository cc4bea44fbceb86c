"""Reads `matrix.yaml`, and reports all problems in one error.

Each problem has the file, line, column, path of the key, value, expected form, and nearest valid
name.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import msgspec

from imgbuild.matrix.check import check_matrix
from imgbuild.matrix.convert import convert_document
from imgbuild.matrix.model import Matrix, PackageIndex
from imgbuild.matrix.yaml_nodes import parse_yaml, read_content
from imgbuild.system import decoding
from imgbuild.system.files import require_readable
from imgbuild.values import Sha256, sha256

AnyMatrix = TypeVar("AnyMatrix", bound=Matrix)


def load_matrix(path: Path) -> Matrix:
    """Read the matrix at `path`. Raises InputError with all problems, in file order."""
    hint = "run imgbuild in the folder of matrix.yaml, or pass the file with --matrix"
    with require_readable(path, hint=hint):
        data = read_content(path)
    return locate_indexes(parse_matrix(data, str(path)), path.resolve().parent)


def locate_indexes(matrix: AnyMatrix, folder: Path) -> AnyMatrix:
    """Return the matrix with absolute paths for indexes in folders, such as `file:wheels`."""
    indexes = {name: _resolve_index(index, folder) for name, index in matrix.indexes.items()}
    return msgspec.structs.replace(matrix, indexes=indexes)


def _resolve_index(index: PackageIndex, folder: Path) -> PackageIndex:
    kind, _, rest = (index.url or "").partition(":")
    if kind != "file" or rest.startswith("/"):
        return index
    path = quote(os.fsencode(os.path.normpath(folder / rest)), safe="/{}")
    return msgspec.structs.replace(index, url=f"file://{path}/")


def parse_matrix(data: bytes, file: str) -> Matrix:
    """Parse a matrix from `data`. Error messages contain the name `file`."""
    return convert_document(parse_yaml(data, file), Matrix, check_matrix)


class _CompiledMatrix(msgspec.Struct, frozen=True, kw_only=True):
    sha256: Sha256
    matrix: Matrix


def load_compiled_matrix(path: Path) -> Matrix | None:
    """Read the catalogue's matrix from the JSON file next to `path`.

    setup.py writes the file, because JSON is parsed faster than YAML. Returns None if the file is
    missing or outdated.
    """
    try:
        document = decoding.decode_json(path.with_suffix(".json").read_bytes(), _CompiledMatrix)
        return document.matrix if document.sha256 == sha256(path.read_bytes()) else None
    except (OSError, msgspec.MsgspecError):
        return None
