"""The cache and the ways to fill it: what a build reads, brought into the store.

Comes in: layers of a plan. Goes out: their files in the store, with the hashes that the lock says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import msgspec

from imgbuild import assemble, codec, extend_lock, skeleton, sources
from imgbuild.errors import FetchFailed
from imgbuild.fetch import Http
from imgbuild.lock import Lock
from imgbuild.matrix.model import Matrix
from imgbuild.oci import registry
from imgbuild.oci.tar import Kind
from imgbuild.plan import Layer, RegistryRecipe, VenvRecipe, WheelsRecipe
from imgbuild.resolution import Wheel
from imgbuild.store import Store
from imgbuild.values import Sha256, sha256
from imgbuild.wheel import conflicts

TABLES = "prefix-files"
BATCH_BYTES = 4_000_000_000  # inputs on disk at once where they are not kept
T = TypeVar("T")


class Inputs:
    """Everything that layers are made from, fetched when it is missing and allowed."""

    def __init__(self, matrix: Matrix, store: Store, http: Http, *, offline: bool) -> None:
        self.matrix = matrix
        self.store = store
        self.http = http
        self.offline = offline

    def fetch(self, lock: Lock, layers: Sequence[Layer]) -> list[Sha256]:
        """Bring every input of `layers` into the store; the hashes of those that were not there."""
        due = {
            key
            for layer in layers
            for key in assemble.input_hashes(layer.recipe)
            if self.store.file(key) is None
        }
        blobs = [
            layer.recipe
            for layer in layers
            if isinstance(layer.recipe, RegistryRecipe)
            and self.store.blob(layer.recipe.layer.digest) is None
        ]
        due -= extend_lock.bring(lock, due, self.matrix, self.store)
        self.download(lock, due, blobs)
        return sorted(due)

    def download(self, lock: Lock, due: set[Sha256], blobs: Sequence[RegistryRecipe] = ()) -> None:
        """Bring the files of `lock` with the hashes `due`, and layers of registries.

        Offline, only what needs no server; FetchFailed, before anything is done, for all else.
        """
        if self.offline and (due or blobs):
            far = sources.far(lock, due, self.matrix, self.store) if due else ()
            if far or blobs:
                message = (
                    f"{len(far) + len(blobs)} inputs of {lock.target} are not in {self.store.root}"
                )
                raise FetchFailed(message, hint="run once without --offline")
        if due:
            sources.fetch(lock, due, self.matrix, self.store, self.http)
        for recipe in blobs:
            registry.fetch_layers(recipe.image, [recipe.layer], self.store)

    def drop(self, hashes: Iterable[Sha256]) -> None:
        """Take files out of the cache again."""
        for key in hashes:
            self.store.drop_file(key)

    def file_tables(
        self, lock: Lock, layers: Sequence[Layer]
    ) -> dict[str, tuple[conflicts.Entry, ...]]:
        """Package → installed files with CRC and size, remembered by the wheel's hash."""
        tables = {}
        for layer in layers:
            recipe = layer.recipe
            if isinstance(recipe, WheelsRecipe):
                for wheel in recipe.wheels:
                    tables[wheel.package] = self._table(lock, layer, recipe, wheel)
            elif isinstance(recipe, VenvRecipe):
                own = tuple(
                    item for item in skeleton.venv_members(recipe) if item.kind is not Kind.FOLDER
                )
                tables["(the environment itself)"] = conflicts.table(own, recipe.prefix.strip("/"))
        return tables

    def read(self, layer: Layer) -> bool:
        """Whether the files of all wheels in `layer` are known; True where it has none."""
        recipe = layer.recipe
        return not isinstance(recipe, WheelsRecipe) or all(
            self.store.fact(TABLES, _table_key(recipe, wheel)) is not None
            for wheel in recipe.wheels
        )

    def _table(
        self, lock: Lock, layer: Layer, recipe: WheelsRecipe, wheel: Wheel
    ) -> tuple[conflicts.Entry, ...]:
        key = _table_key(recipe, wheel)
        stored = self.store.fact(TABLES, key)
        if stored is not None:
            return msgspec.json.decode(stored, type=tuple[conflicts.Entry, ...])
        self.fetch(lock, [layer])
        members = assemble.wheel_members(recipe, wheel, self.store)
        table = conflicts.table(members, recipe.prefix.strip("/"))
        self.store.put_fact(TABLES, key, msgspec.json.encode(table))
        return table


def batches(items: Iterable[T], size: Callable[[T], int], *, bounded: bool) -> Iterator[list[T]]:
    """Items in runs of at most BATCH_BYTES (a single larger one stands alone), or all in one."""
    batch: list[T] = []
    total = 0
    for item in items:
        added = size(item)
        if batch and bounded and total + added > BATCH_BYTES:
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += added
    if batch:
        yield batch


def _table_key(recipe: WheelsRecipe, wheel: Wheel) -> Sha256:
    omit = recipe.omit.get(wheel.package, ())
    return sha256(codec.compact([wheel.sha256, recipe.prefix, recipe.python, omit]))
