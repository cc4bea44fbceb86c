"""An index in a folder, for tests without a server: a folder for each package with its files."""

from __future__ import annotations

from pathlib import Path

import msgspec

from imgbuild import project_paths
from imgbuild.lock.published import load
from imgbuild.matrix.model import Matrix, PackageIndex
from tests.support.local_index import LocalIndex

ARM = "cp311-cp311-manylinux_2_17_aarch64"
OLD_PYTHON = "cp310-cp310-manylinux_2_17_x86_64"


def write(index: LocalIndex, folder: Path) -> str:
    """Write the files of `index` below `folder`; the address of the index."""
    for item in index.published:
        path = folder / item.package / item.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(item.data)
    folder.mkdir(exist_ok=True)
    return f"file://{folder}"


def catalogue_with(index: LocalIndex, folder: Path) -> Matrix:
    """The catalogue's matrix, whose default index is `index`, written to `folder`."""
    matrix = load(project_paths.catalogue().matrix)
    place = PackageIndex(url=write(index, folder), upload_times="none")
    return msgspec.structs.replace(matrix, indexes={**matrix.indexes, matrix.default_index: place})
