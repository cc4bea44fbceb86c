"""Tests finding requirements that an index cannot satisfy from its pages alone."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from imgbuild.cache.context import Context
from imgbuild.project.model import FilePlace
from imgbuild.resolve import sdist_code
from imgbuild.resolve.demands import PackageDemand
from imgbuild.resolve.feasible import IndexPages, UnmetDemand, find_obstacles
from imgbuild.values import Arch
from imgbuild.wheel.tags import WheelTags
from tests.support import folder_index
from tests.support.local_index import LocalIndex, sdist_bytes

TAGS = WheelTags(python="3.11", glibc="2.36", arch=Arch.X86_64)
DAY = datetime.date(2026, 1, 1)
Pages = Callable[[LocalIndex], IndexPages]


@pytest.fixture
def pages(tmp_path: Path) -> Pages:
    def opened(index: LocalIndex) -> IndexPages:
        matrix = folder_index.catalogue_with(index, tmp_path / "index")
        return IndexPages(matrix, Context.open(root=tmp_path / "cache"), DAY)

    return opened


def demand(text: str, **more: object) -> PackageDemand:
    name, _, spec = text.partition(" ")
    return PackageDemand(package=name, spec=spec, places=(FilePlace("a.txt", 2),), **more)  # type: ignore[arg-type]


def sample() -> LocalIndex:
    index = LocalIndex()
    for version in ("0.14.0", "0.15.0", "0.16.0"):
        index.wheel("peft", version)
    index.wheel("old", "1.0", tag=folder_index.OLD_PYTHON)
    index.wheel("arm", "1.0", tag=folder_index.ARM)
    index.add("pyext", "pyext-0.7.tar.gz", sdist_bytes("pyext", "0.7", {"setup.py": b""}))
    index.add("mixed", "mixed-2.0.tar.gz", sdist_bytes("mixed", "2.0", {"setup.py": b""}))
    index.wheel("mixed", "2.0", tag=folder_index.OLD_PYTHON)
    index.add("deepspeed", "deepspeed-0.1.tar.gz", sdist_bytes("deepspeed", "0.1", {}))
    return index


def test_all_obstacles_to_requirements_are_listed_together(pages: Pages) -> None:
    asked = [
        demand("peft >=0.15"),
        demand("peft ==0.20"),
        demand("nosuch"),
        demand("pyext"),
        demand("old ==1.0"),
        demand("arm"),
        demand("mixed ==2.0"),
        demand("deepspeed"),  # an sdist of the matrix
    ]
    causes = {each.demand: each.cause for each in find_obstacles(asked, pages(sample()), TAGS)}
    assert causes == {
        "peft==0.20": "version",
        "nosuch": "name",
        "pyext": "source",
        "old==1.0": "python",
        "arm": "python",
        "mixed==2.0": "source",
    }


def test_message_about_an_obstacle_has_location_reason_and_alternative(pages: Pages) -> None:
    (obstacle,) = find_obstacles([demand("peft ==0.20")], pages(sample()), TAGS)
    assert str(obstacle) == (
        "a.txt:2: peft==0.20: the index has no such version; it has 0.14.0 to 0.16.0;"
        " nearest: 0.16.0"
    )
    (obstacle,) = find_obstacles([demand("old ==1.0")], pages(sample()), TAGS)
    assert "no wheel for Python 3.11 and glibc 2.36 among its Linux x86_64 wheels" in str(obstacle)
    assert "Python cp310" in obstacle.reason


def test_packages_with_only_bounds_or_a_url_are_not_looked_up(pages: Pages) -> None:
    asked = [demand("nosuch", installed=False), demand("other", source="https://example.org/o.whl")]
    assert find_obstacles(asked, pages(LocalIndex()), TAGS) == []


def test_obstacles_to_requirements_depend_on_the_python_version(pages: Pages) -> None:
    python310 = WheelTags(python="3.10", glibc="2.36", arch=Arch.X86_64)
    assert find_obstacles([demand("old ==1.0")], pages(sample()), python310) == []


def test_sdist_of_an_allowed_package_meets_a_requirement(pages: Pages) -> None:
    assert find_obstacles([demand("pyext")], pages(sample()), TAGS, sdists=["pyext"]) == []


@pytest.mark.parametrize(
    ("files", "code"),
    [
        ({"setup.py": b"from setuptools import setup\nsetup()\n", "a.py": b""}, "python"),
        ({"setup.py": b"setup(ext_modules=[])\n"}, "native"),
        ({"pyproject.toml": b"", "src/lib.rs": b""}, "native"),
        ({"setup.py": b"from torch.utils.cpp_extension import CUDAExtension\n"}, "cuda"),
        ({"csrc/kernel.cu": b"", "setup.py": b""}, "cuda"),
        ({"tests/data.c": b"", "setup.py": b"", "src/a/__init__.py": b""}, "python"),
        ({"setup.py": b"", "tests/test_a.py": b"", "sample/main.py": b""}, "placeholder"),
        ({"setup.py": b"", "PKG-INFO": b"Name: a\nRequires-Dist: b\n\n"}, "python"),
    ],
)
def test_compiled_code_of_an_sdist_is_detected(
    pages: Pages, tmp_path: Path, files: dict[str, bytes], code: str
) -> None:
    index = LocalIndex()
    index.add("a", "a-1.0.tar.gz", sdist_bytes("a", "1.0", files))
    (file,) = pages(index).files("a")
    context = Context.open(root=tmp_path / "cache")
    assert sdist_code.read_sdist_content(file, context).code == code
    assert sdist_code.read_sdist_content(file, context).code == code, "the cached result differs"


def test_requirement_in_a_message_is_shown_as_written() -> None:
    obstacle = UnmetDemand(
        package="a", demand="a[x]>=2", cause="name", reason="gone", nearest=("1",)
    )
    assert obstacle.text == str(obstacle) == "a[x]>=2: gone; nearest: 1"


def test_newest_wheel_of_a_range_is_not_yanked(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = LocalIndex()
    index.wheel("peft", "0.15.0")
    index.wheel("peft", "0.16.0")
    every = pages(index)
    files = tuple(
        msgspec.structs.replace(file, yanked=str(file.version) == "0.16.0")
        for file in every.files("peft")
    )
    monkeypatch.setattr(IndexPages, "files", lambda _, package: files)
    newest = {
        spec: str(wheel.version)
        for spec in ("", ">=0.15", "==0.16.0")
        if (wheel := every.newest_wheel(demand(f"peft {spec}"), TAGS)) is not None
    }
    assert newest == {"": "0.15.0", ">=0.15": "0.15.0", "==0.16.0": "0.16.0"}
