"""Tests that the nearest name equals the result of `difflib.get_close_matches`."""

from __future__ import annotations

import difflib

from hypothesis import given
from hypothesis import strategies as st

from imgbuild.matrix.notes import nearest_choice

WORDS = st.text(alphabet="abc_", max_size=8)


@given(WORDS, st.lists(WORDS, max_size=12))
def test_nearest_name_is_the_most_similar_name(word: str, choices: list[str]) -> None:
    closest = difflib.get_close_matches(word, choices, n=1, cutoff=0.6)
    assert nearest_choice(word, choices) == (closest[0] if closest and closest[0] else None)
