"""Writes the build contexts of a Dockerfile: the base as a layout, and a folder of wheels.

Files are hard links to files in the cache, or copies if the folder is not on the same disk as the
cache. Files of other locks are removed. A folder of wheels is locked while a process adds wheels or
builds from the folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from imgbuild.assemble import image_layout
from imgbuild.assemble.image_layout import BuiltImage
from imgbuild.assemble.inputs import Inputs
from imgbuild.assemble.layer_contents import require_file
from imgbuild.errors import InputError, IntegrityError
from imgbuild.lock.lock_file import Lock
from imgbuild.lock.resolution import installed_wheels
from imgbuild.matrix.project_paths import Project
from imgbuild.plan.image_digests import TargetDigests
from imgbuild.plan.plan import WheelsRecipe, create_plan
from imgbuild.render import bake
from imgbuild.system import files
from imgbuild.system.folder import OpenFolder
from imgbuild.system.placing import place_file
from imgbuild.system.reporter import Reporter
from imgbuild.values import Arch, Sha256

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+!-]*\.whl")
TEMPORARY = ".new-"
LOCK = ".lock"


class WheelFolder(msgspec.Struct, frozen=True, kw_only=True):
    """A folder of wheels.

    `files` is the number of wheels, `size` is in bytes, and `made` is the number of added wheels.
    """

    target: str
    output: Path
    files: int
    size: int
    made: int


def base_folder(project: Project, target: str) -> Path:
    """Return the default folder for the base of `target`."""
    return project.output_path(f"{bake.BASES}/{target}")


def wheels_folder(project: Project, target: str) -> Path:
    """Return the default folder for the wheels of `target`."""
    return project.output_path(f"{bake.WHEELS}/{target}")


def write_base_context(
    lock: Lock,
    target_digests: TargetDigests,
    arches: Sequence[Arch],
    folder: Path,
    inputs: Inputs,
    *,
    processes: int,
) -> BuiltImage:
    """Write the base of `lock` on `arches` to the layout `folder`."""
    return image_layout.build_layout(
        lock,
        target_digests,
        arches,
        folder,
        inputs,
        processes=processes,
        verify=False,
        only_base=True,
    )


def write_wheels_context(
    lock: Lock, arches: Sequence[Arch], folder: Path, inputs: Inputs
) -> WheelFolder:
    """Write every wheel of `lock` on `arches` to `folder`, with the file names in the lock.

    Raises InputError if the folder contains other files, and IntegrityError for file names that are
    invalid or not unique.
    """
    with locked_wheels(lock, arches, folder, inputs) as placed:
        return placed


@contextlib.contextmanager
def locked_wheels(
    lock: Lock, arches: Sequence[Arch], folder: Path, inputs: Inputs
) -> Iterator[WheelFolder]:
    """Write wheels as `write_wheels_context` does, and lock the folder until the context ends."""
    layers = [
        layer
        for arch in arches
        for layer in create_plan(lock, arch).layers
        if isinstance(layer.recipe, WheelsRecipe)
    ]
    inputs.fetch_inputs(lock, layers)
    digests = _expected_digests(lock, arches)
    folder.mkdir(parents=True, exist_ok=True)
    _refuse_others(folder)
    with _folder_lock(folder, inputs.context.reporter):
        for path in sorted(folder.iterdir()):  # another lock's, leftovers of a killed process
            if _is_wheel(path) and path.name not in digests:
                path.unlink()
        placed = sum(
            _place(
                folder / name, require_file(inputs.store, key, name), key, inputs.context.reporter
            )
            for name, key in digests.items()
        )
        size = sum((folder / name).stat().st_size for name in digests)
        yield WheelFolder(
            target=lock.target, output=folder, files=len(digests), size=size, made=placed
        )


@contextlib.contextmanager
def _folder_lock(folder: Path, reporter: Reporter) -> Iterator[None]:
    """Wait for a lock on `folder`, which is released when this process ends."""
    descriptor = files.open_locked(folder / LOCK)
    if descriptor is None:
        reporter.info(f"waiting for another imgbuild process, which uses {folder}")
        with files.lock_file(folder / LOCK):
            yield
        return
    try:
        yield
    finally:
        os.close(descriptor)


def _expected_digests(lock: Lock, arches: Sequence[Arch]) -> dict[str, Sha256]:
    digests: dict[str, Sha256] = {}
    for arch in arches:
        for wheel in installed_wheels(lock.arch[arch]):
            if NAME.fullmatch(wheel.file) is None:
                message = f"{lock.target}: {wheel.file!r} is not a wheel name"
                raise IntegrityError(message, hint=f"run imgbuild lock {lock.target}")
            if digests.setdefault(wheel.file, wheel.sha256) != wheel.sha256:
                message = f"{lock.target}: two different wheels have the name {wheel.file}"
                raise IntegrityError(message, hint="build one architecture at a time, with --arch")
    return digests


def _refuse_others(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        if not _is_wheel(path) and path.name != LOCK:
            message = f"{folder} is not a folder of wheels: it contains {path.name}"
            raise InputError(
                message, hint="specify another folder with --output, or remove the files"
            )


def _is_wheel(path: Path) -> bool:
    named = NAME.fullmatch(path.name) is not None or path.name.startswith(TEMPORARY)
    return named and stat.S_ISREG(path.lstat().st_mode)


def _place(path: Path, source: Path, key: Sha256, reporter: Reporter) -> bool:
    """Link or copy `source`, with the hash `key`, to `path`. Return False if `path` exists."""
    with contextlib.suppress(FileNotFoundError):
        if path.samefile(source) or _is_copy(path, source, key):
            return False
    with files.plain_errors(path, hint=files.OUTPUT_HINT), OpenFolder.open(path.parent) as folder:
        place_file(folder, path.name, source, key, reporter, prefix=TEMPORARY)
    return True


def _is_copy(path: Path, source: Path, key: Sha256) -> bool:
    seen, other = path.lstat(), source.stat()
    if path.is_symlink() or seen.st_dev == other.st_dev:
        return False
    if seen.st_size != other.st_size:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == key
