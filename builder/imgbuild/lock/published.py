"""Builds a user's targets from published ones and added packages, system packages and files.

A `matrix.yaml` with `published:` and the referenced locks yield an `Extended` matrix of complete
targets. Values that a row does not set come from the published lock. All commands work on these
targets as on any other.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import yaml
from packaging.specifiers import SpecifierSet

from imgbuild import codec
from imgbuild.errors import InputError
from imgbuild.lock import lock_file
from imgbuild.lock.lock_file import Lock
from imgbuild.lock.locked_matrix import default_index_of, matrix_of, versions_of
from imgbuild.lock.project_requirements import (
    ProjectRequirements,
    refuse_contradictions,
    requirements_of,
)
from imgbuild.matrix import constraints, flashinfer
from imgbuild.matrix import load as matrices
from imgbuild.matrix.check import check_matrix, check_sdist_packages, row_packages
from imgbuild.matrix.check_extensions import check_extensions
from imgbuild.matrix.constraints import Constraint
from imgbuild.matrix.convert import converted, refusal
from imgbuild.matrix.extension import Extension, Extensions, PublishedSource
from imgbuild.matrix.fields import STANDALONE, VERSION_LABEL
from imgbuild.matrix.model import (
    DebianBase,
    Flashinfer,
    Link,
    Matrix,
    PackageIndex,
    Target,
    Variable,
    Wanted,
)
from imgbuild.matrix.notes import Notes
from imgbuild.matrix.project_paths import CATALOGUE, MATRIX
from imgbuild.matrix.select import Selected
from imgbuild.matrix.settings import environment_first
from imgbuild.matrix.yaml_nodes import YamlDocument, content, parse
from imgbuild.system import boundary
from imgbuild.values import Arch, Digest, Sha256, markers, sha256

LOCK, DIGESTS_FILE = "lock.json", "digests.json"
# Packages that provide FlashInfer kernels in an image.
KERNEL_USERS = frozenset({flashinfer.PACKAGE, "sglang", "vllm"})
LAYOUT = "oci:"  # begins an `image` that is a folder


class PublishedTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A published target in the user's repository. `image` is the reference in the matrix.

    `hash` is the sha256 of lock.json; `digest` and `manifests` are from digests.json.
    """

    name: str
    folder: Path
    lock: Lock
    hash: Sha256
    digest: Digest
    manifests: dict[Arch, Digest]
    image: str


class Overlay(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the matrix in `folder`, its published target, and the project's requirements.

    With `extends` the published packages are kept; with `like` only its settings are used.
    """

    row: Extension
    published: PublishedTarget
    folder: Path
    requirements: ProjectRequirements = ProjectRequirements()

    def requirements_on(self, arch: Arch) -> ProjectRequirements:
        """The requirements on `arch`; InputError, with all problems of the files."""
        return requirements_of(
            self.row, self.folder, markers(self.published.lock.base.python, arch)
        )

    @property
    def layout(self) -> Path | None:
        """The layout with the published image; None if the matrix has none."""
        image = self.published.image
        return self.folder / image.removeprefix(LAYOUT) if image.startswith(LAYOUT) else None


class Extended(Matrix, frozen=True, kw_only=True):
    """A matrix of targets that extend published ones, with their overlays."""

    overlays: dict[str, Overlay]


class _Manifest(msgspec.Struct, frozen=True):
    manifest: Digest


class _Digests(msgspec.Struct, frozen=True):
    digest: Digest
    arch: dict[Arch, _Manifest]


def load(path: Path) -> Matrix:
    """Read the matrix at `path`, of either type; InputError with all its problems."""
    if path == CATALOGUE / MATRIX and (matrix := matrices.compiled(path)) is not None:
        return matrices.located(matrix, path.parent)
    try:
        document = parse(content(path), str(path))
    except OSError:
        return matrices.load(path)  # raises the error
    if document.root is None or not _has(document.root, "published"):
        matrix = converted(document, Matrix, check_matrix)
        return matrices.located(matrix, path.resolve().parent)
    return _extended(document, path)


def published(path: Path) -> Mapping[str, PublishedSource]:
    """The published targets of the matrix at `path`; InputError if it has none."""
    return extensions(path, content(path)).published


def is_extension(path: Path) -> bool:
    """Whether the matrix at `path` extends published targets."""
    document = parse(content(path), str(path))
    return document.root is not None and _has(document.root, "published")


def extensions(path: Path, data: bytes) -> Extensions:
    """Decode the matrix `data` for `path`; InputError with all its problems."""
    document = parse(data, str(path))
    if document.root is None or not _has(document.root, "published"):
        message = f"{path} extends no published target"
        raise InputError(
            message, hint="to create a matrix that does, run `imgbuild init` in another folder"
        )
    return converted(document, Extensions, check_extensions)


def planned(path: Path, data: bytes, edit: Callable[[Extensions], Extensions]) -> Extended:
    """The matrix `data` for `path` with `edit` applied. Writes nothing.

    InputError with all its problems.
    """
    return _extended(parse(data, str(path)), path, edit)


def overlay(matrix: Matrix, name: str) -> Overlay | None:
    """The additions of target `name` to a published target; None without a published target."""
    item = project_row(matrix, name)
    return item if item is not None and item.row.extends is not None else None


def project_row(matrix: Matrix, name: str) -> Overlay | None:
    """The row of target `name` with `extends` or `like`; None in other matrices."""
    return matrix.overlays.get(name) if isinstance(matrix, Extended) else None


def known_constraints(matrix: Matrix, images: Path) -> tuple[Constraint, ...]:
    """The learned constraints in `images`; for rows of a project also the catalogue's."""
    recorded = constraints.read(images)
    if not isinstance(matrix, Extended):
        return recorded
    return constraints.merge(constraints.read(CATALOGUE / "images"), recorded)


def shown_targets(matrix: Matrix, selected: Sequence[Selected]) -> list[Selected]:
    """`selected` for a table, with only the pinned ones of the published packages."""
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


def _extended(
    document: YamlDocument, path: Path, edit: Callable[[Extensions], Extensions] | None = None
) -> Extended:
    value = converted(document, Extensions, check_extensions)
    value = edit(value) if edit is not None else value
    folder = path.resolve().parent
    published_targets = {
        name: read(folder / item.lock, name, item.image) for name, item in value.published.items()
    }
    notes = Notes(document.file, document.place)
    versions = {key for each in published_targets.values() for key in versions_of(each.lock)}
    names = [*value.sdists, *row_packages(value.targets.values()), *sorted(versions)]
    check_sdist_packages(notes, value.sdists, dict.fromkeys(names))
    for each in published_targets.values():
        _check_published(notes, value, each)
    for name, row in value.targets.items():
        _check_row(notes, ("targets", name), row, published_targets[row.below])
        _check_sources(notes, ("targets", name, "files"), row, folder)
    if notes.problems:
        raise refusal(document, tuple(notes.problems))
    return matrices.located(_matrix(value, published_targets, folder), folder)


def read(folder: Path, name: str, image: str = "") -> PublishedTarget:
    """The published target `name` in `folder`; InputError if the folder has another target."""
    hint = "to copy both files again, run: imgbuild init --refresh"
    for file in (LOCK, DIGESTS_FILE):
        if not (folder / file).is_file():
            message = f"{folder / file}: no such file, although matrix.yaml extends {name}"
            raise InputError(message, hint=hint)
    data = boundary.content(folder / LOCK, codec.LIMIT)
    lock = lock_file.decode_lock(data, str(folder / LOCK), hint=hint, remedy=hint)
    target_digests = codec.read(folder / DIGESTS_FILE, _Digests, what="digests", hint=hint)
    if lock.target != name or lock.extends is not None:
        what = f"the lock of {lock.target}"
        what = f"{what}, itself an extension" if lock.extends is not None else what
        message = f"{folder / LOCK} is {what}, not the lock of {name}"
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
    """Note indexes and a digest that contradict the published target."""
    here = ("published", extended.name)
    default = default_index_of(extended.lock)
    used = {index: package for package, index in extended.lock.indexes.items() if index != default}
    for index, package in used.items():
        if index not in value.indexes:
            message = f"its {package} is from the index {index}, whose URL is unknown"
            notes.note((*here, "lock"), message, expected=f"indexes: {{{index}: {{url: …}}}}")
    _, _, digest = extended.image.partition("@")
    if digest and digest != extended.digest:
        message = f"{DIGESTS_FILE} has {extended.digest}"
        notes.note((*here, "image"), message, value=extended.image, expected="the same image")


def _check_row(
    notes: Notes, path: tuple[str, ...], row: Extension, extended: PublishedTarget
) -> None:
    """Note requirements of a row that contradict the published target."""
    lock = extended.lock
    for number, arch in enumerate(row.arch):
        notes.choice((*path, "arch", number), arch, lock.arch, f"architecture of {extended.name}")
    if row.extends is not None and row.as_of is not None and row.as_of.isoformat() < lock.as_of:
        message = f"the packages of {extended.name} were uploaded until {lock.as_of}"
        notes.note((*path, "as_of"), message, value=row.as_of, expected="that day or later")
    versions = versions_of(lock) if row.extends is not None else {}
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
            message = f"{drop.package} is in a layer of {extended.name}, which cannot be changed"
            notes.note((*path, "drop", number), message, expected="an added package")
    if row.packages and lock.base.kind != "debian":
        message = f"the base of {extended.name} is a registry image, not a set of Debian packages"
        notes.note((*path, "packages"), message, expected="no system packages")
    _check_places(notes, path, row, extended)
    values = {name: variable.value for name, variable in row.env.items()}
    environment_first(notes, (*path, "env"), lock.settings.prefix, values)


def _check_places(
    notes: Notes, path: tuple[str, ...], row: Extension, extended: PublishedTarget
) -> None:
    """Note files and links of a row that would replace required files."""
    lock = extended.lock
    for place in (*row.files, *row.links):
        field = "files" if place in row.files else "links"
        if place.startswith((f"{lock.settings.prefix}/", "/opt/imgbuild/", f"{STANDALONE}/")):
            message = "this folder is reserved for packages"
            notes.note((*path, field, place), message, key=True, expected="another folder")
        elif any(f"{protected}/".startswith(f"{place}/") for protected in _protected_paths(lock)):
            message = f"{extended.name} has this path, or requires one below it"
            notes.note((*path, field, place), message, key=True, expected="another path")


def _check_sources(notes: Notes, path: tuple[str, ...], row: Extension, folder: Path) -> None:
    """Note files of a row that are outside the repository, through a link."""
    for place, file in row.files.items():
        # Reading the file reports circular links.
        led = Path(os.path.realpath(folder / file.source))
        if not led.is_relative_to(folder):
            message = f"a symbolic link points to {led}, outside the repository"
            expected = "a file in the repository; copy the file into it"
            notes.note((*path, place, "from"), message, value=file.source, expected=expected)


def _protected_paths(lock: Lock) -> tuple[str, ...]:
    """The paths that files and links of a row, and folders on their paths, may not replace."""
    settings = lock.settings
    image_paths = (
        settings.prefix,
        settings.workdir,
        settings.cache,
        settings.user.home,
        "/opt/imgbuild",
        STANDALONE,
    )
    base = ("/etc/passwd", "/etc/group", "/usr/bin", "/usr/lib", "/usr/sbin", "/usr/local/bin")
    top = ("bin", "lib", "lib64", "sbin", "dev", "proc", "run", "sys", "tmp", "var/lib")
    return (*image_paths, lock.base.interpreter, *base, *(f"/{name}" for name in top))


def _matrix(value: Extensions, published: Mapping[str, PublishedTarget], folder: Path) -> Extended:
    locks = [target.lock for target in published.values()]
    defaults = {default_index_of(lock): PackageIndex() for lock in locks}
    catalogue = _catalogue(value)
    below = matrix_of(
        # The settings of all images are those of the first published target.
        {target.name: target.lock for target in published.values()},
        indexes={**defaults, **catalogue.indexes, **value.indexes},
        default_index=default_index_of(locks[0]),
        mirrors=value.mirrors,
    )
    overlays = {
        name: _overlay(row, published[row.below], folder) for name, row in value.targets.items()
    }
    bases = dict(below.bases)
    targets = {}
    for name, item in overlays.items():
        if item.row.extends is not None:
            target = _extending(item, below)
        else:
            everywhere = {
                name: wanted
                for name, wanted in catalogue.requires.items()
                if name in item.published.lock.requirements
            }
            target = _like(item, below, everywhere)
        base = bases[target.base]
        if item.row.like is not None and item.requirements.debian and isinstance(base, DebianBase):
            packages = tuple(sorted({*base.packages, *item.requirements.debian}))
            bases[name] = msgspec.structs.replace(base, packages=packages)
            target = msgspec.structs.replace(target, base=name)
        waived = (
            catalogue.targets[item.row.below].waive if item.row.below in catalogue.targets else ()
        )
        targets[name] = msgspec.structs.replace(target, waive=(*item.row.waive, *waived))
    return Extended(
        **{
            **msgspec.structs.asdict(below),
            "bases": bases,
            "targets": targets,
            "sdists": {**catalogue.sdists, **below.sdists, **value.sdists},
            "registry": value.registry,
            "overlays": overlays,
        }
    )


def _catalogue(value: Extensions) -> Matrix:
    """The package settings of the catalogue: indexes, buildable sdists, waivers.

    Only settings of targets that `value` extends are included.
    """
    matrix = load(CATALOGUE / MATRIX)
    copied = {name for name, item in value.published.items() if item.origin == "catalogue"}
    targets = {name: target for name, target in matrix.targets.items() if name in copied}
    return msgspec.structs.replace(matrix, targets=targets)


def _overlay(row: Extension, target: PublishedTarget, folder: Path) -> Overlay:
    """The overlay of a row, with the requirements of files on its first architecture."""
    item = Overlay(row=row, published=target, folder=folder)
    required = item.requirements_on(next(iter(row.arch or target.lock.arch)))
    if row.extends is not None:
        refuse_contradictions(required, versions_of(target.lock), target.name)
    return msgspec.structs.replace(item, requirements=required)


def _extending(item: Overlay, below: Matrix) -> Target:
    """The published target with the row's additions and settings."""
    row, target, required = item.row, below.targets[item.published.name], item.requirements
    added = {name: pin for name, pin in required.pins.items() if name not in target.pins}
    pins = {**target.pins, **added, **row.pins}
    requires = {**_requirements_of(required), **row.requires}
    return msgspec.structs.replace(
        target,
        summary=row.summary,
        arch=row.arch or target.arch,
        as_of=row.as_of or target.as_of,
        pins=pins,
        requires={name: each for name, each in requires.items() if name not in pins},
        indexes={**target.indexes, **row.indexes},
        drop=row.drop,
        links=row.links,
        env=row.env,
        labels=row.labels,
        accept_cves=row.accept_cves,
        tested=row.tested,
    )


def _requirements_of(required: ProjectRequirements) -> dict[str, Wanted]:
    return {
        package: Wanted(spec=spec, reason=f"required by {required.places[package]}")
        for package, spec in required.versions.items()
    }


def _like(item: Overlay, below: Matrix, of_all: Mapping[str, Wanted]) -> Target:
    """A target with base and settings of the published one, whose packages are resolved.

    `of_all` are the requirements of every image.
    """
    row, required, lock = item.row, item.requirements, item.published.lock
    target = below.targets[item.published.name]
    settings, base = lock.settings, below.bases[target.base]
    mode = lock.flashinfer if required.named & KERNEL_USERS else "off"
    env, links = dict(settings.env), dict(settings.links)
    if mode != lock.flashinfer:  # without the settings of the published target's mode
        for name in flashinfer.environment(target, below.image, base).keys() & env.keys():
            del env[name]
        for path in flashinfer.links(target, below.image, base).keys() & links.keys():
            del links[path]
        toolkit = flashinfer.toolkit(target, below.image, base)
        env |= {"PATH": env["PATH"].removesuffix(f":{toolkit}/bin")} if "PATH" in env else {}
    reason = f"as in the lock of {lock.target}"
    pins = {**required.pins, **row.pins}
    requires = {**of_all, **_requirements_of(required), **row.requires}
    return msgspec.structs.replace(
        target,
        summary=row.summary,
        cuda=row.cuda or target.cuda,
        gpu=row.gpu or target.gpu,
        arch=row.arch or target.arch,
        as_of=row.as_of or target.as_of,
        pins=dict(sorted(pins.items())),
        requires={name: each for name, each in requires.items() if name not in pins},
        flashinfer=Flashinfer(mode=mode, reason=reason),
        indexes={**target.indexes, **row.indexes},
        drop=(*lock.drop, *row.drop),
        links={**{path: Link(to=to, reason=reason) for path, to in links.items()}, **row.links},
        env={
            **{name: Variable(value=text, reason=reason) for name, text in env.items()},
            **row.env,
        },
        labels={**_inherited(settings.labels), **row.labels},
        accept_cves=row.accept_cves,
        tested=row.tested,
    )


def _inherited(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels of a published image that are independent of its packages."""
    prefixes = ("dev.imgbuild.", "org.opencontainers.image.title", "org.opencontainers.image.base")
    return {name: text for name, text in labels.items() if not name.startswith(prefixes)}
