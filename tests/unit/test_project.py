"""Where a project is found."""

from __future__ import annotations

import pytest

from imgbuild import project
from imgbuild.errors import InputError


def test_the_nearest_matrix_above_is_found(tmp_path, monkeypatch):
    (tmp_path / "matrix.yaml").write_text("version: 1\n")
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    found = project.find(None)
    assert found.root == tmp_path
    assert found.output("x") == tmp_path / "build" / "x"


def test_a_folder_or_a_file_can_be_named(tmp_path):
    path = tmp_path / "matrix.yaml"
    path.write_text("version: 1\n")
    assert project.find(tmp_path) == project.find(path)


def test_none_found_says_where_it_looked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=str(tmp_path)):
        project.find(None)
    with pytest.raises(InputError, match="no such file"):
        project.find(tmp_path / "absent.yaml")


def test_locked_targets_are_listed(tmp_path):
    (tmp_path / "matrix.yaml").write_text("version: 1\n")
    for name in ("b", "a"):
        folder = tmp_path / "images" / name
        folder.mkdir(parents=True)
        (folder / "lock.json").write_text("{}")
    assert project.find(tmp_path).sealed() == ("a", "b")
