"""Fetches layer inputs that are missing from the cache, and reads the file tables of wheels."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from imgbuild import codec
from imgbuild.assemble import layer_contents, mirror_items, skeleton
from imgbuild.assemble.mirror import Mirror
from imgbuild.assemble.mirror_items import Input, inputs_by_hash, missing_inputs
from imgbuild.assemble.origins import Origins, fetch_from
from imgbuild.assemble.sources import LockSources
from imgbuild.audit.packages.published import published_facts
from imgbuild.cache.context import Context
from imgbuild.cache.store import Store
from imgbuild.cache.transfer import Transfer
from imgbuild.lock import published
from imgbuild.lock.lock_file import Lock
from imgbuild.lock.resolution import RegistryLayer, Wheel
from imgbuild.matrix.model import Matrix
from imgbuild.oci.layer import LayerRecord
from imgbuild.oci.tar import MemberKind
from imgbuild.plan.plan import Layer, VenvRecipe, WheelsRecipe, published_layers
from imgbuild.system import decoding
from imgbuild.values import Digest, Sha256, normalize_package, sha256
from imgbuild.wheel import conflicts

TABLES = "prefix-files"
BATCH_BYTES = 4_000_000_000  # limit of the inputs on disk at once if they are not kept
T = TypeVar("T")


class Inputs:
    """Provides the inputs of layers, and fetches missing inputs if this is allowed.

    `assemble.origins` defines the sources and their order.
    """

    def __init__(
        self,
        matrix: Matrix,
        context: Context,
        *,
        mirror: Mirror | None = None,
        kept_files: Collection[Sha256] = (),
    ) -> None:
        self.matrix = matrix
        self.context = context
        self.mirror = None if context.http.offline else mirror
        self._kept_files = kept_files

    def with_transfer(self, transfer: Transfer, *, kept_files: Collection[Sha256]) -> Inputs:
        """Return a copy that counts downloads in `transfer` and does not delete `kept_files`."""
        context = msgspec.structs.replace(self.context, transfer=transfer)
        return Inputs(self.matrix, context, mirror=self.mirror, kept_files=kept_files)

    @property
    def store(self) -> Store:
        """The cache that contains the inputs."""
        return self.context.store

    @property
    def offline(self) -> bool:
        """Whether requests to servers are forbidden."""
        return self.context.http.offline

    def fetch_inputs(self, lock: Lock, layers: Sequence[Layer]) -> list[Sha256]:
        """Fetch all inputs of `layers` into the store. Returns the hashes of the fetched files."""
        hashes = {file.sha256 for layer in layers for file in layer.recipe.inputs}
        return [item.sha256 for item in self.fetch_missing(lock, hashes) if not item.layer]

    def fetch_missing(self, lock: Lock, hashes: Collection[Sha256]) -> list[Input]:
        """Fetch the inputs of `lock` with the given hashes into the store.

        Returns the fetched inputs. Raises FetchFailed if an input is not available. Offline, inputs
        that need a server are rejected before anything is fetched.
        """
        named = inputs_by_hash(lock)
        lacked = missing_inputs((named[key] for key in sorted(hashes) if key in named), self.store)
        fetch_from(lacked, self._origins.input_origins(lock), self.store)
        return lacked

    def link_published_layers(self, lock: Lock, records: Mapping[Digest, LayerRecord]) -> None:
        """Fetch the published layers `records` (by ID) that `lock` extends into the store.

        Does nothing if the matrix defines no location of layers, or if the mirror is the only
        source and lacks the layers. The layers are then built from their inputs. Raises FetchFailed
        if a layer is missing at its origin, and IntegrityError if its content does not match the
        digest.
        """
        overlay = published.find_overlay(self.matrix, lock.target)
        ids = published_layers(lock) & records.keys()
        if overlay is not None and ids:
            layers = [_layer(records[key]) for key in sorted(ids)]
            fetch_from(layers, self._origins.published_layer_origins(overlay), self.store)

    @property
    def _origins(self) -> Origins:
        return Origins(self.matrix, self.context, self.mirror)

    def sources(self, lock: Lock) -> LockSources:
        """Return the sources of the files in `lock`, according to the current matrix."""
        return LockSources(lock, self.matrix, self.context)

    def drop_files(self, hashes: Iterable[Sha256]) -> None:
        """Remove files from the cache, except `kept_files`."""
        for key in hashes:
            if key not in self._kept_files:
                self.store.drop_file(key)

    def file_tables(
        self, lock: Lock, layers: Sequence[Layer]
    ) -> dict[str, tuple[conflicts.InstalledFile, ...]]:
        """Return the installed files of each package, with CRC and size.

        File tables are cached by the hash of the wheel.
        """
        tables = {}
        for layer in layers:
            recipe = layer.recipe
            if isinstance(recipe, WheelsRecipe):
                for wheel in recipe.wheels:
                    tables[wheel.package] = self._table(lock, layer, recipe, wheel)
            elif isinstance(recipe, VenvRecipe):
                members = tuple(
                    item
                    for item in skeleton.venv_members(recipe)
                    if item.kind is not MemberKind.FOLDER
                )
                tables["(the environment itself)"] = conflicts.installed_files(
                    members, recipe.prefix.strip("/")
                )
        return tables

    def read(self, layer: Layer) -> bool:
        """Return whether the file tables of all wheels in `layer` are known.

        Returns True if the layer has no wheels.
        """
        recipe = layer.recipe
        return not isinstance(recipe, WheelsRecipe) or all(
            self._stored_table(recipe, wheel) is not None for wheel in recipe.wheels
        )

    def _stored_table(
        self, recipe: WheelsRecipe, wheel: Wheel
    ) -> tuple[conflicts.InstalledFile, ...] | None:
        stored = self.store.fact(TABLES, _table_key(recipe, wheel))
        if stored is not None:
            return decoding.decode_json(stored, tuple[conflicts.InstalledFile, ...])
        published = published_facts().wheel(normalize_package(wheel.package), wheel.sha256)
        files = (
            published.installed_files(installation_key(recipe, wheel))
            if published is not None
            else None
        )
        if files is None:
            return None
        folder = f"lib/python{recipe.python}/site-packages"
        return tuple(
            conflicts.InstalledFile(posixpath.normpath(f"{folder}/{path}"), crc, size)
            for path, crc, size in files
        )

    def _table(
        self, lock: Lock, layer: Layer, recipe: WheelsRecipe, wheel: Wheel
    ) -> tuple[conflicts.InstalledFile, ...]:
        stored = self._stored_table(recipe, wheel)
        if stored is not None:
            return stored
        self.fetch_inputs(lock, [layer])
        members = layer_contents.wheel_members(recipe, wheel, self.store)
        table = conflicts.installed_files(members, recipe.prefix.strip("/"))
        self.store.put_fact(TABLES, _table_key(recipe, wheel), msgspec.json.encode(table))
        return table


def split_into_batches(
    items: Iterable[T], size: Callable[[T], int], *, bounded: bool
) -> Iterator[list[T]]:
    """Yield batches of at most BATCH_BYTES, or of a single larger item.

    If `bounded` is False, a single batch is returned.
    """
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


def installation_key(recipe: WheelsRecipe, wheel: Wheel) -> str:
    """Return a cache key for the installation of a wheel: prefix, Python, and excluded paths."""
    omit = recipe.omit.get(wheel.package, ())
    return codec.encode_compact([recipe.prefix, recipe.python, omit]).decode()


def _table_key(recipe: WheelsRecipe, wheel: Wheel) -> Sha256:
    omit = recipe.omit.get(wheel.package, ())
    return sha256(codec.encode_compact([wheel.sha256, recipe.prefix, recipe.python, omit]))


def _layer(record: LayerRecord) -> Input:
    return mirror_items.layer_input(
        RegistryLayer(digest=record.digest, size=record.size, diff_id=record.diff_id)
    )
