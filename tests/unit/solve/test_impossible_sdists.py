"""Tests that sdists which contradict pins or learned constraints are excluded."""

from __future__ import annotations

from pathlib import Path

from imgbuild.matrix.constraints import Constraint
from imgbuild.solve import impossible_sdists
from tests.support.local_index import LocalIndex, sdist_bytes
from tests.unit.resolve.test_unavailable import TAGS, pages_of


def test_sdists_that_contradict_a_pin_are_excluded(tmp_path: Path) -> None:
    index = LocalIndex()
    for version in ("0.16", "0.17", "0.18"):
        index.add("engine", f"engine-{version}.tar.gz", sdist_bytes("engine", version, {}))
    for version in ("4.38.0", "4.51.3"):
        index.wheel("transformers", version)
    catalogue = pages_of(index, tmp_path).catalogue(TAGS, ["engine"])
    learned = [
        Constraint(package="trainer", versions="==0.7", needs="transformers<4.39"),
        Constraint(package="engine", versions=">=0.17,<=0.18", needs="transformers>=4.51.3"),
        Constraint(package="engine", versions="<=0.16", needs="transformers>=4.38"),
    ]

    def excluded(pins: dict[str, str], specs: dict[str, str]) -> tuple[str, ...]:
        return impossible_sdists.version_exclusions(catalogue, ["engine"], pins, specs, learned)

    for pins, specs in (
        ({"trainer": "0.7"}, {}),
        ({"transformers": "4.38.0"}, {}),
        ({}, {"transformers": "<4.50"}),
    ):
        (line,) = excluded(pins, specs)
        assert set(line.removeprefix("engine").split(",")) == {"!=0.17", "!=0.18"}
    assert excluded({"trainer": "0.8"}, {"transformers": ">=4.38"}) == ()
