"""Writes a tried row with its lock, digests, Dockerfile and records into a project.

New files are written with temporary names. Then the folder of the row is renamed, and finally the
matrix. Therefore, after an interruption, the matrix is unchanged or contains the complete row.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from imgbuild import codec
from imgbuild.assemble.inputs import Inputs
from imgbuild.attest.sbom import packages
from imgbuild.errors import ImgbuildError, InputError
from imgbuild.learn.loop import add_constraints
from imgbuild.lock import lock_file
from imgbuild.lock.lock_file import Lock
from imgbuild.lock.resolution import installed_wheels
from imgbuild.matrix import constraints, load, tried_updates
from imgbuild.matrix.constraints import Constraint
from imgbuild.matrix.project_paths import Project
from imgbuild.matrix.tried_updates import DerivedRow
from imgbuild.matrix.yaml_nodes import read_content
from imgbuild.plan import records
from imgbuild.plan.plan import create_plan
from imgbuild.plan.records import RecordedLayers
from imgbuild.render import write
from imgbuild.system.folder import OpenFolder, remove_folder
from imgbuild.update import row_text
from imgbuild.update.trial import TriedRow
from imgbuild.values import Sha256, sha256


def require_regular(project: Project) -> None:
    """Raise InputError if an output file of an update is a link or a folder."""
    with OpenFolder.open(project.root) as root:
        images = project.images.relative_to(project.root).as_posix()
        for name in (project.matrix.name, f"{images}/{tried_updates.FILE}"):
            root.require_file(name)


def place_row(
    project: Project, scratch: Project, tried: TriedRow, derived_row: DerivedRow, inputs: Inputs
) -> tuple[Constraint, ...]:
    """Write the row `tried`, described by `derived_row`, from the scratch folder into the project.

    Return the learned constraints that were not written because a lock of the project violates
    them.
    """
    row = tried.row
    with inputs.store.hold_lock(f"update-{sha256(str(project.images).encode())}"):
        before = read_content(project.matrix)
        matrix = load.parse_matrix(before, str(project.matrix))
        if row.name in matrix.targets:
            message = f"{project.matrix} already has a row {row.name}"
            raise InputError(message, hint="run the same command again")
        base_of = matrix.targets[derived_row.of].base
        text = row_text.insert_row(before, str(project.matrix), derived_row.of, row, base_of)
        whole = load.locate_indexes(load.parse_matrix(text, str(project.matrix)), project.root)
        write.keep_new(scratch, whole, [row.name], inputs.context.reporter)
        left_out = _merge_scratch(project, scratch, tried, inputs)
        updates = tried_updates.read_updates(project.images).add_row(
            row.name, derived_row, row.target.pins
        )
        tried_updates.write_updates(
            project.images, updates, project.root
        )  # without the row it has no effect
        _place_folder(project, scratch, row.name, text)
    write.keep_new(project, whole, [row.name], inputs.context.reporter)
    return left_out


def _merge_scratch(
    project: Project, scratch: Project, tried: TriedRow, inputs: Inputs
) -> tuple[Constraint, ...]:
    learned, left_out = _learned_constraints(project, scratch, tried)
    if learned:
        add_constraints(project.images, learned, inputs.store)
    with inputs.store.hold_lock(f"records-{sha256(str(project.images).encode())}"):
        merged = records.merge_records(
            records.read_records(project.images), [_records(scratch, tried.lock)]
        )
        codec.write_document(records.records_path(project.images), merged, below=project.root)
        known = packages.read_packages(project.images)
        read = packages.read_packages(scratch.images).packages
        files = _lock_hashes(tried.lock)
        added = {key: package for key, package in read.items() if key in files}
        codec.write_document(
            packages.packages_path(project.images),
            packages.merge_sbom_packages(known, added),
            below=project.root,
        )
    return left_out


def _records(scratch: Project, lock: Lock) -> RecordedLayers:
    every = records.read_records(scratch.images)
    layers = {layer.id for arch in lock.arch for layer in create_plan(lock, arch).layers}
    wheels = _lock_hashes(lock)
    return RecordedLayers(
        layers={key: record for key, record in every.layers.items() if key in layers},
        wheels={key: fact for key, fact in every.wheels.items() if key in wheels},
    )


def _lock_hashes(lock: Lock) -> set[Sha256]:
    return {
        item.sha256
        for resolution in lock.arch.values()
        for item in (
            *installed_wheels(resolution),
            *(wheel for built in resolution.built for wheel in built.requires),
            *resolution.debs,
        )
    }


def _learned_constraints(
    project: Project, scratch: Project, tried: TriedRow
) -> tuple[list[Constraint], tuple[Constraint, ...]]:
    known = set(constraints.read_constraints(project.images))
    versions = [resolution.versions for resolution in tried.lock.arch.values()]
    learned = [
        entry
        for entry in constraints.read_constraints(scratch.images)
        if entry not in known and any(entry.package in each for each in versions)
    ]
    violated = set(violated_constraints(project, learned)) if learned else set()
    kept = [entry for entry in learned if entry not in violated]
    return kept, tuple(entry for entry in learned if entry in violated)


def violated_constraints(project: Project, learned: Iterable[Constraint]) -> list[Constraint]:
    """Return the constraints in `learned` that a lock of the project violates."""
    entries = list(learned)
    violated: list[Constraint] = []
    for name in project.locked_targets():
        try:
            lock = lock_file.read_lock(project.images, name)
        except ImgbuildError:
            continue  # a lock that cannot be read is stale in any case
        for resolution in lock.arch.values():
            violated += constraints.violated_constraints(entries, resolution.versions)
    return violated


def _place_folder(project: Project, scratch: Project, name: str, matrix: bytes) -> None:
    """Copy the folder of the row into the project, and write the matrix. On failure, undo both."""
    files = _files(scratch.images / name)
    temporary = f".{name}.new-{os.getpid()}"
    with (
        OpenFolder.open(project.root) as root,
        root.folder(project.images.relative_to(project.root).as_posix(), make=True) as images,
    ):
        try:
            for path, data in files.items():
                images.write(f"{temporary}/{path}", data)
            _remove_target(images, name)
            os.rename(temporary, name, src_dir_fd=images.descriptor, dst_dir_fd=images.descriptor)
            root.write(project.matrix.name, matrix)
        except BaseException:
            _remove_target(images, temporary)
            if read_content(project.matrix) != matrix:
                _remove_target(images, name)
            raise


def _remove_target(images: OpenFolder, name: str) -> None:
    """Remove the folder `name`, which this run or an interrupted run created.

    Raises InputError if the path is a link.
    """
    if images.status(name) is None:
        return
    images.folder(name).close()
    remove_folder(name, images.descriptor)


def _files(folder: Path) -> dict[str, bytes]:
    with OpenFolder.open(folder) as opened:
        return {name: opened.read(name) for name in opened.file_paths()}
