"""How much of what a job reads lies on disk at once."""

from __future__ import annotations

import pytest

from imgbuild.assemble.inputs import BATCH_BYTES, batches

GIGABYTE = 1_000_000_000


@pytest.mark.parametrize(
    ("sizes", "runs"),
    [
        ([], []),
        ([1, 2, 1], [[1, 2, 1]]),
        ([3, 2, 2, 1], [[3], [2, 2], [1]]),
        ([1, 9, 1], [[1], [9], [1]]),
    ],
)
def test_runs_hold_what_has_room_and_a_larger_one_stands_alone(
    sizes: list[int], runs: list[list[int]]
) -> None:
    assert BATCH_BYTES == 4 * GIGABYTE
    found = list(batches(sizes, lambda size: size * GIGABYTE, bounded=True))
    assert found == runs
    whole = list(batches(sizes, lambda size: size * GIGABYTE, bounded=False))
    assert whole == ([sizes] if sizes else [])
