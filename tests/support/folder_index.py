"""Writes an index to a folder, for tests without a server."""

from __future__ import annotations

import functools
from pathlib import Path

import msgspec
import pytest

from imgbuild.lock.published import load_matrix
from imgbuild.matrix import project_paths
from imgbuild.matrix.model import Matrix, PackageIndex
from imgbuild.matrix.project_paths import Project
from imgbuild.pipeline import choose_target
from imgbuild.pipeline.target_facts import ChoiceRequest, target_facts
from imgbuild.resolve.choose import LockedFacts
from tests.support.local_index import LocalIndex

ARM = "cp311-cp311-manylinux_2_17_aarch64"
OLD_PYTHON = "cp310-cp310-manylinux_2_17_x86_64"


def write_index(index: LocalIndex, folder: Path) -> str:
    """Write the files of `index` below `folder`, and return the URL of the index."""
    for item in index.published:
        path = folder / item.package / item.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(item.data)
    folder.mkdir(exist_ok=True)
    return f"file://{folder}"


def catalogue_with(index: LocalIndex, folder: Path) -> Matrix:
    """Write the matrix of the catalogue to `folder`, with `index` as the default index."""
    matrix = _catalogue()
    place = PackageIndex(url=write_index(index, folder), upload_times="none")
    return msgspec.structs.replace(matrix, indexes={**matrix.indexes, matrix.default_index: place})


@functools.cache
def _catalogue() -> Matrix:
    return load_matrix(project_paths.catalogue_project().matrix)


_FACTS: dict[str, list[LockedFacts]] = {}


def keep_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the locks of the catalogue once for each type of host, not in every test."""
    read = target_facts

    def _facts_of(project: Project, matrix: Matrix, request: ChoiceRequest) -> list[LockedFacts]:
        if project.images != project_paths.catalogue_project().images:  # a checkout
            return read(project, matrix, request)
        key = repr((request.arch, request.host))
        if key not in _FACTS:
            _FACTS[key] = read(project, matrix, request)
        return list(_FACTS[key])

    monkeypatch.setattr(choose_target, "target_facts", _facts_of)
