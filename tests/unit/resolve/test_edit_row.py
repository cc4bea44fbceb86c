"""Tests that edits of a row in a user's matrix keep comments, order and quotes."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.requirements import Requirement

from imgbuild.errors import InputError
from imgbuild.resolve import edit_row
from tests.support import extended

ROW = """\
targets:
  ours:   # the only one
    extends: small
    # what it is for
    summary: "our image"

    requires:
      einops: {spec: ">=0.8", reason: needed by the model}   # a comment
    pins:
      einx: "0.3.0"
    # the end
"""


@pytest.fixture
def matrix(tmp_path: Path) -> Path:
    head = extended.MATRIX.partition("targets:\n")[0]
    return extended.create_repository(tmp_path / "ours", head + ROW)


def add(matrix: Path, *texts: str, system: tuple[str, ...] = ()) -> list[str]:
    return edit_row.add_to_row(matrix, "ours", [Requirement(text) for text in texts], system)


def test_edit_of_a_row_changes_only_the_added_packages(matrix: Path) -> None:
    before = matrix.read_text().splitlines()
    changes = add(matrix, "ray[default]>=2.45", "x @ https://example.org/x.whl", system=("rsync",))
    assert changes == [
        "ray[default]>=2.45 added to ours",
        "x @ https://example.org/x.whl added to ours",
        "Debian package rsync added to ours",
    ]
    after = matrix.read_text().splitlines()
    added = [line.strip() for line in after if line not in before]
    assert added == [
        "add:", "- ray[default]>=2.45", "- x @ https://example.org/x.whl", "packages:", "- rsync",
    ]  # fmt: skip
    assert [line for line in after if line in before] == before


def test_edit_of_a_row_keeps_carriage_returns(matrix: Path) -> None:
    before = matrix.read_bytes().replace(b"\n", b"\r\n")
    matrix.write_bytes(before)
    add(matrix, "wandb")
    after = matrix.read_bytes()
    assert b"- wandb\r\n" in after
    assert after.count(b"\n") == after.count(b"\r\n") == before.count(b"\n") + 2
    edit_row.remove_from_row(matrix, "ours", ["wandb"], ())
    assert matrix.read_bytes() == before


def test_second_requirement_for_a_package_replaces_the_first(matrix: Path) -> None:
    assert add(matrix, "wandb") == ["wandb added to ours"]
    assert add(matrix, "WandB>=0.19") == ["wandb -> WandB>=0.19"]
    assert add(matrix, "einops==0.8.1") == ["einops>=0.8 -> einops==0.8.1"]
    assert add(matrix, "einx") == ["einx==0.3.0 -> einx"]
    text = matrix.read_text()
    assert "requires:" not in text
    assert "pins:" not in text
    assert text.count("wandb") + text.count("WandB") == 1


def test_packages_added_to_a_row_can_be_removed(matrix: Path) -> None:
    before = matrix.read_text()
    add(matrix, "wandb", "ray[default]", system=("rsync", "jq"))
    edit_row.remove_from_row(matrix, "ours", ["ray", "Wandb"], ["jq", "rsync"])
    assert matrix.read_text() == before
    assert edit_row.remove_from_row(matrix, "ours", ["einops", "einx"], []) == [
        "einops>=0.8 removed from ours",
        "einx==0.3.0 removed from ours",
    ]


def test_only_additions_of_the_row_can_be_removed(matrix: Path) -> None:
    before = matrix.read_bytes()
    with pytest.raises(InputError, match=r"torch is not an addition of targets\.ours") as caught:
        edit_row.remove_from_row(matrix, "ours", ["einops", "torch"], [])
    assert "the target adds einx" in str(caught.value.hint)
    with pytest.raises(InputError, match="the Debian package rsync is not an addition"):
        edit_row.remove_from_row(matrix, "ours", [], ["rsync"])
    assert matrix.read_bytes() == before


def test_edit_of_a_row_with_an_invalid_result_changes_no_file(matrix: Path) -> None:
    before = matrix.read_bytes()
    with pytest.raises(InputError, match="has 1 problem"):
        add(matrix, system=("Rsync",))
    assert matrix.read_bytes() == before


@pytest.mark.parametrize(
    "listed", ["    packages:\n      - jq\n", "    packages:\n    - jq\n", "    packages: [jq]\n"]
)
def test_edited_lists_in_a_row_keep_their_format(matrix: Path, listed: str) -> None:
    matrix.write_text(matrix.read_text().replace("    # the end\n", f"{listed}    # the end\n"))
    add(matrix, system=("rsync",))
    assert listed.rstrip("]\n") in matrix.read_text()
    edit_row.remove_from_row(matrix, "ours", [], ["rsync"])
    assert listed in matrix.read_text()
