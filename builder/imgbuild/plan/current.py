"""Writes the lock, requirements and digests of a target, and reads them if they are up to date."""

from __future__ import annotations

import fnmatch

from imgbuild import codec
from imgbuild.errors import LockStale
from imgbuild.lock import extension, lock_file, requirements
from imgbuild.lock.lock_file import Lock
from imgbuild.lock.published import DIGESTS_FILE, TargetOverlay
from imgbuild.matrix import constraints
from imgbuild.matrix.model import Matrix
from imgbuild.matrix.project_paths import Project
from imgbuild.oci.layer import LayerRecord
from imgbuild.plan import image_digests
from imgbuild.plan.image_digests import TargetDigests
from imgbuild.system import boundary
from imgbuild.system.folder import OpenFolder
from imgbuild.values import Digest


def write_locked(project: Project, lock: Lock, target_digests: TargetDigests) -> None:
    """Write the lock and requirements, and then `digests.json`, which an interrupted run lacks."""
    texts, root = requirement_files(lock), project.root
    images = project.images.relative_to(root).as_posix()
    codec.write_document(lock_file.lock_path(project.images, lock.target), lock, below=root)
    with OpenFolder.open(root) as top, top.folder(f"{images}/{lock.target}") as folder:
        for name, text in texts.items():
            folder.write(name, text.encode())
        for old in fnmatch.filter(folder.names(), "requirements-*.txt"):
            if old not in texts:
                folder.remove(old)
    codec.write_document(
        image_digests.digests_path(project.images, lock.target), target_digests, below=root
    )


def requirement_files(lock: Lock) -> dict[str, str]:
    """Return the contents of the requirements files of `lock`, by file name."""
    return {
        requirements.file_name(arch): requirements.requirements_text(lock, arch)
        for arch in lock.arch
    }


def read_current(project: Project, matrix: Matrix, name: str) -> tuple[Lock, TargetDigests]:
    """Read the lock and digests of `name`. Raises LockStale if one is missing or out of date."""
    lock = lock_file.read_lock(project.images, name)
    reasons = list(extension.extension_differences(lock, matrix))
    learned = constraints.read_constraints(project.images)
    for arch, resolution in lock.arch.items():
        for entry in constraints.violated_constraints(learned, resolution.versions):
            version = resolution.versions.get(entry.other)
            locked = "is not locked" if version is None else f"{version} is locked"
            reasons.append(f"{arch}: {entry}, but {entry.other} {locked}")
    for file, text in requirement_files(lock).items():
        path = project.images / name / file
        if not path.is_file() or boundary.read_regular_file(path) != text.encode():
            reasons.append(f"{path} does not match the lock")
    if reasons:
        message = "\n  ".join((f"the lock of {name} is out of date:", *reasons))
        raise LockStale(message, hint=f"run imgbuild lock {name}")
    return lock, image_digests.read_digests(project.images, lock)


def published_records(overlay: TargetOverlay | None) -> dict[Digest, LayerRecord]:
    """Return the records of the published layers below an overlay, by layer ID.

    Returns {} if `overlay` is None. Raises LockStale if the published digests do not match the
    published lock, or if this version of imgbuild plans other layers.
    """
    if overlay is None:
        return {}
    target = overlay.published
    hint = (
        "copy lock.json and digests.json again, or use the version of imgbuild that published them"
    )
    return image_digests.layer_records(
        image_digests.read_digests_at(target.folder / DIGESTS_FILE, target.lock, hint=hint)
    )
