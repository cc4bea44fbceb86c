"""Finds the modes and owners of folders in the base image to which files are added.

The lock records modes and owners that are not the default. Otherwise, a layer with a file below
/root would make /root readable by every user.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from imgbuild import codec
from imgbuild.assemble.inputs import Inputs
from imgbuild.assemble.layer_contents import input_paths
from imgbuild.cache.facts_file import installed_facts
from imgbuild.cache.store import Store
from imgbuild.deb import debian_root
from imgbuild.errors import InputError
from imgbuild.lock.lock_file import AddedFolder, Extends, Lock
from imgbuild.oci.merged import MergedTree
from imgbuild.oci.reader import LayerFile, TarReader, open_inflated
from imgbuild.plan.plan import (
    AddedDebsRecipe,
    DebianRecipe,
    Layer,
    PythonRecipe,
    RegistryRecipe,
    base_plan,
    create_plan,
)
from imgbuild.system import decoding
from imgbuild.values import Arch

FACT = "folders"
FOLDER = "folder"
DEFAULT_FOLDER = AddedFolder(mode="0755")
SETGID = 0o2000


class BasePath(msgspec.Struct, frozen=True, kw_only=True):
    """A path in the base: the type and, for a folder, the mode and owner."""

    path: str
    kind: str
    folder: AddedFolder


def complete_lock(lock: Lock, inputs: Inputs) -> Lock:
    """Add the base folders of added files that have a non-default mode or owner to `lock`.

    Inputs of the base are fetched unless the cache has facts about them. Raises InputError if a
    file or link would replace a folder, or if a parent is not a folder or is a setgid folder.
    """
    if lock.extends is None or not (lock.extends.files or lock.extends.links):
        return lock
    extends = lock.extends
    arches = {
        arch: msgspec.structs.replace(added, folders=_folders(lock, extends, arch, inputs))
        for arch, added in extends.arch.items()
    }
    return msgspec.structs.replace(lock, extends=msgspec.structs.replace(extends, arch=arches))


def _folders(lock: Lock, extends: Extends, arch: Arch, inputs: Inputs) -> dict[str, AddedFolder]:
    layers = base_plan(create_plan(lock, arch)).layers
    above, added_paths = _paths(extends)
    key = _key(layers, above, added_paths)
    cached = inputs.store.fact(FACT, key)
    if cached is None:
        paths: Iterable[BasePath] | None = _published_base_paths(layers)
        if paths is None:
            inputs.fetch_inputs(lock, layers)
            paths = _base_paths(layers, inputs.store)
        base_paths = _base_folders(paths, above, added_paths)
        inputs.store.put_fact(FACT, key, msgspec.json.encode(base_paths))
    else:
        base_paths = decoding.decode_json(cached, tuple[BasePath, ...])
    for seen in base_paths:
        _refuse_conflicts(lock.target, extends, seen)
    return {f"/{seen.path}": seen.folder for seen in base_paths if seen.folder != DEFAULT_FOLDER}


def find_unread_layers(lock: Lock, store: Store) -> list[Layer]:
    """Return the layers of the base that `complete_lock` needs to read."""
    extends = lock.extends
    if extends is None or not (extends.files or extends.links):
        return []
    bases = [base_plan(create_plan(lock, arch)).layers for arch in extends.arch]
    uncached = [
        layers
        for layers in bases
        if store.fact(FACT, _key(layers, *_paths(extends))) is None
        and _published_base_paths(layers) is None
    ]
    return [layer for layers in uncached for layer in layers]


def published_paths(layers: Sequence[Layer], store: Store) -> bytes:
    """Return all paths of a base as a fact for the facts file. The store must have the layers."""
    paths = [
        path if path.kind == FOLDER else msgspec.structs.replace(path, folder=DEFAULT_FOLDER)
        for path in _base_paths(layers, store)
    ]
    return msgspec.msgpack.encode(
        [
            (path.path, path.kind, path.folder.mode, path.folder.uid, path.folder.gid)
            for path in sorted(paths, key=lambda path: path.path)
        ]
    )


def _published_base_paths(layers: Sequence[Layer]) -> list[BasePath] | None:
    data = installed_facts().fact(FACT, base_key(layers))
    if data is None:
        return None
    rows = decoding.decode_msgpack(data, list[tuple[str, str, str, int, int]])
    return [
        BasePath(path=path, kind=kind, folder=AddedFolder(mode=mode, uid=uid, gid=gid))
        for path, kind, mode, uid, gid in rows
    ]


def base_key(layers: Sequence[Layer]) -> str:
    """Return the cache key of the paths of a base image with `layers`."""
    return codec.encode_compact([layer.id for layer in layers]).decode()


def _paths(extends: Extends) -> tuple[list[str], set[str]]:
    placed = sorted((*extends.files, *extends.links))
    above = sorted({folder for path in placed for folder in _parent_folders(path)})
    return above, {path.strip("/") for path in placed}


def _key(layers: Sequence[Layer], above: Sequence[str], placed: set[str]) -> str:
    return codec.encode_compact([[layer.id for layer in layers], above, sorted(placed)]).decode()


def _base_folders(
    every: Iterable[BasePath], above: Sequence[str], placed: set[str]
) -> tuple[BasePath, ...]:
    base_folders: dict[str, BasePath] = {}
    for seen in every:
        if seen.path in above or (seen.path in placed and seen.kind == FOLDER):
            base_folders[seen.path] = seen
        for path in placed & set(_parent_folders(seen.path)):
            base_folders.setdefault(path, BasePath(path=path, kind=FOLDER, folder=DEFAULT_FOLDER))
    return tuple(base_folders[path] for path in sorted(base_folders))


def _refuse_conflicts(target: str, extends: Extends, seen: BasePath) -> None:
    place = f"/{seen.path}"
    added = {**extends.links, **{path: file.file for path, file in extends.files.items()}}
    path = min(path for path in added if path == place or path.startswith(f"{place}/"))
    field = "files" if path in extends.files else "links"
    message = f"targets.{target}.{field}.{path} cannot be added: {place}"
    if path == place:
        message = f"{message} is a folder in the base image"
        raise InputError(message, hint=f"write {place}/{posixpath.basename(added[path])}")
    if seen.kind != FOLDER:
        message = f"{message} is not a folder in the base image: {seen.kind}"
        raise InputError(
            message, hint="specify the path of the folder, not of a link to the folder"
        )
    if int(seen.folder.mode, 8) & SETGID:
        message = (
            f"{message} is a setgid folder (mode {seen.folder.mode}), in which files inherit "
            "the group"
        )
        raise InputError(
            message,
            hint="choose another folder, because imgbuild sets the group of each file in a layer",
        )


def _parent_folders(path: str) -> Iterator[str]:
    path = path.strip("/")
    while path := path.rpartition("/")[0]:
        yield path


def _base_paths(layers: Sequence[Layer], store: Store) -> Iterable[BasePath]:
    """Yield every path of a Debian base with added packages, or of a registry image.

    Paths of a standalone Python are omitted, because files cannot be added to its folder.
    """
    layers = [layer for layer in layers if not isinstance(layer.recipe, PythonRecipe)]
    last = layers[-1].recipe
    if isinstance(last, DebianRecipe):
        yield from _package_paths(last, store)
    elif isinstance(last, AddedDebsRecipe):
        both = (*last.base.debs, *last.debs)
        yield from _package_paths(msgspec.structs.replace(last.base, debs=both), store)
    else:
        recipes = [layer.recipe for layer in layers if isinstance(layer.recipe, RegistryRecipe)]
        blobs = ((store.blob(recipe.layer.digest), recipe.layer.diff_id) for recipe in recipes)
        yield from _layer_paths(
            [LayerFile(path=path, diff_id=diff_id) for path, diff_id in blobs if path is not None]
        )


def _package_paths(recipe: DebianRecipe, store: Store) -> Iterator[BasePath]:
    paths = input_paths(recipe, store)
    with store.scratch() as scratch:
        for each in debian_root.base_members(recipe, paths, scratch):
            folder = AddedFolder(mode=f"{each.mode:04o}", uid=each.uid, gid=each.gid)
            yield BasePath(path=each.path, kind=each.kind.name.lower(), folder=folder)


def _layer_paths(layers: Sequence[LayerFile]) -> Iterator[BasePath]:
    tree = MergedTree()
    for layer in layers:
        with open_inflated(layer) as stream:
            tree.add(TarReader(stream, str(layer.path)))
    for path, node in tree.iterate_paths():
        folder = AddedFolder(mode=f"{node.mode:04o}", uid=node.uid, gid=node.gid)
        yield BasePath(path=path.strip("/"), kind=node.kind, folder=folder)
