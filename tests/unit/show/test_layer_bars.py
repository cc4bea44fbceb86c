"""Tests drawing layers as bars: lengths, widths and truncated names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imgbuild.show import layer_bars
from imgbuild.show.layer_bars import EIGHTHS, LayerBar

BARS = [
    LayerBar(name="base", contents="186 packages", size=50_000_000),
    LayerBar(name="torch", contents="2.11.0", size=100_000_000),
    LayerBar(name="files", contents="-", size=1000),
    LayerBar(name="empty", contents="-", size=0),
]


def _length(line: str) -> float:
    return sum(EIGHTHS.index(sign) / 8 for sign in line if sign in EIGHTHS.strip())


def test_bar_length_is_proportional_to_layer_size() -> None:
    base, torch, files, empty = layer_bars.bar_lines(BARS, 100)
    assert _length(torch) == pytest.approx(2 * _length(base), abs=0.125)
    assert (_length(files), _length(empty)) == (1 / 8, 0)
    assert "50.0 MB" in base
    assert " 33 %" in base
    assert base.endswith("186 packages")


def test_bars_are_ascii_if_blocks_cannot_be_printed() -> None:
    lines = layer_bars.bar_lines(BARS, 100, blocks=False)
    assert "\n".join(lines).isascii()
    assert lines[1].count("#") == pytest.approx(2 * lines[0].count("#"), abs=1)
    assert [line.count("#") for line in lines[2:]] == [1, 0]


NAMES = st.text("abc-", min_size=1, max_size=60)


@given(
    st.lists(
        st.builds(LayerBar, name=NAMES, contents=NAMES, size=st.integers(0, 10**11)), max_size=6
    ),
    st.integers(70, 300),
)
def test_each_layer_is_shown_in_one_line_that_fits(layers: list[LayerBar], width: int) -> None:
    lines = layer_bars.bar_lines(layers, width)
    assert len(lines) == len(layers)
    assert all(len(line) <= width for line in lines)
