"""Packages that disagree about a path."""

from __future__ import annotations

from pathlib import Path

from imgbuild.oci.tar import Member, Slice
from imgbuild.wheel.conflicts import Conflict, Entry, find, table


def test_agreement_is_no_conflict() -> None:
    tables = {
        "a": [Entry("bin/x", 1, 2), Entry("bin/y", 1, 2)],
        "b": [Entry("bin/x", 1, 2), Entry("bin-z", 1, 2)],
    }
    assert find(tables) == ()


def test_contents_that_differ() -> None:
    tables = {
        "c": [Entry("bin/x", 1, 2)],
        "a": [Entry("bin/x", 1, 3), Entry("bin/y", 1, 1)],
        "b": [Entry("bin/x", 1, 2), Entry("bin/y", 2, 1)],
    }
    found = find(tables)
    assert found == (
        Conflict(path="bin/x", owners=("a", "b", "c")),
        Conflict(path="bin/y", owners=("a", "b")),
    )
    assert str(found[1]) == "bin/y has different contents in a, b"


def test_a_file_where_another_needs_a_folder() -> None:
    tables = {"a": [Entry("lib/x", 1, 2)], "b": [Entry("lib/x/y/z", 1, 2)]}
    (found,) = find(tables)
    assert found == Conflict(path="lib/x", owners=("a", "b"), folder=True)
    assert "folder" in str(found)


def test_table(tmp_path: Path) -> None:
    part = Slice(path=tmp_path, offset=0, length=5, deflated=True, crc=77)
    members = [
        Member(path="opt/venv/lib/site/a", content=part, size=9),
        Member(path="opt/venv/b", content=b"abc", size=3),
    ]
    assert table(members, "opt/venv/lib/site") == (
        Entry("a", 77, 9),
        Entry("../../b", 0x352441C2, 3),
    )
