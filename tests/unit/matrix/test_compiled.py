"""Tests that the compiled matrix of the catalogue equals its YAML file."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from imgbuild.lock import published
from imgbuild.matrix import load
from tests.support.source_code import ROOT, import_script

SETUP = import_script(ROOT / "setup.py")


@pytest.fixture
def catalogue(tmp_path: Path) -> Path:
    """A copy of the matrix with its compiled form, as in a wheel."""
    path = tmp_path / "matrix.yaml"
    shutil.copy(ROOT / "matrix.yaml", path)
    path.with_suffix(".json").write_bytes(SETUP.compiled(path.read_bytes()))
    return path


def test_compiled_json_matrix_equals_the_yaml_matrix(catalogue: Path) -> None:
    assert load.load_compiled_matrix(catalogue) == load.parse_matrix(
        catalogue.read_bytes(), "matrix.yaml"
    )


def test_compiled_matrix_of_another_yaml_file_is_not_used(catalogue: Path) -> None:
    catalogue.write_bytes(catalogue.read_bytes() + b"# changed\n")
    assert load.load_compiled_matrix(catalogue) is None


@pytest.mark.parametrize("content", [None, b"", b"{}", b"[" * 100_000])
def test_yaml_matrix_is_read_if_the_compiled_matrix_is_invalid(
    catalogue: Path, content: bytes | None
) -> None:
    file = catalogue.with_suffix(".json")
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    assert load.load_compiled_matrix(catalogue) is None


def test_compiled_matrix_is_used_only_for_the_catalogue(
    catalogue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        pytest.fail("the YAML file was parsed")

    project = published.load_matrix(catalogue)
    monkeypatch.setattr(published, "parse_yaml", refuse)
    with pytest.raises(pytest.fail.Exception):
        published.load_matrix(catalogue)
    monkeypatch.setattr(published, "CATALOGUE", catalogue.parent)
    assert published.load_matrix(catalogue) == project
