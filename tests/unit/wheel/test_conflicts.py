"""Tests finding paths that several packages install."""

from __future__ import annotations

from pathlib import Path

from imgbuild.oci.tar import FileSlice, LayerMember
from imgbuild.wheel.conflicts import InstalledFile, PathConflict, find_conflicts, installed_files


def test_equal_files_of_two_wheels_are_not_a_conflict() -> None:
    tables = {
        "a": [InstalledFile("bin/x", 1, 2), InstalledFile("bin/y", 1, 2)],
        "b": [InstalledFile("bin/x", 1, 2), InstalledFile("bin-z", 1, 2)],
    }
    assert find_conflicts(tables) == ()


def test_different_files_of_two_wheels_are_a_conflict() -> None:
    tables = {
        "c": [InstalledFile("bin/x", 1, 2)],
        "a": [InstalledFile("bin/x", 1, 3), InstalledFile("bin/y", 1, 1)],
        "b": [InstalledFile("bin/x", 1, 2), InstalledFile("bin/y", 2, 1)],
    }
    conflicts = find_conflicts(tables)
    assert conflicts == (
        PathConflict(path="bin/x", owners=("a", "b", "c")),
        PathConflict(path="bin/y", owners=("a", "b")),
    )
    assert str(conflicts[1]) == "bin/y has different contents in a, b"


def test_file_and_folder_with_the_same_path_are_a_conflict() -> None:
    tables = {"a": [InstalledFile("lib/x", 1, 2)], "b": [InstalledFile("lib/x/y/z", 1, 2)]}
    (conflict,) = find_conflicts(tables)
    assert conflict == PathConflict(path="lib/x", owners=("a", "b"), folder=True)
    assert "folder" in str(conflict)


def test_conflicts_between_many_wheels_are_found(tmp_path: Path) -> None:
    part = FileSlice(path=tmp_path, offset=0, length=5, deflated=True, crc=77)
    members = [
        LayerMember(path="opt/venv/lib/site/a", content=part, size=9),
        LayerMember(path="opt/venv/b", content=b"abc", size=3),
    ]
    assert installed_files(members, "opt/venv/lib/site") == (
        InstalledFile("a", 77, 9),
        InstalledFile("../../b", 0x352441C2, 3),
    )
