"""Tests that a test over a table checks every row and lists all failing rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.rows import each_row


@each_row("number", [1, 2, pytest.param(3, id="three")])
def is_two(number: int) -> None:
    with pytest.raises(ZeroDivisionError):
        1 / (number - 2)


@each_row(("left", "right"), [(1, 2), (2, 2)])
def are_equal(left: int, right: int) -> None:
    assert left == right


def test_error_of_a_test_with_rows_lists_every_failing_row() -> None:
    with pytest.raises(AssertionError, match=r"2 of 3 rows fail:\nrow 1: Failed: .*\nrow three: "):
        is_two()
    with pytest.raises(AssertionError, match="1 == 2") as caught:
        are_equal()
    assert caught.value.__notes__ == ["row: 1, 2"]


@each_row("number", [1, 2])
@each_row("letter", ["a", "b"])
def test_each_row_of_a_test_has_an_empty_folder(letter: str, number: int, tmp_path: Path) -> None:
    assert list(tmp_path.iterdir()) == []
    (tmp_path / f"{letter}{number}").touch()
