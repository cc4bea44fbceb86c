"""The wheels of a target without its base: a resolution of Python packages alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from imgbuild import resolve
from imgbuild.fetch import Http
from imgbuild.matrix.model import Matrix
from imgbuild.resolution import Built, Wheel
from imgbuild.store import Store
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
    world = resolve.open_world(matrix, name, arch, python, root, store, http)
    resolve.refuse_pins(matrix, world)
    chosen = resolve.ask(world, store)
    resolve.tell(world, chosen)
    return resolve.lock_chosen(world, chosen, http)
