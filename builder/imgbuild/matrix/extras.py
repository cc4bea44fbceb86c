"""What a target requires beside its pins: the sets of `extras` it names, and its own entries."""

from __future__ import annotations

from imgbuild.matrix.model import Matrix, Target, Wanted


def requirements(matrix: Matrix, target: Target) -> dict[str, Wanted]:
    """Package → requirement of the sets that `target` names and of its `requires`.

    The target's own entry takes precedence, and a pin over both.
    """
    required: dict[str, Wanted] = {}
    for name in target.extras:
        required |= matrix.extras[name]
    return {**required, **target.requires}
