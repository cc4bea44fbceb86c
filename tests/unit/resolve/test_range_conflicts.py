"""Tests finding conflicts of added packages, and of their dependencies, with a target."""

from __future__ import annotations

import datetime
from pathlib import Path

from imgbuild.cache.context import Context
from imgbuild.project.model import FilePlace
from imgbuild.resolve.choose import LockedFacts
from imgbuild.resolve.demands import PackageDemand
from imgbuild.resolve.feasible import IndexPages
from imgbuild.resolve.range_conflicts import range_conflicts
from imgbuild.values import Arch
from imgbuild.wheel.tags import WheelTags
from tests.support import folder_index
from tests.support.local_index import LocalIndex
from tests.support.rows import each_row

TAGS = WheelTags(python="3.11", glibc="2.36", arch=Arch.X86_64)
FACTS = LockedFacts(
    target="row", arch=Arch.X86_64, versions={"six": "1.17.0"}, python="3.11", cuda="12.4",
    as_of="2026-01-01",
)  # fmt: skip


@each_row(
    ("metrics", "repro", "expected"),
    [
        (["six<1.17"], [], ["six 1.17.0 -> <1.17 (metrics 1.0)"]),
        (["repro==0.1"], ["six==1.16.0"], ["six 1.17.0 -> ==1.16.0 (repro 0.1)"]),
        (["middle==1"], ["six==1.16.0"], ["six 1.17.0 -> ==1.16.0 (repro 0.1)"]),
        (["repro"], ["six==1.16.0"], ["six 1.17.0 -> ==1.16.0 (repro 0.1)"]),
        (["repro[more]"], [], ["six 1.17.0 -> <1.0 (deep 1)"]),
        (["several"], [], []),  # the solver may choose another version
        (["repro==0.1"], ["six>=1.16.0"], []),
        (["circle==1"], [], []),
        (["absent==1"], [], []),
    ],
)
def test_dependencies_of_an_added_package_are_examined_for_range_conflicts(
    tmp_path: Path, metrics: list[str], repro: list[str], expected: list[str]
) -> None:
    index = LocalIndex()
    index.wheel("metrics", "1.0", metrics)
    index.wheel("middle", "1", ["repro==0.1"])
    index.wheel("repro", "0.1", [*repro, 'deep ; extra == "more"'])
    index.wheel("deep", "1", ["six<1.0"])
    index.wheel("several", "2", ["six==1.16.0"])
    index.wheel("several", "1", [])
    index.wheel("circle", "1", ["circle==1"])
    matrix = folder_index.catalogue_with(index, tmp_path / "index")
    context = Context.open(root=tmp_path / "cache")
    pages = IndexPages(matrix, context, datetime.date(2026, 1, 1))
    added = [PackageDemand(package="metrics", places=(FilePlace("a.txt", 2),))]
    changes = range_conflicts(added, FACTS, pages, TAGS)
    assert [str(each) for each in changes] == expected
