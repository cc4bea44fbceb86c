"""Conflicts of additions with a target, in their requirements and those of their dependencies."""

from __future__ import annotations

import datetime
from pathlib import Path

from imgbuild.cache.context import Context
from imgbuild.project.model import Declared, DeclaredRequirement, Place
from imgbuild.resolve import engine_torch
from imgbuild.resolve.choose import LockedFacts
from imgbuild.resolve.demands import PackageDemand
from imgbuild.resolve.feasible import IndexPages
from imgbuild.resolve.range_conflicts import absent, range_conflicts
from imgbuild.values import Arch
from imgbuild.wheel.tags import Tags
from tests.support import folder_index
from tests.support.local_index import LocalIndex
from tests.support.rows import each_row

TAGS = Tags(python="3.11", glibc="2.36", arch=Arch.X86_64)
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
def test_dependencies_of_an_addition_are_examined(
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
    added = [PackageDemand(package="metrics", places=(Place("a.txt", 2),))]
    changes = range_conflicts(added, FACTS, pages, TAGS)
    assert [str(each) for each in changes] == expected


@each_row(
    ("needed", "lines", "reason"),
    [
        ("grammar==0.1", [], "the index has no such version"),
        ("absent==0.1", [], "the index has no such package"),
        ("grammar==0.2", [], ""),
        ("grammar==0.1 ; python_version < '3'", [], ""),
        ("grammar<0.2", [], ""),  # the solver has to find out
        ("grammar==0.1", ["grammar==0.2"], ""),  # an override, or reported with the line itself
    ],
)
def test_pin_that_requires_a_removed_version_is_explained(
    tmp_path: Path, needed: str, lines: list[str], reason: str
) -> None:
    index = LocalIndex()
    index.wheel("grammar", "0.2")
    matrix = folder_index.catalogue_with(index, tmp_path / "index")
    context = Context.open(root=tmp_path / "cache")
    pages = IndexPages(matrix, context, datetime.date(2026, 1, 1))
    pin = PackageDemand(package="engine", spec="==1", places=(Place("a.txt", 2),))
    text = f"Requires-Dist: {needed}\n".encode()
    required = [(pin, engine_torch.required(pin, text, TAGS.markers))]
    place = Place("a.txt", 1)
    declared = Declared(
        requirements=tuple(DeclaredRequirement(text=line, place=place) for line in lines)
    )
    found = [str(each) for each in absent(required, declared, pages, TAGS)]
    assert len(found) == bool(reason)
    start = f"a.txt:2: engine==1: requires {needed}: {reason}"
    assert all(each.startswith(start) for each in found)
