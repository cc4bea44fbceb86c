"""Tests that version ranges in extras named after another package are preferred."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path

import pytest

from imgbuild.cache.store import Store
from imgbuild.http.client import HttpClient
from imgbuild.index.candidates import FileRules
from imgbuild.index.catalogue import FileCatalogue
from imgbuild.index.pages import IndexAddress, IndexLookup
from imgbuild.index.remote_wheel import read_wheel_metadata
from imgbuild.matrix.constraints import Constraint
from imgbuild.resolve import conflict, preferences
from imgbuild.resolve.conflict import PackageFacts
from imgbuild.resolve.first_solve import FirstSolve, LearnedMemory
from imgbuild.values import Arch
from imgbuild.wheel.tags import WheelTags
from tests.support.local_index import LocalIndex
from tests.support.servers import FileSite, serve_site

LEARNED = Constraint(package="tool", versions=">=1", needs="engine>=0.1", check="imports")


@pytest.fixture
def facts(tmp_path: Path) -> Iterator[PackageFacts]:
    index = LocalIndex()
    index.wheel("engine", "1.0")
    index.wheel("other", "1.0")
    index.wheel("tool", "0.9")
    needs = {"1.0": ">=0.5,<2", "1.1": "<2,>=0.5", "2.0": ">=2", "3.0": ">=2"}
    for version, spec in needs.items():
        lines = [f'engine{spec}; extra == "engine"', 'other>=9; extra == "dev"']
        index.wheel("tool", version, [*lines, 'engine>=9; extra == "dev"'])
    index.wheel("tool", "4.0")
    http, store = HttpClient(attempts=1), Store.open(tmp_path / "cache")
    with serve_site(FileSite(files=index.site_files())) as site:
        place = IndexAddress(name="pypi", address=site.url("simple"))
        rules = FileRules(
            as_of=datetime.date(2030, 1, 1),
            tags=WheelTags(python="3.11", glibc="2.36", arch=Arch.X86_64),
            pins={},
        )
        catalogue = FileCatalogue(
            IndexLookup({"pypi": place}, {}, "pypi", http), rules, http, store
        )
        yield PackageFacts(catalogue, lambda file: read_wheel_metadata(file, http, store), (), ())


@pytest.mark.parametrize(
    ("tool", "pairs"),
    [("0.9", []), ("1.0", []), ("2.0", [("tool", "engine")]), ("4.0", [])],
)
def test_versions_outside_the_range_of_an_extra_are_violations(
    facts: PackageFacts, tool: str, pairs: list[preferences.PackagePair]
) -> None:
    versions = {"tool": tool, "engine": "1.0", "other": "1.0"}
    assert list(preferences.violated_pairs(facts, versions)) == pairs
    assert list(preferences.violated_pairs(facts, {"tool": tool, "other": "1.0"})) == []


def test_preferences_of_an_extra_cover_all_versions_that_can_be_selected(
    facts: PackageFacts,
) -> None:
    constraints = preferences.pair_constraints(facts, ("tool", "engine"), "")
    assert [(constraint.versions, constraint.needs) for constraint in constraints] == [
        ("==0.9", "engine<0"),  # it does not support the engine
        (">=1.0,<=1.1", "engine<2,>=0.5"),
        (">=2.0,<=3.0", "engine>=2"),
    ]
    assert {constraint.check for constraint in constraints} == {preferences.EXTRA_KIND}
    pinned = preferences.pair_constraints(facts, ("tool", "engine"), "==3.0")
    assert [(constraint.versions, constraint.needs) for constraint in pinned] == [
        ("==3.0", "engine>=2")
    ]
    assert preferences.pair_constraints(facts, ("tool", "other"), "") == ()


def test_preference_that_was_dropped_is_not_added_again(
    facts: PackageFacts,
) -> None:
    memory = LearnedMemory([LEARNED])
    versions = {"tool": "3.0", "engine": "1.0"}
    first = FirstSolve(
        chosen=(),
        facts=facts,
        demands=(conflict.user_demand("tool", ">=1"), conflict.user_demand("engine", "==1.0")),
        torch=None,
        cuda="12.4",
    )
    assert memory.add_preferences(first, versions)
    assert memory.learned_constraints[0] == LEARNED
    learned = [constraint.needs for constraint in memory.learned_constraints[1:]]
    assert learned == ["engine<2,>=0.5", "engine>=2"]
    assert not memory.add_preferences(first, versions)
    assert memory.remove_last_preference()
    assert memory.learned_constraints == (LEARNED,)
    assert not memory.add_preferences(first, versions)
    assert not memory.remove_last_preference()
