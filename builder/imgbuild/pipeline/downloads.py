"""What locking targets downloads: known before the first file is asked for."""

from __future__ import annotations

from collections.abc import Iterable

from imgbuild.assemble import folders, published_layers
from imgbuild.assemble import layers as assemble
from imgbuild.assemble.inputs import Inputs
from imgbuild.assemble.mirror_items import Input, inputs_of_all
from imgbuild.audit.packages.base import unread_debs
from imgbuild.audit.packages.library import Library
from imgbuild.audit.packages.package_set import wheels_of
from imgbuild.cache.transfer import Transfer
from imgbuild.lock.lock import Lock
from imgbuild.plan import records
from imgbuild.plan.plan import Layer, RegistryRecipe, plan
from imgbuild.project import Project
from imgbuild.values import Digest, Sha256


def transfer(project: Project, locks: Iterable[Lock], inputs: Inputs) -> Transfer:
    """All downloads that locking `locks` needs; a file of several locks counts once."""
    named: dict[Sha256, Input] = {}
    needed: set[Sha256] = set()
    for lock in locks:
        added = lock.extends.files.values() if lock.extends is not None else ()
        own = inputs_of_all(lock)
        for file in added:  # the user's own, beside the matrix
            own.pop(file.sha256, None)
        named |= own
        needed |= _needed(project, lock, inputs) & own.keys()
    store = inputs.store
    missing = {
        key: named[key].size
        for key in sorted(needed)
        if (store.blob(named[key].digest) if named[key].layer else store.file(key)) is None
    }
    return Transfer(missing, len(named), inputs.context.reporter)


def layers_to_read(project: Project, lock: Lock, inputs: Inputs) -> tuple[list[Layer], list[Layer]]:
    """The layers of `lock` whose digests are not known, and others whose files are not known."""
    layers = {layer.id: layer for arch in lock.arch for layer in plan(lock, arch).layers}
    known = {*records.read_records(project.images).layers, *_published(lock, inputs)}
    unknown = [layer for layer in layers.values() if layer.id not in known]
    rest = [layer for layer in layers.values() if layer.id in known and not inputs.read(layer)]
    return unknown, rest


def _published(lock: Lock, inputs: Inputs) -> set[Digest]:
    return set(published_layers.records(inputs.matrix, lock.target))


def _needed(project: Project, lock: Lock, inputs: Inputs) -> set[Sha256]:
    """The inputs of `lock` that are read, as far as the cache does not have what they say."""
    unknown, rest = layers_to_read(project, lock, inputs)
    needed: set[Sha256] = set()
    for layer in (*unknown, *rest, *folders.unread(lock, inputs.store)):
        needed.update(assemble.input_hashes(layer.recipe))
        if isinstance(layer.recipe, RegistryRecipe):
            needed.add(layer.recipe.layer.digest.removeprefix("sha256:"))
    with Library(inputs.store) as library:
        for resolution in lock.arch.values():
            needed |= {
                wheel.sha256
                for wheel in wheels_of(resolution)
                if library.book(wheel, "").kept_elves() is None
            }
            needed |= {deb.sha256 for deb in unread_debs(resolution.debs, inputs.store)}
    return needed
