"""Computes the total download size for the progress bar of `imgbuild lock`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from imgbuild.assemble import folders
from imgbuild.assemble.inputs import Inputs
from imgbuild.assemble.layer_contents import base_record
from imgbuild.assemble.mirror_items import Input, inputs_by_hash, missing_inputs
from imgbuild.audit.packages.base import is_read, unread_debs
from imgbuild.audit.packages.library import Library
from imgbuild.cache.transfer import Transfer, partial_bytes
from imgbuild.lock.lock_file import Lock
from imgbuild.lock.resolution import installed_wheels
from imgbuild.matrix.project_paths import Project
from imgbuild.plan import records
from imgbuild.plan.plan import Layer, create_plan, published_layers
from imgbuild.plan.records import RecordedLayers
from imgbuild.values import Digest, Sha256


class DownloadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The files to download for several locks.

    `later` maps each target to the files that targets locked after it need.
    """

    transfer: Transfer
    missing: frozenset[Sha256]
    later: dict[str, frozenset[Sha256]]


def plan_downloads(project: Project, locks: Sequence[Lock], inputs: Inputs) -> DownloadPlan:
    """Plan the downloads for `locks` in this order. Each file is counted once."""
    named: dict[Sha256, Input] = {}
    needed: dict[str, set[Sha256]] = {}
    seen: set[Digest] = set()  # layers read for an earlier one of `locks`
    for lock in locks:
        lock_inputs = inputs_by_hash(lock)
        added = lock.extends.files.values() if lock.extends is not None else ()
        for file in added:  # the user's files next to the matrix
            lock_inputs.pop(file.sha256, None)
        layers = [layer for layer in _unread_layers(project, lock, inputs) if layer.id not in seen]
        seen.update(layer.id for layer in layers)
        # Facts read from a complete file for an earlier lock are cached, so that only layers reread
        # it.
        once = _unread_hashes(lock, inputs).difference(*needed.values())
        read = {file.sha256 for layer in layers for file in layer.recipe.inputs}
        needed[lock.target] = (read | once) & lock_inputs.keys()
        named |= lock_inputs
    store = inputs.store
    every = sorted(set().union(*needed.values()))
    missing = {
        item.sha256: item.size for item in missing_inputs((named[key] for key in every), store)
    }
    later = {
        lock.target: frozenset[Sha256]().union(*(needed[after.target] for after in locks[number:]))
        for number, lock in enumerate(locks, start=1)
    }
    transfer = Transfer(
        missing, len(named), inputs.context.reporter, here=partial_bytes(store, missing)
    )
    return DownloadPlan(transfer=transfer, missing=frozenset(missing), later=later)


def recorded_layers(project: Project, lock: Lock, inputs: Inputs) -> RecordedLayers:
    """Return the layer records of the project, and cached records for the base of `lock`.

    The records of a published target are in its lock.
    """
    project_records = records.read_records(project.images)
    others = {*project_records.layers, *published_layers(lock)}
    bases = {
        layer.id: record
        for arch in lock.arch
        for layer in create_plan(lock, arch).layers
        if layer.id not in others and (record := base_record(layer, inputs.store)) is not None
    }
    return records.merge_records(project_records, [RecordedLayers(layers=bases)])


def layers_to_read(project: Project, lock: Lock, inputs: Inputs) -> tuple[list[Layer], list[Layer]]:
    """Return the layers of `lock` with unknown digests, and those with unknown file tables."""
    layers = {layer.id: layer for arch in lock.arch for layer in create_plan(lock, arch).layers}
    recorded = {*recorded_layers(project, lock, inputs).layers, *published_layers(lock)}
    unknown = [layer for layer in layers.values() if layer.id not in recorded]
    rest = [layer for layer in layers.values() if layer.id in recorded and not inputs.read(layer)]
    return unknown, rest


def _unread_layers(project: Project, lock: Lock, inputs: Inputs) -> list[Layer]:
    unknown, rest = layers_to_read(project, lock, inputs)
    return [*unknown, *rest, *folders.find_unread_layers(lock, inputs.store)]


def _unread_hashes(lock: Lock, inputs: Inputs) -> set[Sha256]:
    """Return the wheels and Debian packages of `lock` that the audit must read as whole files."""
    hashes: set[Sha256] = set()
    with Library(inputs.store) as library:
        for resolution in lock.arch.values():
            library_wheels = [library.wheel(wheel, "") for wheel in installed_wheels(resolution)]
            hashes |= {
                library_wheel.wheel.sha256
                for library_wheel in library_wheels
                if library_wheel.stored_elf_facts() is None
            }
            hashes |= {deb.sha256 for deb in unread_debs(resolution.debs, inputs.store)}
            if resolution.python and not is_read(resolution.python, inputs.store):
                hashes.add(resolution.python.sha256)
    return hashes
