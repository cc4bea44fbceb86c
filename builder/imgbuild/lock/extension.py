"""Creates the lock of an extension, which adds a row's packages and files to a published target.

This module also compares such a lock with the matrix, the published lock and the user's files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from imgbuild.errors import InputError, IntegrityError
from imgbuild.lock import lock_file, same_files
from imgbuild.lock.lock_file import AddedFile, AddedInputs, Extends, Lock
from imgbuild.lock.locked_matrix import locked_versions
from imgbuild.lock.model import LockedProject
from imgbuild.lock.project_requirements import editable_packages
from imgbuild.lock.published import LOCK, PublishedTarget, TargetOverlay, find_overlay, project_row
from imgbuild.lock.resolution import BuiltWheel, Deb, RegistryLayer, Resolution, Wheel
from imgbuild.matrix import flashinfer
from imgbuild.matrix.extension import FileToAdd as AddedRow
from imgbuild.matrix.model import Matrix, Target
from imgbuild.matrix.settings import is_outside
from imgbuild.system.boundary import open_regular
from imgbuild.values import Arch, sha256

NO_SOURCES = LockedProject()
BASE_DIGEST = "org.opencontainers.image.base.digest"


def make_lock(
    matrix: Matrix,
    name: str,
    resolutions: Mapping[Arch, Resolution],
    sources: LockedProject = NO_SOURCES,
) -> Lock:
    """Create the lock of target `name`.

    `sources` contains the URLs and git trees of packages that are not from an index, and metadata
    from build backends. Raises InputError if an added file is unreadable.
    """
    row = project_row(matrix, name)
    if row is None:
        return lock_file.make_lock(matrix, name, dict(resolutions))
    lock = _extension(matrix, row, name, resolutions) if row.row.extends else None
    if lock is None:
        lock = _drop_kernels(lock_file.make_lock(matrix, name, dict(resolutions)))
    drop = (*lock.drop, *same_files.duplicate_file_drops(lock))
    return msgspec.structs.replace(lock, drop=drop, project=_project(row, sources))


def _project(item: TargetOverlay, sources: LockedProject) -> LockedProject | None:
    """Return None for a row without requirements files and requirements."""
    if not (item.row.requirements or item.row.add or item.row.like):
        return None
    return msgspec.structs.replace(
        sources,
        files=item.row.requirements,
        requirements=item.requirements.recorded_lines,
        packages=editable_packages(
            item.requirements,
            item.published.lock.settings.workdir,
            sources.packages,
            item.folder,
        ),
    )


def _drop_kernels(lock: Lock) -> Lock:
    """Set the FlashInfer mode of `lock` to `off` if no architecture has FlashInfer."""
    versions = {name for resolution in lock.arch.values() for name in resolution.versions}
    if not flashinfer.is_contradicted(lock.flashinfer, versions):
        return lock
    labels = {**lock.settings.labels, "dev.imgbuild.flashinfer": "off"}
    env = {**lock.settings.env, flashinfer.VARIABLE: "off"}
    settings = msgspec.structs.replace(lock.settings, labels=labels, env=env)
    return msgspec.structs.replace(lock, flashinfer="off", settings=settings)


def _extension(
    matrix: Matrix, item: TargetOverlay, name: str, resolutions: Mapping[Arch, Resolution]
) -> Lock:
    row, extended, target = item.row, item.published, matrix.targets[name]
    published_lock = extended.lock
    present = locked_versions(published_lock)
    specs = {
        package: spec
        for package, spec in item.requirements.versions.items()
        if package not in present
    }
    specs |= {package: wanted.spec for package, wanted in row.requires.items()}
    specs |= {package: f"=={version}" for package, version in row.pins.items()}
    added = {arch: _added_inputs(extended, arch, resolutions[arch]) for arch in sorted(resolutions)}
    return msgspec.structs.replace(
        published_lock,
        target=name,
        as_of=target.as_of.isoformat(),
        requirements=dict(sorted({**published_lock.requirements, **specs}.items())),
        indexes=dict(sorted(target.indexes.items())),
        settings=_settings(item, name, target),
        drop=(*published_lock.drop, *row.drop),
        arch=dict(sorted(resolutions.items())),
        extends=Extends(
            target=extended.name,
            lock=extended.hash,
            digest=extended.digest,
            packages=item.requirements.debian,
            files={path: _locked_file(item, file) for path, file in sorted(row.files.items())},
            links={path: link.to for path, link in sorted(row.links.items())},
            arch=added,
            constraints=(
                published_lock.settings.user_packages is True
                and any(inputs.wheels for inputs in added.values())
            )
            or msgspec.UNSET,
        ),
    )


def _added_inputs(extended: PublishedTarget, arch: Arch, resolution: Resolution) -> AddedInputs:
    old = extended.lock.arch.get(arch, Resolution(wheels=()))
    debs = {deb.package for deb in old.debs}
    return AddedInputs(
        manifest=extended.manifests.get(arch, extended.digest),
        wheels=tuple(sorted(resolution.versions.keys() - old.versions.keys())),
        debs=tuple(deb.package for deb in resolution.debs if deb.package not in debs),
    )


def _settings(item: TargetOverlay, name: str, target: Target) -> lock_file.ImageSettings:
    row, extended = item.row, item.published
    settings = extended.lock.settings
    env = settings.env | {key: variable.value for key, variable in row.env.items()}
    labels = {
        **settings.labels,
        **row.labels,
        **lock_file.image_labels(name, target, {**item.requirements.pins, **row.pins}),
        BASE_DIGEST: extended.digest,
        "dev.imgbuild.extends": extended.name,
    }
    return msgspec.structs.replace(
        settings,
        env=dict(sorted(env.items())),
        labels=dict(sorted(labels.items())),
        entrypoint=settings.entrypoint if row.entrypoint is None else row.entrypoint,
        cmd=settings.cmd if row.cmd is None else row.cmd,
    )


def _locked_file(item: TargetOverlay, file: AddedRow) -> AddedFile:
    data = read_file(item.folder, file.source)
    return AddedFile(file=file.source, size=len(data), sha256=sha256(data), mode=file.mode)


def read_file(folder: Path, source: str) -> bytes:
    """Read a file of the user's repository.

    Raises InputError if the file is missing or outside the repository, and IntegrityError if it is
    not a regular file.
    """
    path = Path(os.path.realpath(folder / source))
    if is_outside(source) or not path.is_relative_to(os.path.realpath(folder)):
        message = f"{folder / source} is outside the repository, so it cannot be added to an image"
        raise InputError(message, hint=f"copy the file into {folder}, and run `imgbuild lock`")
    try:
        with open(path, "rb", opener=open_regular) as file:
            return file.read()
    except OSError as error:
        message = f"{folder / source}: {error.strerror}, but matrix.yaml adds it to an image"
        raise InputError(message, hint="add the file, or remove it from `files`") from error


def added_contents(lock: Lock, matrix: Matrix) -> dict[str, bytes]:
    """Read the added files of `lock`, and return their contents by path in the image.

    Raises IntegrityError if a file has changed since it was locked, and InputError if a file is
    unreadable.
    """
    item = find_overlay(matrix, lock.target)
    if lock.extends is None or item is None:
        return {}
    file_contents = {}
    for path, file in lock.extends.files.items():
        data = read_file(item.folder, file.file)
        if sha256(data) != file.sha256:
            message = f"{file.file} has sha256 {sha256(data)}, but the lock has {file.sha256}"
            raise IntegrityError(message, hint=f"imgbuild lock {lock.target}")
        file_contents[path] = data
    return file_contents


def extension_differences(lock: Lock, matrix: Matrix) -> tuple[str, ...]:
    """List differences between `lock` and the matrix, the user's files and the published lock."""
    row = project_row(matrix, lock.target)
    if row is None:
        return lock_file.matrix_differences(lock, matrix)
    try:
        expected = make_lock(matrix, lock.target, lock.arch, lock.project or NO_SOURCES)
    except InputError as error:
        return (error.message,)
    if lock.omitted_gpus and row.prefers_gpus:
        if {*lock.gpu, *lock.omitted_gpus} != {*expected.gpu}:
            return (f"the GPUs of {row.published.name} have changed",)
        expected = expected.with_gpus(lock.gpu)
    if changes := _project_changes(lock.project or NO_SOURCES, expected.project or NO_SOURCES):
        return changes
    if lock.extends is None or expected.extends is None:
        return lock_file.lock_differences(lock, expected, matrix.targets[lock.target].arch)
    extended = row.published
    expected = _add_recorded_folders(expected, lock.extends)
    reasons = [
        *_published_differences(lock.extends, extended),
        *_other_files(lock.extends, expected.extends),
    ]
    if reasons:
        return tuple(reasons)
    for arch, resolution in lock.arch.items():
        old = extended.lock.arch.get(arch, Resolution(wheels=()))
        for field in ("wheels", "built", "debs", "base_layers"):
            locked = {_word(item): item for item in getattr(resolution, field)}
            reasons += [
                f"{arch}: {_word(item)} of {extended.name} is not locked"
                for item in getattr(old, field)
                if locked.get(_word(item)) != item
            ]
    return (*reasons, *lock_file.lock_differences(lock, expected, matrix.targets[lock.target].arch))


def _project_changes(locked: LockedProject, expected: LockedProject) -> tuple[str, ...]:
    before, after = set(locked.requirements), set(expected.requirements)
    lines = [f"the project now requires {line}" for line in sorted(after - before)]
    lines += [f"the project no longer requires {line}" for line in sorted(before - after)]
    for package in sorted(locked.packages.keys() | expected.packages.keys()):
        old, new = locked.packages.get(package), expected.packages.get(package)
        if old is not None and new is not None and old.setup != new.setup:
            words = "is not in the lock" if old.setup is None else "has changed"
            lines.append(f"the setup.py of {package}, which the build backend runs, {words}")
        elif old != new:
            lines.append(f"the version, scripts or folders of {package} have changed")
    return tuple(lines)


def _add_recorded_folders(expected: Lock, locked: Extends) -> Lock:
    """Copy the base folders of `locked` to `expected`, and drop constraints that `locked` lacks."""
    if expected.extends is None:
        return expected
    arches = {
        arch: msgspec.structs.replace(added, folders=locked.arch[arch].folders)
        for arch, added in expected.extends.arch.items()
        if arch in locked.arch
    }
    return msgspec.structs.replace(
        expected,
        extends=msgspec.structs.replace(
            expected.extends,
            arch=arches,
            constraints=expected.extends.constraints if locked.constraints else msgspec.UNSET,
        ),
    )


def _published_differences(locked: Extends, extended: PublishedTarget) -> list[str]:
    if (locked.target, locked.lock, locked.digest) == (
        extended.name,
        extended.hash,
        extended.digest,
    ):
        return []
    locked_image, expected = (
        f"{locked.target} {locked.digest}",
        f"{extended.name} {extended.digest}",
    )
    return [
        (
            f"the lock extends {locked_image}, but the matrix has {expected} "
            f"({extended.folder / LOCK})"
        )
    ]


def _other_files(locked: Extends, expected: Extends | None) -> list[str]:
    files = expected.files if expected is not None else {}
    return [
        f"{files[path].file} has changed: its sha256 is {files[path].sha256}, but the lock has"
        f" {file.sha256}"
        for path, file in locked.files.items()
        if path in files and files[path].sha256 != file.sha256
    ]


def _word(item: Wheel | BuiltWheel | Deb | RegistryLayer) -> str:
    return item.digest if isinstance(item, RegistryLayer) else f"{item.package} {item.version}"
