"""A user's own targets: published ones with packages, system packages and files added.

From a `matrix.yaml` with `published:` and the locks that it names follows an `Extended` matrix of
complete targets: what a row does not set is taken from the published lock. So all commands work on
them as on any target.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml
from packaging.specifiers import SpecifierSet

from imgbuild import codec
from imgbuild.errors import InputError
from imgbuild.lock import lock_file
from imgbuild.lock.lock_file import Lock
from imgbuild.lock.locked_matrix import default_index, matrix_of, versions_of
from imgbuild.matrix import compiled
from imgbuild.matrix import load as matrices
from imgbuild.matrix.check import check_sdists, check_shared
from imgbuild.matrix.extension import Extension, Extensions, PublishedSource, check_extensions
from imgbuild.matrix.fields import VERSION_LABEL
from imgbuild.matrix.model import Matrix, PackageIndex, Target
from imgbuild.matrix.notes import Notes
from imgbuild.matrix.select import Selected
from imgbuild.matrix.settings import environment_first
from imgbuild.matrix.validate import type_info, walk
from imgbuild.matrix.yaml_nodes import YamlDocument, content, parse
from imgbuild.project import CATALOGUE, MATRIX
from imgbuild.system import boundary
from imgbuild.values import Arch, Digest, Sha256, sha256

LOCK, DIGESTS_FILE = "lock.json", "digests.json"
LAYOUT = "oci:"  # begins an `image` that is a folder


class PublishedTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A published target in the user's repository. `image` is the reference in the matrix.

    `hash` is the sha256 of lock.json; `digest` and `manifests` are those of digests.json.
    """

    name: str
    folder: Path
    lock: Lock
    hash: Sha256
    digest: Digest
    manifests: dict[Arch, Digest]
    image: str


class Overlay(msgspec.Struct, frozen=True, kw_only=True):
    """What a row of the matrix in `folder` adds to a published target."""

    row: Extension
    published: PublishedTarget
    folder: Path

    @property
    def layout(self) -> Path | None:
        """The layout with the published image; None if the matrix does not name one."""
        image = self.published.image
        return self.folder / image.removeprefix(LAYOUT) if image.startswith(LAYOUT) else None


class Extended(Matrix, frozen=True, kw_only=True):
    """A matrix whose targets extend published ones, each as its overlay says."""

    overlays: dict[str, Overlay]


class _Manifest(msgspec.Struct, frozen=True):
    manifest: Digest


class _Digests(msgspec.Struct, frozen=True):
    digest: Digest
    arch: dict[Arch, _Manifest]


def load(path: Path) -> Matrix:
    """Read the matrix at `path`, of either kind; InputError with all its problems."""
    if path == CATALOGUE / MATRIX and (matrix := compiled.read(path)) is not None:
        return matrices.located(matrix, path.parent)
    try:
        document = parse(content(path), str(path))
    except OSError:
        return matrices.load(path)  # raises the error
    if document.root is None or not _has(document.root, "published"):
        return matrices.located(matrices.of_document(document), path.resolve().parent)
    return _extended(document, path)


def published(path: Path) -> Mapping[str, PublishedSource]:
    """The published targets that the matrix at `path` names; InputError if it names none."""
    document = parse(content(path), str(path))
    if document.root is None or not _has(document.root, "published"):
        message = f"{path} extends no published target"
        raise InputError(message, hint="run imgbuild init in another folder to write one that does")
    return _read(document, str(path))[0].published


def overlay(matrix: Matrix, name: str) -> Overlay | None:
    """What target `name` adds to a published target; None if it extends none."""
    return matrix.overlays.get(name) if isinstance(matrix, Extended) else None


def shown(matrix: Matrix, selected: Sequence[Selected]) -> list[Selected]:
    """`selected` for a table: of published packages only those that its publishers pinned."""
    return [
        msgspec.structs.replace(item, target=_named(overlay(matrix, item.name), item.target))
        for item in selected
    ]


def _named(item: Overlay | None, target: Target) -> Target:
    if item is None:
        return target
    labels = item.published.lock.settings.labels
    named = {key.removeprefix(VERSION_LABEL) for key in labels if key.startswith(VERSION_LABEL)}
    named |= item.row.pins.keys()
    pins = {package: pin for package, pin in target.pins.items() if package in named}
    return msgspec.structs.replace(target, pins=pins)


# -- reading


def _has(root: yaml.Node, key: str) -> bool:
    pairs = root.value if isinstance(root, yaml.MappingNode) else ()
    return any(name.value == key for name, _ in pairs)


def _read(document: YamlDocument, file: str) -> tuple[Extensions, Notes, Any]:
    """The file without the published locks, also as plain data; InputError with all problems."""
    walked = walk(document.root or yaml.MappingNode("", []), type_info(Extensions), file)
    notes = Notes(file, walked.keys, walked.places)
    if not walked.uncertain:
        check_shared(notes, walked.value)
        check_extensions(notes, walked.value)
    if problems := (*document.problems, *walked.problems, *notes.problems):
        raise matrices.refusal(file, problems, document.text)
    return msgspec.convert(walked.value, Extensions), notes, walked.value


def _extended(document: YamlDocument, path: Path) -> Extended:
    file = str(path)
    value, notes, plain = _read(document, file)
    folder = path.resolve().parent
    published_targets = {
        name: read(folder / item.lock, name, item.image) for name, item in value.published.items()
    }
    check_sdists(
        notes,
        plain,
        sorted({key for each in published_targets.values() for key in versions_of(each.lock)}),
    )
    for each in published_targets.values():
        _check_published(notes, value, each)
    for name, row in value.targets.items():
        _check_row(notes, ("targets", name), row, published_targets[row.extends])
        _check_sources(notes, ("targets", name, "files"), row, folder)
    if notes.problems:
        raise matrices.refusal(file, tuple(notes.problems), document.text)
    return matrices.located(_matrix(value, published_targets, folder), folder)


def read(folder: Path, name: str, image: str = "") -> PublishedTarget:
    """The published target `name` in `folder`; InputError if the folder has another one."""
    hint = "copy both files again from where the target is published: imgbuild init --refresh"
    for file in (LOCK, DIGESTS_FILE):
        if not (folder / file).is_file():
            message = f"{folder / file}: no such file, but matrix.yaml extends {name}"
            raise InputError(message, hint=hint)
    data = boundary.content(folder / LOCK, codec.LIMIT)
    lock = lock_file.decode_lock(data, str(folder / LOCK), hint=hint, remedy=hint)
    target_digests = codec.read(folder / DIGESTS_FILE, _Digests, what="digests", hint=hint)
    if lock.target != name or lock.extends is not None:
        what = f"the lock of {lock.target}"
        what = f"{what}, itself an extension" if lock.extends is not None else what
        message = f"{folder / LOCK} is {what}, not of {name}"
        raise InputError(message, hint=hint)
    return PublishedTarget(
        name=name,
        folder=folder,
        lock=lock,
        hash=sha256(data),
        digest=target_digests.digest,
        manifests={arch: item.manifest for arch, item in target_digests.arch.items()},
        image=image,
    )


def _check_published(notes: Notes, value: Extensions, extended: PublishedTarget) -> None:
    """Note indexes and a digest that do not fit what is published."""
    here = ("published", extended.name)
    default = default_index(extended.lock)
    used = {index: package for package, index in extended.lock.indexes.items() if index != default}
    for index, package in used.items():
        if index not in value.indexes:
            message = f"its {package} comes from the index {index}, whose address is not known"
            notes.note((*here, "lock"), message, expected=f"indexes: {{{index}: {{url: …}}}}")
    _, _, digest = extended.image.partition("@")
    if digest and digest != extended.digest:
        message = f"{DIGESTS_FILE} says {extended.digest}"
        notes.note((*here, "image"), message, value=extended.image, expected="the same image")


def _check_row(
    notes: Notes, path: tuple[str, ...], row: Extension, extended: PublishedTarget
) -> None:
    """Note what a row asks for that contradicts the published target."""
    lock = extended.lock
    for number, arch in enumerate(row.arch):
        notes.choice((*path, "arch", number), arch, lock.arch, f"architecture of {extended.name}")
    if row.as_of is not None and row.as_of.isoformat() < lock.as_of:
        message = f"the packages of {extended.name} were uploaded until {lock.as_of}"
        notes.note((*path, "as_of"), message, value=row.as_of, expected="that day or a later one")
    versions = versions_of(lock)
    pinned = {package: f"=={version}" for package, version in row.pins.items()}
    for field, specs in (
        ("pins", pinned),
        ("requires", {k: v.spec for k, v in row.requires.items()}),
    ):
        for package, spec in specs.items():
            has = versions.get(package)
            if has is not None and not SpecifierSet(spec).contains(has, prereleases=True):
                message = f"{extended.name} has {package} {has}, which an extension cannot change"
                expected = f"{has}, or a published target that has {package}{spec}"
                notes.note((*path, field, package), message, value=spec, expected=expected)
    for number, drop in enumerate(row.drop):
        if drop.package in versions:
            message = f"{drop.package} is in layers of {extended.name}, which cannot change"
            notes.note((*path, "drop", number), message, expected="an added package")
    if row.packages and lock.base.kind != "debian":
        message = f"the base of {extended.name} is an image of a registry, not Debian packages"
        notes.note((*path, "packages"), message, expected="no system packages")
    _check_places(notes, path, row, extended)
    values = {name: variable.value for name, variable in row.env.items()}
    environment_first(notes, (*path, "env"), lock.settings.prefix, values)


def _check_places(
    notes: Notes, path: tuple[str, ...], row: Extension, extended: PublishedTarget
) -> None:
    """Note files and links of a row that would replace something that is needed."""
    lock = extended.lock
    for place in (*row.files, *row.links):
        field = "files" if place in row.files else "links"
        if place.startswith((f"{lock.settings.prefix}/", "/opt/imgbuild/")):
            message = "packages provide everything below this folder"
            notes.note((*path, field, place), message, key=True, expected="another folder")
        elif any(f"{protected}/".startswith(f"{place}/") for protected in _protected_paths(lock)):
            message = f"{extended.name} has this path, or needs one below it"
            notes.note((*path, field, place), message, key=True, expected="another path")


def _check_sources(notes: Notes, path: tuple[str, ...], row: Extension, folder: Path) -> None:
    """Note files of a row that are outside the repository, through a link."""
    for place, file in row.files.items():
        # Reading the file will refuse a circle of links.
        led = Path(os.path.realpath(folder / file.source))
        if not led.is_relative_to(folder):
            message = f"a link leads to {led}, outside the repository"
            expected = "a file of the repository itself: copy it there"
            notes.note((*path, place, "from"), message, value=file.source, expected=expected)


def _protected_paths(lock: Lock) -> tuple[str, ...]:
    """Paths that no file or link of a row may replace, nor a folder above one."""
    settings = lock.settings
    image_paths = (
        settings.prefix,
        settings.workdir,
        settings.cache,
        settings.user.home,
        "/opt/imgbuild",
    )
    base = ("/etc/passwd", "/etc/group", "/usr/bin", "/usr/lib", "/usr/sbin", "/usr/local/bin")
    top = ("bin", "lib", "lib64", "sbin", "dev", "proc", "run", "sys", "tmp", "var/lib")
    return (*image_paths, lock.base.interpreter, *base, *(f"/{name}" for name in top))


def _matrix(value: Extensions, published: Mapping[str, PublishedTarget], folder: Path) -> Extended:
    overlays = {
        name: Overlay(row=row, published=published[row.extends], folder=folder)
        for name, row in value.targets.items()
    }
    locks = [target.lock for target in published.values()]
    defaults = {default_index(lock): PackageIndex() for lock in locks}
    below = matrix_of(
        # The settings of all images are those of the first published target.
        {target.name: target.lock for target in published.values()},
        indexes={**defaults, **value.indexes},
        default_index=default_index(locks[0]),
        mirrors=value.mirrors,
    )
    targets = {name: _target(item, below) for name, item in overlays.items()}
    return Extended(
        **{
            **msgspec.structs.asdict(below),
            "targets": targets,
            "sdists": {**below.sdists, **value.sdists},
            "registry": value.registry,
            "overlays": overlays,
        }
    )


def _target(item: Overlay, below: Matrix) -> Target:
    """The published target with what a row adds, sets or replaces."""
    row, target = item.row, below.targets[item.published.name]
    pins = {**target.pins, **row.pins}
    return msgspec.structs.replace(
        target,
        summary=row.summary,
        arch=row.arch or target.arch,
        as_of=row.as_of or target.as_of,
        pins=pins,
        requires={name: each for name, each in row.requires.items() if name not in pins},
        indexes={**target.indexes, **row.indexes},
        drop=row.drop,
        links=row.links,
        env=row.env,
        labels=row.labels,
        waive=row.waive,
        accept_cves=row.accept_cves,
        tested=row.tested,
    )
