"""The inputs of layers: fetches those that the store lacks, from a mirror or their sources."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TypeVar

import msgspec

from imgbuild import codec
from imgbuild.assemble import layers as assemble
from imgbuild.assemble import mirror_items, skeleton
from imgbuild.assemble.mirror import Mirror
from imgbuild.assemble.sources import LockSources, host_debs
from imgbuild.cache.context import Context
from imgbuild.cache.store import Store
from imgbuild.cache.transfer import Transfer
from imgbuild.errors import FetchFailed
from imgbuild.lock import extension
from imgbuild.lock.lock import Lock
from imgbuild.lock.resolution import Wheel
from imgbuild.matrix.model import Matrix
from imgbuild.oci.tar import MemberKind
from imgbuild.plan.plan import Layer, RegistryRecipe, VenvRecipe, WheelsRecipe
from imgbuild.registry import base_image
from imgbuild.values import Sha256, sha256
from imgbuild.wheel import conflicts

TABLES = "prefix-files"
BATCH_BYTES = 4_000_000_000  # inputs on disk at once where they are not kept
T = TypeVar("T")


class Inputs:
    """Everything that layers are made from, fetched when it is missing and allowed.

    `mirror` is asked first; no other server is asked if it is the only source, or if the context's
    HTTP client is offline.
    """

    def __init__(
        self,
        matrix: Matrix,
        context: Context,
        *,
        mirror: Mirror | None = None,
        spared: Collection[Sha256] = (),
    ) -> None:
        self.matrix = matrix
        self.context = context
        self.mirror = None if context.http.offline else mirror
        self._spared = spared

    def counting(self, transfer: Transfer, *, spared: Collection[Sha256]) -> Inputs:
        """These inputs, whose downloads count as part of `transfer`; `spared` are not dropped."""
        context = msgspec.structs.replace(self.context, transfer=transfer)
        return Inputs(self.matrix, context, mirror=self.mirror, spared=spared)

    @property
    def store(self) -> Store:
        """The cache."""
        return self.context.store

    @property
    def offline(self) -> bool:
        """Whether no server may be asked."""
        return self.context.http.offline

    def fetch(self, lock: Lock, layers: Sequence[Layer]) -> list[Sha256]:
        """Fetch every input of `layers` into the store; returns the hashes of those it lacked."""
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
        due -= added_files(lock, due, self.matrix, self.store)
        self.download(lock, due, blobs)
        return sorted(due)

    def download(self, lock: Lock, due: set[Sha256], blobs: Sequence[RegistryRecipe] = ()) -> None:
        """Fetch the files of `lock` with the hashes `due`, and layers of registries.

        Offline, FetchFailed before any request if a file needs a server.
        """
        if self.mirror is not None and (due or blobs):
            wanted = due | {recipe.layer.digest.removeprefix("sha256:") for recipe in blobs}
            fetched = self._from_mirror(self.mirror, lock, wanted)
            due = due - fetched
            blobs = [r for r in blobs if r.layer.digest.removeprefix("sha256:") not in fetched]
        if self.offline or (self.mirror is not None and self.mirror.only):
            self._refuse_far(lock, due, blobs)
        if due:
            self.sources(lock).fetch(due)
        for recipe in blobs:
            base_image.fetch_layers(recipe.image, [recipe.layer], self.context)

    def sources(self, lock: Lock) -> LockSources:
        """Where the files of `lock` are, under this matrix."""
        return LockSources(lock, self.matrix, self.context)

    def _from_mirror(self, mirror: Mirror, lock: Lock, wanted: set[Sha256]) -> set[Sha256]:
        """Fetch what the mirror has of `wanted`, or the inputs to build it; returns the hashes.

        It is asked for files of the user's own folders too: another machine may not have these.
        """
        named = mirror_items.inputs_of_all(lock)
        items = [named[key] for key in sorted(wanted) if key in named]
        found = mirror.bring(items, self.context, title=lock.target)
        fetched = {digest.removeprefix("sha256:") for digest in found}
        parts = self.sources(lock).locate(wanted - fetched).ingredients
        if parts:
            every = parts | {deb.sha256 for deb in host_debs(lock)}
            due = [named[key] for key in sorted(every) if self.store.file(key) is None]
            mirror.bring(due, self.context, title=f"{lock.target}, inputs of sdists")
        return fetched

    def _refuse_far(self, lock: Lock, due: set[Sha256], blobs: Sequence[RegistryRecipe]) -> None:
        """FetchFailed if a server would be needed that must not be used."""
        far = self.sources(lock).locate(due).remote
        if not far and not blobs:
            return
        if self.mirror is None:
            message = (
                f"{len(far) + len(blobs)} inputs of {lock.target} are not in {self.store.root}"
            )
            raise FetchFailed(message, hint="run once without --offline")
        named = mirror_items.inputs_of_all(lock)
        lacking = sorted(
            named[key].file
            for key in {*far, *(recipe.layer.digest.removeprefix("sha256:") for recipe in blobs)}
            if key in named
        )
        some = ", ".join(lacking[:3]) + (", …" if len(lacking) > 3 else "")
        message = (
            f"the mirror {self.mirror.repository} lacks {len(lacking)} inputs of {lock.target},"
            f" and no other source is allowed: {some}"
        )
        place = f"imgbuild registry mirror push {lock.target} {self.mirror.repository}"
        raise FetchFailed(message, hint=f"fill it on a machine that can reach the indexes: {place}")

    def drop(self, hashes: Iterable[Sha256]) -> None:
        """Remove files from the cache again, except the spared ones."""
        for key in hashes:
            if key not in self._spared:
                self.store.drop_file(key)

    def file_tables(
        self, lock: Lock, layers: Sequence[Layer]
    ) -> dict[str, tuple[conflicts.InstalledFile, ...]]:
        """Package → installed files with CRC and size, remembered by the wheel's hash."""
        tables = {}
        for layer in layers:
            recipe = layer.recipe
            if isinstance(recipe, WheelsRecipe):
                for wheel in recipe.wheels:
                    tables[wheel.package] = self._table(lock, layer, recipe, wheel)
            elif isinstance(recipe, VenvRecipe):
                own = tuple(
                    item
                    for item in skeleton.venv_members(recipe)
                    if item.kind is not MemberKind.FOLDER
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
    ) -> tuple[conflicts.InstalledFile, ...]:
        key = _table_key(recipe, wheel)
        stored = self.store.fact(TABLES, key)
        if stored is not None:
            return msgspec.json.decode(stored, type=tuple[conflicts.InstalledFile, ...])
        self.fetch(lock, [layer])
        members = assemble.wheel_members(recipe, wheel, self.store)
        table = conflicts.table(members, recipe.prefix.strip("/"))
        self.store.put_fact(TABLES, key, msgspec.json.encode(table))
        return table


def batches(items: Iterable[T], size: Callable[[T], int], *, bounded: bool) -> Iterator[list[T]]:
    """Items in batches of at most BATCH_BYTES (a larger one alone), or all in one batch."""
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


def added_files(lock: Lock, due: set[Sha256], matrix: Matrix, store: Store) -> set[Sha256]:
    """Put the files that `lock` adds into the store, those of `due`; returns their hashes.

    IntegrityError if a file has changed since it was locked.
    """
    found: set[Sha256] = set()
    if lock.extends is None or not due.intersection(
        file.sha256 for file in lock.extends.files.values()
    ):
        return found
    for path, data in extension.contents(lock, matrix).items():
        file = lock.extends.files[path]
        if file.sha256 not in due:
            continue
        with store.scratch() as scratch:
            (scratch / "file").write_bytes(data)
            store.add_file(scratch / "file", file.sha256)
        found.add(file.sha256)
    return found
