"""Bundles a lock with all other data for a build, except input files.

A bundle is attached to an image or stored in a folder, and contains lock, digests, package records,
indexes and added files. `single_target_matrix` creates a matrix that rebuilds the image with the
same digest without a checkout. When a bundle is read, its digests are checked against its lock.
Callers must check that the digests are those of the expected image.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from imgbuild import codec
from imgbuild.attest.sbom import packages
from imgbuild.attest.sbom.packages import SbomPackages
from imgbuild.cache.store import Store
from imgbuild.errors import InputError, IntegrityError, LockStale
from imgbuild.http import credentials
from imgbuild.index.pages import is_local
from imgbuild.lock import extension, lock_file, published
from imgbuild.lock.lock_file import Lock
from imgbuild.lock.locked_matrix import default_index_name, matrix_from_locks
from imgbuild.matrix.fields import Line, Name
from imgbuild.matrix.load import locate_indexes
from imgbuild.matrix.model import DebianBase, Matrix, PackageIndex
from imgbuild.matrix.project_paths import Project
from imgbuild.plan import image_digests
from imgbuild.plan.image_digests import TargetDigests
from imgbuild.registry.artifact_store import ArtifactFile
from imgbuild.values import Sha256, sha256

ARTIFACT_TYPE = "application/vnd.imgbuild.lock.v1+json"
LOCK, DIGESTS_FILE = published.LOCK, published.DIGESTS_FILE
PACKAGES, SOURCES, FILES = "packages.json", "sources.json", "files/"
JSON, OCTETS = "application/json", "application/octet-stream"
NEWER_REMEDY = "use the version of imgbuild that created it"
OTHER_REMEDY = "use an unmodified lock that was created by this version of imgbuild"


class BundleSources(msgspec.Struct, frozen=True, kw_only=True):
    """The sources of a lock's files, in addition to the index and mirrors of this machine.

    `indexes` are the indexes in the lock, as defined in the matrix. Paths of wheel folders are
    relative.
    """

    default_index: Name
    indexes: dict[Name, PackageIndex] = {}
    mirrors: tuple[Line, ...] = ()


class LockBundle(msgspec.Struct, frozen=True, kw_only=True):
    """A lock and its attached data. `data` maps file names to bytes."""

    lock: Lock
    target_digests: TargetDigests
    packages: SbomPackages
    sources: BundleSources
    data: dict[str, bytes]

    @property
    def added_contents(self) -> dict[Sha256, bytes]:
        """The files that an extension adds, by sha256."""
        return {
            name.removeprefix(FILES): data
            for name, data in self.data.items()
            if name.startswith(FILES)
        }


def create_lock_bundle(lock: Lock, target_digests: TargetDigests, project: Project) -> LockBundle:
    """Create the bundle of `lock`. Raises LockStale if the lock of `project` has changed."""
    matrix = published.load_matrix(project.matrix)
    data = {
        LOCK: lock_file.lock_path(project.images, lock.target).read_bytes(),
        DIGESTS_FILE: image_digests.digests_path(project.images, lock.target).read_bytes(),
    }
    there = (
        lock_file.decode_lock(data[LOCK], LOCK, hint=OTHER_REMEDY, remedy=NEWER_REMEDY),
        codec.decode(data[DIGESTS_FILE], TargetDigests, file=DIGESTS_FILE),
    )
    if there != (lock, target_digests):
        message = (
            f"{project.images / lock.target}: the lock or the digests changed while they were read"
        )
        raise LockStale(message, hint="run the same command again")
    sbom_packages = packages.packages_of_lock(packages.read_packages(project.images), lock)
    sources = _sources(lock, matrix, project.root)
    data |= {PACKAGES: codec.encode_compact(sbom_packages), SOURCES: codec.encode_compact(sources)}
    data |= {
        f"{FILES}{sha256(content)}": content
        for content in extension.added_contents(lock, matrix).values()
    }
    return LockBundle(
        lock=lock, target_digests=target_digests, packages=sbom_packages, sources=sources, data=data
    )


def bundle_files(lock_bundle: LockBundle) -> dict[str, ArtifactFile]:
    """Return the files of the artifact by name."""
    return {
        name: ArtifactFile(data=data, media_type=OCTETS if name.startswith(FILES) else JSON)
        for name, data in lock_bundle.data.items()
    }


def read_lock_bundle(data: Mapping[str, bytes], place: str) -> LockBundle:
    """Read the bundle in the files `data`. `place` is their location, for error messages.

    Raises InputError if a file is missing or invalid, LockStale if the digests do not match the
    lock, and IntegrityError if an added file does not match the lock.
    """
    for name in (LOCK, DIGESTS_FILE):
        if name not in data:
            message = f"{place} has no {name}"
            raise InputError(
                message, hint="use an image that was pushed by imgbuild, or a folder with its files"
            )
    file = f"{place}/{LOCK}"
    lock = lock_file.decode_lock(data[LOCK], file, hint=OTHER_REMEDY, remedy=NEWER_REMEDY)
    target_digests = image_digests.decode_digests(
        data[DIGESTS_FILE], lock, file=f"{place}/{DIGESTS_FILE}", hint=OTHER_REMEDY
    )
    files = _added_contents(lock, data, place)
    sbom_packages = (
        packages.parse_sbom_packages(data[PACKAGES], f"{place}/{PACKAGES}")
        if PACKAGES in data
        else SbomPackages()
    )
    sources = BundleSources(default_index=default_index_name(lock))
    if SOURCES in data:
        sources = codec.decode(
            data[SOURCES], BundleSources, file=f"{place}/{SOURCES}", hint=OTHER_REMEDY
        )
    _refuse_unplaced(lock, sources, place)
    documents = {
        name: data[name] for name in (LOCK, DIGESTS_FILE, PACKAGES, SOURCES) if name in data
    }
    return LockBundle(
        lock=lock,
        target_digests=target_digests,
        packages=sbom_packages,
        sources=sources,
        data=documents | files,
    )


def read_folder(folder: Path) -> LockBundle:
    """Read the bundle in a downloaded artifact or in the folder of a target."""
    contents = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in (*(folder / name for name in (LOCK, DIGESTS_FILE, PACKAGES, SOURCES)),
                     *(folder / FILES).glob("*"))
        if path.is_file()
    }  # fmt: skip
    return read_lock_bundle(contents, str(folder))


def store_added_files(lock_bundle: LockBundle, store: Store) -> None:
    """Write the added files to the cache, from which builds read them."""
    for key, data in lock_bundle.added_contents.items():
        if store.file(key) is None:
            store.add_bytes(data, key)


def single_target_matrix(lock_bundle: LockBundle, folder: Path) -> Matrix:
    """Create a matrix with only the lock's target. Folders of wheels are relative to `folder`."""
    lock, sources = lock_bundle.lock, lock_bundle.sources
    target_matrix = matrix_from_locks(
        {lock.target: lock},
        indexes={sources.default_index: PackageIndex(), **sources.indexes},
        default_index=sources.default_index,
        mirrors=sources.mirrors,
    )
    return locate_indexes(target_matrix, folder)


def _sources(lock: Lock, matrix: Matrix, root: Path) -> BundleSources:
    names = sorted({matrix.default_index, *lock.indexes.values()})
    base = matrix.bases[matrix.targets[lock.target].base]
    return BundleSources(
        default_index=matrix.default_index,
        indexes={name: _portable_index(matrix.indexes[name], root) for name in names},
        mirrors=tuple(map(credentials.strip_login, base.mirrors))
        if isinstance(base, DebianBase)
        else (),
    )


def _portable_index(index: PackageIndex, root: Path) -> PackageIndex:
    """Remove data that is valid only on this machine from `index`.

    Folders of wheels become relative to the folder of the matrix. Credentials are removed from
    URLs, although a matrix with credentials is rejected earlier.
    """
    if index.url is None:
        return index
    if not is_local(index.url):
        return msgspec.structs.replace(index, url=credentials.strip_login(index.url))
    path = os.path.relpath(unquote(urlsplit(index.url).path), root)
    return msgspec.structs.replace(index, url=f"file:{path}")


def _refuse_unplaced(lock: Lock, sources: BundleSources, place: str) -> None:
    lacking = set(lock.indexes.values()) - {sources.default_index, *sources.indexes}
    if lacking:
        message = f"{place} does not contain the URL of the index {', '.join(sorted(lacking))}"
        raise InputError(
            message,
            hint=f"use the artifact attached to the image, which contains the URL in {SOURCES}",
        )


def _added_contents(lock: Lock, data: Mapping[str, bytes], place: str) -> dict[str, bytes]:
    added_files = {}
    for file in lock.extends.files.values() if lock.extends is not None else ():
        name = f"{FILES}{file.sha256}"
        if name not in data or sha256(data[name]) != file.sha256:
            what = "differs from the locked file" if name in data else "is missing"
            message = f"{place}/{name} {what}; {lock.target} adds this file as {file.file}"
            raise IntegrityError(message, hint=OTHER_REMEDY)
        added_files[name] = data[name]
    return added_files
