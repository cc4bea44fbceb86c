"""The lock that an image is held against: the repository's own, or the one that it carries.

Comes in: a folder with a lock, or an image in a registry. Goes out: a `Known`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from imgbuild import attach, carried
from imgbuild import lock as locks
from imgbuild import seal as seals
from imgbuild.carried import Carried
from imgbuild.oci.documents import Descriptor
from imgbuild.project import Project
from imgbuild.registry.client import Client
from imgbuild.registry.reference import Repository
from imgbuild.values import Digest, Sha256, sha256
from imgbuild.verifying import image
from imgbuild.verifying.checks import Failed, Unchecked
from imgbuild.verifying.image import Expected

LOCK = carried.LOCK


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """A lock with all that goes with it: the sha256 of its file, and in words whose it is.

    Folders of wheels that it names are looked for below `root`.
    """

    carried: Carried
    sha256: Sha256
    place: str
    root: Path
    due: Expected


def of_project(project: Project, target: str) -> Known:
    """The lock of `target` in a project; LockStale if there is none, or no seal of it."""
    lock = locks.read_lock(project.images, target)
    sealed = seals.read_seal(project.images, lock)
    path = locks.lock_path(project.images, target)
    return _known(carried.of(lock, sealed, project), str(path), project.root)


def of_folder(path: Path) -> Known:
    """The lock in the file `path`, with what lies beside it, as `oras pull` of an artifact leaves.

    InputError if there is none. In the folder of a project's target it is that target's.
    """
    folder = path if path.is_dir() else path.parent
    matrix = folder.parent.parent / "matrix.yaml"
    if matrix.is_file() and folder.parent.name == "images":
        return of_project(Project(matrix=matrix), folder.name)
    return _known(carried.read_folder(folder), str(folder / LOCK), folder)


def beside(client: Client, repository: Repository, digest: Digest) -> Iterator[Known]:
    """Every lock that is attached to the image `digest`."""
    for found in attach.find(client, repository, digest, carried.ARTIFACT_TYPE):
        place = f"the attached lock {found.descriptor.digest}"
        data = {name: part.data for name, part in found.files.items()}
        yield _known(carried.read(data, place), place, Path.cwd())


def choose(own: Known | None, attached: tuple[Known, ...], top: Descriptor) -> tuple[Known, str]:
    """The lock to hold the image `top` against, and what is to be said of it.

    Failed if an attached one is of another image, Unchecked if there is none at all.
    """
    for each in attached:
        if not each.due.arches(top.digest):
            message = f"{each.place} is of another image: {each.due.target} {each.due.digest}"
            raise Failed(message)
    if own is not None:
        same = any(each.sha256 == own.sha256 for each in attached)
        also = ", and attached" if same else ", of which another is attached" if attached else ""
        return own, f"{own.place}{also}"
    if not attached:
        message = "none is attached; name one with --target or --lock"
        raise Unchecked(message)
    return attached[0], f"{attached[0].place}, whose seal follows from it"


def _known(found: Carried, place: str, root: Path) -> Known:
    return Known(
        carried=found,
        sha256=sha256(found.data[LOCK]),
        place=place,
        root=root,
        due=image.expected(found.lock, found.sealed),
    )
