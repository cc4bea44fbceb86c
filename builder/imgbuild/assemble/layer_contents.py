"""Builds one layer of a plan, and writes it as a blob to the cache.

The digests of a layer can also be computed without writing a blob. `workers` builds layers in
parallel.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from imgbuild.assemble import skeleton
from imgbuild.cache.store import Store
from imgbuild.cpython import python_archive
from imgbuild.deb import debian_root
from imgbuild.errors import FetchFailed, InputError, IntegrityError
from imgbuild.lock.resolution import Wheel
from imgbuild.oci.layer import LayerRecord, write_layer
from imgbuild.oci.tar import LayerMember
from imgbuild.plan.plan import (
    AddedDebsRecipe,
    AddedFilesRecipe,
    DebianRecipe,
    FilesRecipe,
    Layer,
    PythonRecipe,
    Recipe,
    RegistryRecipe,
    VenvRecipe,
    WheelsRecipe,
)
from imgbuild.plan.records import WheelFacts
from imgbuild.system import decoding
from imgbuild.values import Digest, Sha256
from imgbuild.wheel import archive, install

FACT = "base-record"


class LayerJob(msgspec.Struct, frozen=True, kw_only=True):
    """A layer to build.

    If `record` is set, the bytes of the layer must match the record. If `keep` is set, the blob is
    added to the store. Otherwise, only the digests are computed. If `verify` is set, the contents
    of inputs are decompressed and checked even if `record` is set.
    """

    layer: Layer
    record: LayerRecord | None
    keep: bool
    verify: bool = False


class BuiltLayer(msgspec.Struct, frozen=True, kw_only=True):
    """A built layer, and the wheels whose contents were checked during the build."""

    id: Digest
    record: LayerRecord
    wheels: dict[Sha256, WheelFacts]


def make_layer(job: LayerJob, store: Store, advance: Callable[[int], None]) -> BuiltLayer:
    """Build a layer in this process.

    `advance` is called with the number of bytes after each read.
    """
    recipe = job.layer.recipe
    if isinstance(recipe, RegistryRecipe):
        layer = recipe.layer
        record = LayerRecord(
            digest=layer.digest, size=layer.size, diff_id=layer.diff_id, unpacked=0
        )
        return BuiltLayer(id=job.layer.id, record=record, wheels={})
    trusted = job.record.diff_id if job.record and not job.verify else None
    with store.scratch() as scratch, contextlib.ExitStack() as stack:
        members = _members(recipe, store, scratch)
        blob = scratch / "blob"
        sink = stack.enter_context(blob.open("wb")) if job.keep else None
        record = write_layer(members, sink, diff_id=trusted, advance=advance)
        if job.record and (record.digest, record.diff_id) != (
            job.record.digest,
            job.record.diff_id,
        ):
            message = (
                f"layer {job.layer.name}: {record.digest} was built, but the digest in "
                f"images/layers.json is {job.record.digest}"
            )
            hint = (
                "to check the inputs for damage, run `imgbuild cache verify`; if you changed "
                "imgbuild and the bytes differ as intended, increase the format number of "
                "the layer"
            )
            raise IntegrityError(message, hint=hint)
        if sink is not None:
            sink.close()
            store.add_blob(blob, record.digest)
    if job.record is None and isinstance(recipe, DebianRecipe):
        store.put_fact(FACT, job.layer.id, msgspec.json.encode(record))
    facts = {} if job.record or not isinstance(recipe, WheelsRecipe) else _facts(recipe, store)
    return BuiltLayer(id=job.layer.id, record=record, wheels=facts)


def base_record(layer: Layer, store: Store) -> LayerRecord | None:
    """Return the record that `make_layer` cached for a Debian base, or None for other layers."""
    stored = store.fact(FACT, layer.id) if isinstance(layer.recipe, DebianRecipe) else None
    return None if stored is None else decoding.decode_json(stored, LayerRecord)


def _members(recipe: Recipe, store: Store, scratch: Path) -> Sequence[LayerMember]:
    match recipe:
        case DebianRecipe():
            return debian_root.base_members(recipe, input_paths(recipe, store), scratch)
        case AddedDebsRecipe():
            return debian_root.added_members(recipe, input_paths(recipe, store), scratch)
        case AddedFilesRecipe():
            contents = {
                path: require_file(store, file.sha256, file.file).read_bytes()
                for path, file in recipe.files.items()
            }
            return skeleton.added_members(recipe, contents)
        case WheelsRecipe():
            labels = {wheel.sha256: wheel.file for wheel in recipe.wheels}
            parts = [(wheel.sha256, wheel_members(recipe, wheel, store)) for wheel in recipe.wheels]
            return install.join_wheels(parts, labels=labels)
        case PythonRecipe():
            return python_archive.archive_members(
                require_file(store, recipe.archive.sha256, recipe.archive.file),
                recipe.archive.file,
                prefix=recipe.prefix,
                python=recipe.python,
                spool=scratch / "python",
            )
        case VenvRecipe():
            return skeleton.venv_members(recipe)
        case FilesRecipe():
            return skeleton.files_members(recipe)
        case RegistryRecipe():  # copied unchanged: make_layer never reads its members
            message = f"{recipe.image} is not built from files"
            raise InputError(message)


def _facts(recipe: WheelsRecipe, store: Store) -> dict[Sha256, WheelFacts]:
    facts = {}
    for wheel in recipe.wheels:
        read = archive.read_wheel(require_file(store, wheel.sha256, wheel.file), label=wheel.file)
        facts[wheel.sha256] = WheelFacts(
            file=wheel.file,
            files=len(read.members),
            unpacked=sum(member.size for member in read.members.values()),
        )
    return facts


def wheel_members(recipe: WheelsRecipe, wheel: Wheel, store: Store) -> tuple[LayerMember, ...]:
    """Return the files that a wheel adds to a layer, without files that the recipe excludes."""
    path = require_file(store, wheel.sha256, wheel.file)
    install_ = functools.partial(
        install.installed_members,
        path,
        prefix=recipe.prefix,
        python=recipe.python,
        label=wheel.file,
    )
    patterns = recipe.omit.get(wheel.package)
    if not patterns:
        return install_()
    below = recipe.prefix.strip("/")
    omitted = {
        member.path
        for member in install_()
        for pattern in patterns
        if fnmatch.fnmatchcase(member.path, f"{below}/{pattern}")
    }
    return install_(omit=frozenset(omitted))


def input_paths(recipe: Recipe, store: Store) -> dict[Sha256, Path]:
    """Return the path in the store of each file that a recipe reads.

    Raises FetchFailed if a file is missing.
    """
    return {file.sha256: require_file(store, file.sha256, file.file) for file in recipe.inputs}


def require_file(store: Store, sha256: Sha256, name: str) -> Path:
    """Return the path of the file with the hash `sha256`.

    Raises FetchFailed, with `name` in the message, if the file is missing.
    """
    path = store.file(sha256)
    if path is None:
        message = f"{name} (sha256 {sha256}) is not in the cache {store.root}"
        raise FetchFailed(
            message,
            hint="run without --offline, or fetch the file on a machine with network access",
        )
    return path
