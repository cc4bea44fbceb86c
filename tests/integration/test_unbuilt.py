"""Tests that no sdist is built for package sets without a solution."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from imgbuild.cache.context import Context
from imgbuild.errors import NoSolution
from imgbuild.matrix.model import PackageIndex, Sdist
from imgbuild.solve.sdists import host_arch
from tests.support import folder_index, samples
from tests.support.local_index import LocalIndex, sdist_bytes
from tests.support.resolving import resolve_wheels

FILES = {"setup.py": b"from setuptools import setup\nsetup(name='demo', version='1.0')\n"}


class Built(Exception):
    """Raised when a wheel is about to be built."""


def _refuse_to_build() -> Path:
    raise Built("built")


@pytest.mark.parametrize(
    ("bound", "expected"), [("other>=2", "built"), ("other<1", "no package set")]
)
def test_sdist_is_built_only_if_the_other_packages_have_a_solution(
    tmp_path: Path, bound: str, expected: str
) -> None:
    index = LocalIndex()
    index.add("demo", "demo-1.0.tar.gz", sdist_bytes("demo", "1.0", FILES))
    index.wheel("tool", "1", [bound])
    index.wheel("other", "2", [])
    for name in ("pip", "setuptools", "wheel"):
        index.wheel(name, "80", [])
    index.wheel("cuda-toolkit", "12.4.1", ['nvidia-cublas-cu12==12.4.5.8; extra == "all"'])
    matrix = samples.matrix(pins={"demo": "1.0", "tool": "1", "other": "2"})
    place = PackageIndex(
        url=folder_index.write_index(index, tmp_path / "index"), upload_times="none"
    )
    matrix = msgspec.structs.replace(
        matrix,
        indexes={**matrix.indexes, matrix.default_index: place},
        sdists={"demo": Sdist(reason="has no wheel")},
    )
    context = Context.open(root=tmp_path / "cache")
    with pytest.raises((Built, NoSolution), match=expected):
        resolve_wheels(matrix, "small", host_arch(), "3.11.2", _refuse_to_build, context)
