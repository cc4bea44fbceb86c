"""Verifies an image without trusting anyone: builds its lock again and compares digests.

Inputs come from the cache or are downloaded by the lock's hashes; every layer is made again and
none is taken from the verified image. Only the layers of a registry base cannot be made: they are
downloaded by their digests.
"""

from __future__ import annotations

from collections.abc import Sequence

from imgbuild.cache.store import Store
from imgbuild.pipeline import rebuild as rebuilding
from imgbuild.pipeline.rebuild import RebuildOrigin
from imgbuild.pipeline.session import Options
from imgbuild.plan.plan import RegistryRecipe, plan
from imgbuild.values import Arch
from imgbuild.verify.checks import Failed
from imgbuild.verify.expected_lock import ExpectedLock


def rebuild(held: ExpectedLock, arches: Sequence[Arch], *, processes: int, offline: bool) -> str:
    """Build the image on `arches` again; IntegrityError or Failed if another one comes out."""
    origin = RebuildOrigin(
        carried=held.carried, arches=tuple(arches), place=held.place, folder=held.root
    )
    options = Options(jobs=processes, offline=offline, verify=True)
    with Store.open().scratch() as folder:
        built = rebuilding.build(origin, (), folder / "layout", options)
    for arch in arches:
        due = held.due.manifest(arch)
        if built.arch[arch] != due:
            message = f"{arch}: {built.arch[arch]} was built; digests.json has {due}"
            raise Failed(message)
    return f"{_layers(held, arches)} for {', '.join(arches)}: {built.digest}"


def _layers(held: ExpectedLock, arches: Sequence[Arch]) -> str:
    """How many layers were made, and how many of a base were downloaded."""
    layers = {
        layer.id: isinstance(layer.recipe, RegistryRecipe)
        for arch in arches
        for layer in plan(held.carried.lock, arch).layers
    }
    had = sum(layers.values())
    made = f"{len(layers) - had} layers made again"
    return f"{made}, {had} of the base had by their digests," if had else made
