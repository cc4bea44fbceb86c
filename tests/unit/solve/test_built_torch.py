"""Tests wheels of sdists whose build requires the torch of the same lock."""

from __future__ import annotations

import pytest

from imgbuild.errors import NoSolution
from imgbuild.lock.resolution import BuiltWheel, LockedFile, Wheel
from imgbuild.matrix.model import Sdist
from imgbuild.solve.solve import refuse_other_torch

FILE = LockedFile(file="a-1.tar.gz", size=1, sha256="a" * 64)
TORCH = Wheel(package="torch", version="2.6.0", index="pypi", file="torch.whl", size=1,
              sha256="b" * 64)  # fmt: skip
BUILT = BuiltWheel(package="kernels", version="1.0", index="pypi", sdist=FILE, env={},
                   requires=(TORCH,), wheel=FILE)  # fmt: skip


def test_wheel_that_was_built_with_a_different_torch_is_refused() -> None:
    sdists = {"kernels": Sdist(reason="only an sdist exists", requires=("torch",))}
    refuse_other_torch("ours", sdists, [BUILT], "2.6.0")
    with pytest.raises(NoSolution) as caught:
        refuse_other_torch("ours", sdists, [BUILT], "2.7.0")
    assert caught.value.reasons == ("kernels 1.0 was built with torch 2.6.0",)
    assert caught.value.hint == 'add to the row in matrix.yaml: pins: {torch: "2.7.0"}'
    refuse_other_torch("ours", {"kernels": Sdist(reason="only an sdist")}, [BUILT], "2.7.0")
