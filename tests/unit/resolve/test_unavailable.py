"""Tests finding packages whose every version requires something that the index lacks."""

from __future__ import annotations

import datetime
from pathlib import Path

from imgbuild.cache.context import Context
from imgbuild.project.model import DeclaredName, FilePlace
from imgbuild.resolve.demands import PackageDemand
from imgbuild.resolve.engine_torch import missing_toolkit_obstacles
from imgbuild.resolve.feasible import IndexPages
from imgbuild.resolve.unavailable import VERSIONS, unavailable_demands
from imgbuild.values import Arch
from imgbuild.wheel.tags import WheelTags
from tests.support import folder_index
from tests.support.local_index import LocalIndex, sdist_bytes
from tests.support.rows import each_row

TAGS = WheelTags(python="3.11", glibc="2.36", arch=Arch.X86_64)
SITE = FilePlace("a.txt", 2)
COMPILER = "only an sdist that requires a compiler exists; specify the URL of a wheel"
EMPTY = "only a placeholder sdist without a module exists; specify the URL of a wheel"


def pages_of(index: LocalIndex, folder: Path) -> IndexPages:
    matrix = folder_index.catalogue_with(index, folder / "index")
    return IndexPages(matrix, Context.open(root=folder / "cache"), datetime.date(2026, 1, 1))


@each_row(
    ("requires", "spec", "reason"),
    [
        (["grammar==0.1"], "==1", "grammar==0.1: the index has no such version; it has 0.2 to 0.2"),
        (["absent"], "==1", "absent: the index has no such package"),
        (["grammar<0.2"], ">=1", "grammar<0.2: the index has no such version; it has 0.2 to 0.2"),
        (["compiled==0.1"], "", f"compiled==0.1: {COMPILER}"),
        (["middle"], "", f"middle, which requires empty: {EMPTY}"),
        (["middle==1"], "==1", f"middle==1, which requires empty: {EMPTY}"),
        (["pure==0.1"], "==1", ""),  # it can be built
        (["grammar==0.2"], "==1", ""),
        (["grammar==0.1 ; python_version < '3'"], "==1", ""),
        (['absent ; extra == "more"'], "==1", ""),
        (["several"], "==1", ""),  # an older version does not need it
        (["many"], "==1", ""),  # not examined
        (["circle"], "==1", ""),
        (["held<1"], "==1", ""),  # overridden
        (["present"], "==1", ""),  # of the target
    ],
)
def test_package_whose_versions_all_require_missing_packages_is_unavailable(
    tmp_path: Path, requires: list[str], spec: str, reason: str
) -> None:
    index = LocalIndex()
    index.wheel("engine", "1", requires)
    index.wheel("grammar", "0.2")
    index.wheel("middle", "1", ["empty"])
    index.wheel("several", "2", ["absent"])
    index.wheel("several", "1", [])
    index.wheel("circle", "1", ["circle==1"])
    for number in range(VERSIONS + 1):
        index.wheel("many", f"{number}", ["absent"])
    for name, files in (
        ("compiled", {"pyproject.toml": b"", "src/lib.rs": b""}),
        ("pure", {"setup.py": b"", "pure.py": b""}),
        ("empty", {"setup.py": b""}),
    ):
        index.add(name, f"{name}-0.1.tar.gz", sdist_bytes(name, "0.1", files))
    demand = PackageDemand(package="engine", spec=spec, places=(SITE,))
    found = unavailable_demands([demand], {"present"}, {"held"}, pages_of(index, tmp_path), TAGS)
    wanted = [f"a.txt:2: {demand}: requires {reason}"] if reason else []
    assert [str(each).partition("; nearest")[0] for each in found] == wanted


def test_torch_for_a_cuda_release_without_a_toolkit_is_reported(tmp_path: Path) -> None:
    index = LocalIndex()
    index.wheel("cuda-toolkit", "12.1.1")
    for version, cuda in (("2.0.1", "11.7.99"), ("2.1.0", "12.1.105"), ("2.2.0", "12.1.105")):
        index.wheel("torch", version, [f"nvidia-cuda-runtime-cu12=={cuda}"])
    pages = pages_of(index, tmp_path)
    torch = PackageDemand(package="torch", spec="==2.0.1", places=(SITE,))
    (pinned,) = missing_toolkit_obstacles(torch, "11.7", "", (), pages, TAGS)
    assert str(pinned) == (
        "a.txt:2: torch==2.0.1: it is built for CUDA 11.7, and the index has no cuda-toolkit for"
        " this release; nearest: 2.1.0"
    )
    named = (DeclaredName(name="11.6", place=FilePlace("Dockerfile", 1)),)
    (image,) = missing_toolkit_obstacles(None, "12.1", "11.6", named, pages, TAGS)
    assert str(image).startswith("Dockerfile:1: CUDA 11.6: the index has no cuda-toolkit for this")
    assert not missing_toolkit_obstacles(torch, "12.1", "12.1", named, pages, TAGS)
    index.wheel("cuda-toolkit", "11.8.0")
    pages = pages_of(index, tmp_path / "with 11.8")
    local = (DeclaredName(name="11.8", place=SITE),)
    (other,) = missing_toolkit_obstacles(torch, "12.1", "11.8", local, pages, TAGS)
    assert str(other) == (
        "a.txt:2: torch==2.0.1: the index has a build for CUDA 12.1, but not for CUDA 11.8"
        " (a.txt:2)"
    )
