"""Tests finding the matrix and the output folders of a project."""

import os
from pathlib import Path

import pytest

from imgbuild.errors import InputError
from imgbuild.matrix import project_paths

ROOT = Path(__file__).parents[2]


def test_matrix_in_the_nearest_parent_folder_is_found(tmp_path, monkeypatch):
    (tmp_path / "matrix.yaml").write_text("version: 1\n")
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    local_project = project_paths.find_project(None)
    assert local_project.root == tmp_path
    assert local_project.output("x") == tmp_path / "build" / "x"


def test_matrix_option_accepts_folders_and_files(tmp_path):
    path = tmp_path / "matrix.yaml"
    path.write_text("version: 1\n")
    assert project_paths.find_project(tmp_path) == project_paths.find_project(path)


def test_matrix_file_that_is_given_must_exist(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        project_paths.find_project(tmp_path / "absent.yaml")


@pytest.mark.parametrize("kind", ["pipe", "folder", "link"])
def test_matrix_that_is_not_a_file_is_refused(kind, tmp_path, monkeypatch):
    path = tmp_path / "matrix.yaml"
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case _:
            path.symlink_to("absent.yaml")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"matrix\.yaml is not a file"):
        project_paths.find_project(None)


def test_catalogue_is_used_read_only_if_no_matrix_exists(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    local_project = project_paths.find_project(None)
    assert (
        local_project
        == project_paths.find_project(local_project.matrix)
        == project_paths.catalogue_project()
    )
    assert local_project.matrix.read_bytes() == (ROOT / "matrix.yaml").read_bytes()
    assert local_project.locked_targets() == project_paths.find_project(ROOT).locked_targets()
    assert local_project.output("x") == tmp_path / "build" / "x"
    with pytest.raises(InputError, match=str(tmp_path)) as caught:
        local_project.require_writable("imgbuild lock")
    assert "imgbuild init --extends" in str(caught.value.hint)


def test_a_checkout_linked_from_the_catalogue_is_not_a_catalogue():
    local_project = project_paths.find_project(ROOT)
    assert local_project.writable
    assert local_project.matrix.samefile(project_paths.catalogue_project().matrix)
    local_project.require_writable("imgbuild lock")


def test_locked_targets_are_listed(tmp_path):
    (tmp_path / "matrix.yaml").write_text("version: 1\n")
    for name in ("b", "a"):
        folder = tmp_path / "images" / name
        folder.mkdir(parents=True)
        (folder / "lock.json").write_text("{}")
    assert project_paths.find_project(tmp_path).locked_targets() == ("a", "b")


def test_outputs_are_in_the_imgbuild_folder_if_the_folder_exists(tmp_path):
    (tmp_path / "matrix.yaml").write_text("version: 1\n")
    local_project = project_paths.find_project(tmp_path)
    assert local_project.images == tmp_path / "images"
    assert local_project.output("x") == tmp_path / "build/x"
    (tmp_path / ".imgbuild").mkdir()
    assert local_project.images == tmp_path / ".imgbuild/images"
    assert local_project.output("x") == tmp_path / ".imgbuild/build/x"
    assert local_project.output_path("build/ci") == tmp_path / ".imgbuild/build/ci"


def test_imgbuild_folder_that_is_a_link_is_refused(tmp_path):
    (tmp_path / "matrix.yaml").write_text("version: 1\n")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".imgbuild").symlink_to("elsewhere")
    local_project = project_paths.find_project(tmp_path)
    for part in ("images", "folder", "outputs"):
        with pytest.raises(InputError, match=r"\.imgbuild is a symbolic link"):
            getattr(local_project, part)
