"""Resolves the Python packages of a target without its base."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from imgbuild.cache.context import Context
from imgbuild.lock.resolution import BuiltWheel, Wheel
from imgbuild.matrix.model import Matrix
from imgbuild.solve import solve
from imgbuild.solve.problem import SolveProblem
from imgbuild.values import Arch


def resolve_wheels(
    matrix: Matrix,
    name: str,
    arch: Arch,
    python: str,
    root: Callable[[], Path],
    context: Context,
) -> tuple[tuple[Wheel, ...], tuple[BuiltWheel, ...]]:
    """The wheels of target `name` on `arch` and `python` ("3.11.2"), and the built wheels."""
    prepared = solve.prepare_target(SolveProblem(matrix, name, arch, context), python, root)
    solve.refuse_pins(prepared)
    chosen = solve.choose_packages(prepared)
    solve.report_age(prepared, chosen)
    return solve.lock_chosen(prepared, chosen)
