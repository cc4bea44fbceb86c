"""Tests which requirements of a project's row the resolver receives for each Python."""

from __future__ import annotations

from pathlib import Path

from imgbuild.lock.project_requirements import NEVER_MARKER, ProjectRequirements, row_requirements
from imgbuild.matrix.extension import Extension
from imgbuild.values import Arch, environment_markers
from tests.support.rows import each_row

PYPROJECT = """\
[project]
name = "x"
version = "1"
dependencies = ["torch"]
[tool.uv]
override-dependencies = [{}]
"""


def required(folder: Path, python: str, row: Extension) -> ProjectRequirements:
    return row_requirements(row, folder, environment_markers(python, Arch("x86_64")))


@each_row(
    ("overrides", "left_out"),
    [
        (["fast==2 ; python_version < '3.12'"], ("3.13",)),
        (["fast==2 ; python_version < '3.12'", "fast==3 ; python_version >= '3.12'"], ()),
        (["fast ; sys_platform == 'never'"], ("3.11", "3.13")),
        (["fast==2"], ()),
    ],
)
def test_overridden_package_is_excluded_if_no_override_applies(
    overrides: list[str], left_out: tuple[str, ...], tmp_path: Path
) -> None:
    text = PYPROJECT.format(", ".join(f'"{line}"' for line in overrides))
    (tmp_path / "pyproject.toml").write_text(text)
    row = Extension(summary="x", like="t", requirements=("pyproject.toml",))
    for python in ("3.11", "3.13"):
        overridden = required(tmp_path, python, row).overrides
        assert (f"fast ; {NEVER_MARKER}" in overridden) == (python in left_out)


def test_project_wheel_is_a_requirement_by_path(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels/tool-1.0-py3-none-any.whl").write_bytes(b"")
    (tmp_path / "requirements.txt").write_text("./wheels/tool-1.0-py3-none-any.whl\n")
    row = Extension(summary="x", like="t", requirements=("requirements.txt",))
    (direct,) = required(tmp_path, "3.11", row).direct
    assert (direct.package, direct.path) == ("tool", "wheels/tool-1.0-py3-none-any.whl")


def test_added_requirement_refers_to_the_matrix_file(tmp_path: Path) -> None:
    row = Extension(summary="x", like="t", add=("tool>=1", "other @ https://a.example/other.whl"))
    result = required(tmp_path, "3.11", row)
    assert str(result.places["tool"]) == "matrix.yaml"
    assert [str(item.place) for item in result.direct] == ["matrix.yaml"]
