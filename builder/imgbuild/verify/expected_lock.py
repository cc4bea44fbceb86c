"""Selects the lock with which to compare an image, from the project or from attachments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from imgbuild.attest import bundle
from imgbuild.attest.bundle import LockBundle
from imgbuild.errors import InputError, IntegrityError, LockStale
from imgbuild.lock import lock_file
from imgbuild.matrix.project_paths import FOLDER, MATRIX, Project
from imgbuild.plan import image_digests
from imgbuild.registry import artifact_store
from imgbuild.registry.client import RegistryClient
from imgbuild.registry.image_reference import Repository
from imgbuild.system.boundary import convert_read_errors
from imgbuild.values import Digest, Sha256, sha256
from imgbuild.verify import image
from imgbuild.verify.checks import CheckFailed, SubjectMissing
from imgbuild.verify.image import ExpectedImage

LOCK = bundle.LOCK


class ExpectedLock(msgspec.Struct, frozen=True, kw_only=True):
    """A lock with its bundle, the sha256 of its file, and its location for messages.

    Folders of wheels are relative to `root`. `project` is the checkout, or None for a lock without
    a project.
    """

    lock_bundle: LockBundle
    sha256: Sha256
    place: str
    root: Path
    contents: ExpectedImage
    project: Project | None = None


def lock_of_project(project: Project, target: str) -> ExpectedLock:
    """Return the lock of `target` in a project.

    Raises LockStale if the lock or its digests are missing.
    """
    lock = lock_file.read_lock(project.images, target)
    target_digests = image_digests.read_digests(project.images, lock)
    path = lock_file.lock_path(project.images, target)
    expected = _expected_lock(
        bundle.create_lock_bundle(lock, target_digests, project), str(path), project.root
    )
    return msgspec.structs.replace(expected, project=project)


def lock_of_folder(path: Path) -> ExpectedLock:
    """Read the lock in the file or folder `path`, and adjacent files, as written by `oras pull`.

    If `path` is the folder of a project's target, read the lock of this target. Raises InputError
    if there is no lock, or if `path` is a file that does not have the name of a lock.
    """
    folder = path if path.is_dir() else path.parent
    if not (folder / LOCK).is_file() or (path != folder and path.name != LOCK):
        message = f"{path} is neither a {LOCK} nor a folder that contains one"
        raise InputError(message, hint=f"pass the {LOCK} next to its digests.json")
    if folder.parent.name == "images":
        inner = folder.parent.parent
        matrix = (inner.parent if inner.name == FOLDER else inner) / MATRIX
        if matrix.is_file():
            return lock_of_project(Project(matrix=matrix), folder.name)
    return _expected_lock(bundle.read_folder(folder), str(folder / LOCK), folder)


class AttachedLocks(msgspec.Struct, frozen=True, kw_only=True):
    """The locks attached to an image: locks of this image, and descriptions of other locks."""

    right: tuple[ExpectedLock, ...] = ()
    wrong: tuple[str, ...] = ()


def attached_locks(client: RegistryClient, repository: Repository, digest: Digest) -> AttachedLocks:
    """Read all locks attached to the image `digest`, including invalid and foreign ones."""
    right, wrong = [], []
    for artifact in artifact_store.find_artifacts(client, repository, digest, bundle.ARTIFACT_TYPE):
        place = f"the attached lock {artifact.descriptor.digest}"
        data = {name: part.data for name, part in artifact.files.items()}
        try:
            with convert_read_errors(place, hint=bundle.OTHER_REMEDY):
                expected = _expected_lock(bundle.read_lock_bundle(data, place), place, Path.cwd())
        except (InputError, IntegrityError, LockStale) as error:
            wrong.append(error.message)
            continue
        if expected.contents.arches(digest):
            right.append(expected)
        else:
            other = expected.contents
            wrong.append(f"{place} belongs to another image: {other.target} {other.digest}")
    return AttachedLocks(right=tuple(right), wrong=tuple(wrong))


def choose_lock(
    local_lock: ExpectedLock | None,
    attached: AttachedLocks,
    is_trusted: Callable[[ExpectedLock], bool],
) -> tuple[ExpectedLock, str]:
    """Select the lock with which to compare an image, and describe the result of the check.

    The lock is `local_lock` if given, or else the first trusted attached lock, or else the first
    attached lock. Raises CheckFailed if all attached locks are invalid, and SubjectMissing if no
    lock is attached.
    """
    if attached.wrong and not attached.right:
        raise CheckFailed("; ".join(attached.wrong))
    more = f"; also attached: {'; '.join(attached.wrong)}" if attached.wrong else ""
    if local_lock is not None:
        same = any(each.sha256 == local_lock.sha256 for each in attached.right)
        also = ", and attached" if same else "; another lock is attached" if attached.right else ""
        return local_lock, f"{local_lock.place}{also}{more}"
    if not attached.right:
        message = "no lock is attached; specify a lock with --target or --lock"
        raise SubjectMissing(message)
    chosen = next(filter(is_trusted, attached.right), attached.right[0])
    return chosen, f"{chosen.place}, consistent with its digests{more}"


def _expected_lock(lock_bundle: LockBundle, place: str, root: Path) -> ExpectedLock:
    return ExpectedLock(
        lock_bundle=lock_bundle,
        sha256=sha256(lock_bundle.data[LOCK]),
        place=place,
        root=root,
        contents=image.expected_image(lock_bundle.lock, lock_bundle.target_digests),
    )
