"""Tests tables and lines on a terminal and in a pipe."""

from __future__ import annotations

import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imgbuild.cli._output import align_columns, fold_lines

DIGEST = f"sha256:{'0123456789abcdef' * 4}"
ROWS = [
    ("blob", "size", "digest"),
    ("layer", "4,110.5 MB", DIGEST),
    ("config", "12.1 kB", "cu130-vllm0.31.0 on x86_64, mounted from another repository, of /team"),
]
WORD = st.text(st.sampled_from("abc-/:."), min_size=1, max_size=90)
CELL = st.lists(WORD, max_size=6).map(" ".join)


def test_cell_that_is_too_long_is_printed_below_its_row() -> None:
    assert align_columns(ROWS, right=frozenset({1}), width=80) == [
        "blob          size  digest",
        "layer   4,110.5 MB",
        f"  {DIGEST}",
        "config     12.1 kB",
        "  cu130-vllm0.31.0 on x86_64, mounted from another repository, of /team",
    ]


def test_words_wrap_within_their_column() -> None:
    rows = [("a", "x" * 20, "one two three four five"), ("b", "y", "six")]
    assert align_columns(rows, width=40) == [
        "a  " + "x" * 20 + "  one two three",
        " " * 25 + "four five",
        "b  y" + " " * 21 + "six",
    ]


def test_first_column_that_is_too_long_is_printed_above_its_row() -> None:
    rows = [("image", "MB", "digest"), (f"registry/{'a' * 50}:first,second,third", "1", DIGEST)]
    assert align_columns(rows, right=frozenset({1}), width=76) == [
        "image",
        "  MB  digest",
        f"registry/{'a' * 50}:first,second,",
        "third",
        "   1",
        f"    {DIGEST}",
    ]


def test_words_wrap_at_hyphens_if_the_column_is_too_narrow() -> None:
    rows = [("layer", "digest"), ("nvidia-cutlass-dsl-libs-cu13", "0123456789ab")]
    assert align_columns(rows, width=36) == [
        "layer                   digest",
        "nvidia-cutlass-dsl-     0123456789ab",
        "libs-cu13",
    ]


@given(
    st.integers(1, 4).flatmap(
        lambda number: st.lists(st.tuples(*[CELL] * number), min_size=1, max_size=4)
    ),
    st.integers(24, 120),
)
def test_every_table_line_fits_and_no_text_is_lost(rows: list[tuple[str, ...]], width: int) -> None:
    lines = align_columns(rows, width=width)
    assert max(map(len, lines)) <= width
    expected = sorted("".join(cell for row in rows for cell in row if cell).replace(" ", ""))
    assert sorted("".join(lines).replace(" ", "")) == expected
    whole = re.compile(rf"[^\s,/@-]{{1,{width - 6}}}")
    words = {word for row in rows for cell in row for word in cell.split() if whole.fullmatch(word)}
    assert words <= {word for line in lines for word in line.split()}


def test_output_to_pipe_is_not_truncated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    monkeypatch.setenv("COLUMNS", "80")
    assert align_columns(ROWS)[1].endswith(ROWS[1][2])
    assert fold_lines(["word " * 40]) == ["word " * 40]


def test_lines_wrap_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "20")
    assert fold_lines(["  error: one two three", "short", f"name {DIGEST}"]) == [
        "  error: one two",
        "      three",
        "short",
        "name",
        f"    {DIGEST}",
    ]
