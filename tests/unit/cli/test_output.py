"""Tables on a terminal and in a pipe."""

from __future__ import annotations

import sys

import pytest

from imgbuild.cli._output import aligned

ROWS = [
    ("blob", "size", "digest"),
    ("layer", "4,110.5 MB", f"sha256:{'0123456789abcdef' * 4}"),
    ("config", "12.1 kB", "cu130-vllm0.31.0 on x86_64, mounted from another repository"),
]


@pytest.mark.parametrize("columns", [60, 80])
def test_a_table_fits_the_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = aligned(ROWS, right=frozenset({1}))
    assert max(map(len, lines)) == columns
    assert lines[1].startswith("layer   4,110.5 MB  sha256:0123456789abcdef")
    assert lines[1].endswith("…")


def test_a_table_in_a_pipe_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    monkeypatch.setenv("COLUMNS", "80")
    assert aligned(ROWS)[1].endswith(ROWS[1][2])
