"""The wheels of a target without its base: a resolution of Python packages alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from imgbuild.cache.download import Http
from imgbuild.cache.store import Store
from imgbuild.lock.resolution import Built, Wheel
from imgbuild.matrix.model import Matrix
from imgbuild.solve import solve
from imgbuild.values import Arch


def resolve_wheels(
    matrix: Matrix,
    name: str,
    arch: Arch,
    python: str,
    root: Callable[[], Path],
    store: Store,
    http: Http,
) -> tuple[tuple[Wheel, ...], tuple[Built, ...]]:
    """The wheels of target `name` on `arch` and `python` ("3.11.2"); those made from sdists."""
    world = solve.open_world(matrix, name, arch, python, root, store, http)
    solve.refuse_pins(matrix, world)
    chosen = solve.ask(world, store)
    solve.tell(world, chosen)
    return solve.lock_chosen(world, chosen, http)
