"""From a target of the matrix to its lock and seal on disk.

resolve → lock → plan → fetch → assemble (digests only) → conflicts → seal
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from imgbuild import assemble, codec, records, requirements
from imgbuild import lock as locks
from imgbuild import seal as seals
from imgbuild.assemble import Job
from imgbuild.console import console
from imgbuild.errors import IntegrityError, LockStale
from imgbuild.inputs import Inputs
from imgbuild.lock import Lock
from imgbuild.matrix.model import Matrix
from imgbuild.plan import Layer, plan
from imgbuild.project import Project
from imgbuild.records import Records
from imgbuild.resolve import resolve
from imgbuild.seal import Seal
from imgbuild.values import sha256
from imgbuild.workers import assemble_all

BATCH_BYTES = 4_000_000_000  # inputs on disk at once while sealing without keeping them


def lock_target(
    project: Project, matrix: Matrix, name: str, inputs: Inputs, *, processes: int, drop: bool
) -> tuple[Lock, Seal]:
    """Resolve, lock and seal target `name`; its files are written only when all of it succeeded.

    `drop` takes each downloaded file out of the cache again once its layer's digests are known.
    """
    resolutions = {}
    for arch in matrix.targets[name].arch:
        with console.step(f"resolving {name} for {arch}"):
            resolutions[arch] = resolve(matrix, name, arch, inputs.store, inputs.http)
    lock = locks.make_lock(matrix, name, resolutions)
    with console.step(f"sealing {name}"):
        known = _seal_layers(project, lock, inputs, processes=processes, drop=drop)
        refuse_conflicts(lock, inputs)
    sealed = seals.seal(lock, known.layers)
    write_locked(project, lock, sealed)
    return lock, sealed


def write_locked(project: Project, lock: Lock, sealed: Seal) -> None:
    """Write lock, requirements and, last, the seal: until then the old seal is not of this lock."""
    folder = project.images / lock.target
    codec.write(locks.lock_path(project.images, lock.target), lock)
    for name, text in requirement_files(lock).items():
        codec.write_bytes(folder / name, text.encode())
    for old in set(folder.glob("requirements-*.txt")) - {
        folder / name for name in requirement_files(lock)
    }:
        old.unlink()
    codec.write(seals.seal_path(project.images, lock.target), sealed)


def requirement_files(lock: Lock) -> dict[str, str]:
    """File name → text of every requirements file that follows from `lock`."""
    return {requirements.file_name(arch): requirements.text(lock, arch) for arch in lock.arch}


def read_current(project: Project, matrix: Matrix, name: str) -> tuple[Lock, Seal]:
    """Lock and seal of `name`; LockStale, with every reason, if the matrix says otherwise."""
    lock = locks.read_lock(project.images, name)
    reasons = list(locks.stale(lock, matrix))
    for file, text in requirement_files(lock).items():
        path = project.images / name / file
        if not path.exists() or path.read_bytes() != text.encode():
            reasons.append(f"{path} does not follow from the lock")
    if reasons:
        message = "\n  ".join((f"the lock of {name} is out of date:", *reasons))
        raise LockStale(message, hint=f"imgbuild lock --target {name}")
    return lock, seals.read_seal(project.images, lock)


def refuse_conflicts(lock: Lock, inputs: Inputs) -> None:
    """IntegrityError if two wheels of one image ship the same path with other bytes."""
    from imgbuild.wheel import conflicts

    for arch in lock.arch:
        tables = inputs.file_tables(lock, plan(lock, arch).layers)
        found = conflicts.find(tables)
        if found:
            lines = "\n  ".join(str(conflict) for conflict in found)
            message = f"{lock.target} {arch}: packages disagree about files:\n  {lines}"
            hint = "say in matrix.yaml, under `drop:`, which package loses the path, and why"
            raise IntegrityError(message, hint=hint)


def _seal_layers(
    project: Project, lock: Lock, inputs: Inputs, *, processes: int, drop: bool
) -> Records:
    # What is learned is saved batch by batch: an interrupted run goes on where it stopped.
    known = records.read_records(project.images)
    layers = {layer.id: layer for arch in lock.arch for layer in plan(lock, arch).layers}
    due = [layer for layer in layers.values() if layer.id not in known.layers]
    for batch in _batches(due, BATCH_BYTES if drop else None):
        fetched = inputs.fetch(lock, batch)
        jobs = [Job(layer=layer, record=None, keep=False) for layer in batch]
        made = assemble_all(jobs, inputs.store, processes=processes)
        found = Records(
            layers={item.id: item.record for item in made},
            wheels={key: fact for item in made for key, fact in item.wheels.items()},
        )
        # Another process may lock another target at the same time.
        with inputs.store.exclusive(f"records-{sha256(str(project.images).encode())}"):
            known = records.merge(records.read_records(project.images), [known, found])
            codec.write(records.records_path(project.images), known)
        inputs.file_tables(lock, batch)  # read while the files are here
        if drop:
            inputs.drop(fetched)
    return known


def _batches(layers: Sequence[Layer], limit: int | None) -> Iterator[list[Layer]]:
    """Layers in runs whose inputs fit `limit` bytes (a single larger one stands alone)."""
    batch: list[Layer] = []
    size = 0
    for layer in layers:
        added = assemble.input_size(layer.recipe)
        if batch and limit is not None and size + added > limit:
            yield batch
            batch, size = [], 0
        batch.append(layer)
        size += added
    if batch:
        yield batch
