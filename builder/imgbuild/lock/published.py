"""Creates a user's targets from published targets and added packages, system packages and files.

A `matrix.yaml` with `published:`, together with the locks that it references, is converted to an
`ExtendedMatrix` of complete targets, which all commands accept. Values that a row does not set come
from the published lock.
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
from imgbuild.lock.locked_matrix import default_index_name, locked_versions, matrix_from_locks
from imgbuild.lock.project_requirements import (
    ProjectRequirements,
    refuse_contradictions,
    row_requirements,
)
from imgbuild.matrix import constraints, flashinfer
from imgbuild.matrix import load as matrices
from imgbuild.matrix.check import check_matrix, check_sdist_packages, row_packages
from imgbuild.matrix.check_extensions import check_extensions
from imgbuild.matrix.constraints import Constraint
from imgbuild.matrix.convert import convert_document, refusal_error
from imgbuild.matrix.extension import Extension, Extensions, PublishedSource
from imgbuild.matrix.fields import STANDALONE_PREFIX, VERSION_LABEL
from imgbuild.matrix.model import (
    DebianBase,
    Flashinfer,
    Link,
    Matrix,
    PackageIndex,
    RequiredPackage,
    Target,
    Variable,
)
from imgbuild.matrix.notes import ProblemNotes
from imgbuild.matrix.project_paths import CATALOGUE, MATRIX
from imgbuild.matrix.select import Selected
from imgbuild.matrix.settings import environment_first
from imgbuild.matrix.yaml_nodes import YamlDocument, parse_yaml, read_content
from imgbuild.system import boundary
from imgbuild.values import Arch, Digest, Sha256, environment_markers, sha256

LOCK, DIGESTS_FILE = "lock.json", "digests.json"
# Packages that provide FlashInfer kernels in an image.
KERNEL_USERS = frozenset({flashinfer.PACKAGE, "sglang", "vllm"})
LAYOUT = "oci:"  # begins an `image` that is a folder


class PublishedTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A copy of a published target in the user's repository.

    `hash` is the SHA-256 of lock.json. `digest` and `manifests` are from digests.json, and `image`
    is from the matrix.
    """

    name: str
    folder: Path
    lock: Lock
    hash: Sha256
    digest: Digest
    manifests: dict[Arch, Digest]
    image: str


class TargetOverlay(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the matrix in `folder`, its published target, and the project's requirements.

    With `extends`, the published packages are kept. With `like`, only the published settings are
    used.
    """

    row: Extension
    published: PublishedTarget
    folder: Path
    requirements: ProjectRequirements = ProjectRequirements()

    def requirements_for(self, arch: Arch) -> ProjectRequirements:
        """Return the requirements on `arch`.

        Raises InputError with all problems in the files.
        """
        return row_requirements(
            self.row, self.folder, environment_markers(self.published.lock.base.python, arch)
        )

    @property
    def prefers_gpus(self) -> bool:
        """True if the GPUs of the published target are a preference instead of a requirement."""
        return self.row.like is not None and not self.row.gpu

    @property
    def published_layout(self) -> Path | None:
        """The OCI layout with the published image, or None if the image is not in a layout."""
        image = self.published.image
        return self.folder / image.removeprefix(LAYOUT) if image.startswith(LAYOUT) else None


class ExtendedMatrix(Matrix, frozen=True, kw_only=True):
    """A matrix of targets that extend published targets, and the overlays of the targets."""

    overlays: dict[str, TargetOverlay]


class _ManifestFields(msgspec.Struct, frozen=True):
    manifest: Digest


class _DigestFields(msgspec.Struct, frozen=True):
    digest: Digest
    arch: dict[Arch, _ManifestFields]


def load_matrix(path: Path) -> Matrix:
    """Read the matrix at `path`, with or without `published:`.

    Raises InputError with all problems.
    """
    if path == CATALOGUE / MATRIX and (matrix := matrices.load_compiled_matrix(path)) is not None:
        return matrices.locate_indexes(matrix, path.parent)
    try:
        document = parse_yaml(read_content(path), str(path))
    except OSError:
        return matrices.load_matrix(path)  # raises the error
    if document.root is None or not _document_has(document.root, "published"):
        matrix = convert_document(document, Matrix, check_matrix)
        return matrices.locate_indexes(matrix, path.resolve().parent)
    return _extend_matrix(document, path)


def published_sources(path: Path) -> Mapping[str, PublishedSource]:
    """Return the published targets of the matrix at `path`.

    Raises InputError if there are none.
    """
    return decode_extensions(path, read_content(path)).published


def is_extension(path: Path) -> bool:
    """Return whether the matrix at `path` extends published targets."""
    document = parse_yaml(read_content(path), str(path))
    return document.root is not None and _document_has(document.root, "published")


def decode_extensions(path: Path, data: bytes) -> Extensions:
    """Decode the matrix `data` of the file `path`.

    Raises InputError with all problems.
    """
    document = parse_yaml(data, str(path))
    if document.root is None or not _document_has(document.root, "published"):
        message = f"{path} does not extend a published target"
        raise InputError(
            message,
            hint="to create a matrix that extends one, run `imgbuild init` in another folder",
        )
    return convert_document(document, Extensions, check_extensions)


def plan_matrix(
    path: Path, data: bytes, edit: Callable[[Extensions], Extensions]
) -> ExtendedMatrix:
    """Apply `edit` to the matrix `data` of the file `path`, without writing the file.

    Raises InputError with all problems in the new matrix.
    """
    return _extend_matrix(parse_yaml(data, str(path)), path, edit)


def find_overlay(matrix: Matrix, name: str) -> TargetOverlay | None:
    """Return the overlay of target `name`, or None if it is not based on a published target."""
    item = project_row(matrix, name)
    return item if item is not None and item.row.extends is not None else None


def project_row(matrix: Matrix, name: str) -> TargetOverlay | None:
    """Return the row of target `name`, or None if the row has neither `extends` nor `like`."""
    return matrix.overlays.get(name) if isinstance(matrix, ExtendedMatrix) else None


def known_constraints(matrix: Matrix, images: Path) -> tuple[Constraint, ...]:
    """Return the constraints in `images` and, for a project, the catalogue's constraints."""
    recorded = constraints.read_constraints(images)
    if not isinstance(matrix, ExtendedMatrix):
        return recorded
    return constraints.merge_constraints(
        constraints.read_constraints(CATALOGUE / "images"), recorded
    )


def shown_targets(matrix: Matrix, selected: Sequence[Selected]) -> list[Selected]:
    """Return `selected` for a table.

    Packages of published targets are included only if they are pinned.
    """
    return [
        msgspec.structs.replace(
            item, target=_published_row(find_overlay(matrix, item.name), item.target)
        )
        for item in selected
    ]


def _published_row(item: TargetOverlay | None, target: Target) -> Target:
    if item is None:
        return target
    labels = item.published.lock.settings.labels
    named = {key.removeprefix(VERSION_LABEL) for key in labels if key.startswith(VERSION_LABEL)}
    named |= item.row.pins.keys()
    pins = {package: pin for package, pin in target.pins.items() if package in named}
    return msgspec.structs.replace(target, pins=pins)


# -- reading


def _document_has(root: yaml.Node, key: str) -> bool:
    pairs = root.value if isinstance(root, yaml.MappingNode) else ()
    return any(name.value == key for name, _ in pairs)


def _extend_matrix(
    document: YamlDocument, path: Path, edit: Callable[[Extensions], Extensions] | None = None
) -> ExtendedMatrix:
    value = convert_document(document, Extensions, check_extensions)
    value = edit(value) if edit is not None else value
    folder = path.resolve().parent
    published_targets = {
        name: read_published_target(folder / item.lock, name, item.image)
        for name, item in value.published.items()
    }
    notes = ProblemNotes(document.file, document.place)
    versions = {key for each in published_targets.values() for key in locked_versions(each.lock)}
    names = [*value.sdists, *row_packages(value.targets.values()), *sorted(versions)]
    check_sdist_packages(notes, value.sdists, dict.fromkeys(names))
    for each in published_targets.values():
        _check_published(notes, value, each)
    for name, row in value.targets.items():
        _check_row(notes, ("targets", name), row, published_targets[row.published_name])
        _check_sources(notes, ("targets", name, "files"), row, folder)
    if notes.problems:
        raise refusal_error(document, tuple(notes.problems))
    return matrices.locate_indexes(_matrix(value, published_targets, folder), folder)


def read_published_target(folder: Path, name: str, image: str = "") -> PublishedTarget:
    """Return the published target `name` in `folder`.

    Raises InputError if the lock in the folder belongs to another target.
    """
    hint = "to copy both files again, run: imgbuild init --refresh"
    for file in (LOCK, DIGESTS_FILE):
        if not (folder / file).is_file():
            message = f"{folder / file}: no such file, but matrix.yaml extends {name}"
            raise InputError(message, hint=hint)
    data = boundary.read_regular_file(folder / LOCK, codec.LIMIT)
    lock = lock_file.decode_lock(data, str(folder / LOCK), hint=hint, remedy=hint)
    target_digests = codec.read_document(
        folder / DIGESTS_FILE, _DigestFields, what="digests", hint=hint
    )
    if lock.target != name or lock.extends is not None:
        what = f"the lock of {lock.target}"
        what = f"{what}, which is an extension itself" if lock.extends is not None else what
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


def _check_published(notes: ProblemNotes, value: Extensions, extended: PublishedTarget) -> None:
    here = ("published", extended.name)
    default = default_index_name(extended.lock)
    used = {index: package for package, index in extended.lock.indexes.items() if index != default}
    for index, package in used.items():
        if index not in value.indexes:
            message = f"{package} is from the index {index}, whose URL is unknown"
            notes.note((*here, "lock"), message, expected=f"indexes: {{{index}: {{url: …}}}}")
    _, _, digest = extended.image.partition("@")
    if digest and digest != extended.digest:
        message = f"the digest in {DIGESTS_FILE} is {extended.digest}"
        notes.note((*here, "image"), message, value=extended.image, expected="the same image")


def _check_row(
    notes: ProblemNotes, path: tuple[str, ...], row: Extension, extended: PublishedTarget
) -> None:
    lock = extended.lock
    for number, arch in enumerate(row.arch):
        notes.check_choice(
            (*path, "arch", number), arch, lock.arch, f"architecture of {extended.name}"
        )
    if row.extends is not None and row.as_of is not None and row.as_of.isoformat() < lock.as_of:
        message = f"{extended.name} contains packages uploaded until {lock.as_of}"
        notes.note((*path, "as_of"), message, value=row.as_of, expected="that day or later")
    versions = locked_versions(lock) if row.extends is not None else {}
    pinned = {package: f"=={version}" for package, version in row.pins.items()}
    for field, specs in (
        ("pins", pinned),
        ("requires", {k: v.spec for k, v in row.requires.items()}),
    ):
        for package, spec in specs.items():
            has = versions.get(package)
            if has is not None and not SpecifierSet(spec).contains(has, prereleases=True):
                message = f"{extended.name} has {package} {has}, which an extension cannot change"
                expected = (
                    f"{has}, a published target that has {package}{spec}, or like: in place of "
                    "extends:, which solves again with other versions (imgbuild init --target)"
                )
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
    notes: ProblemNotes, path: tuple[str, ...], row: Extension, extended: PublishedTarget
) -> None:
    """Report files and links of a row that would replace required files."""
    lock = extended.lock
    for place in (*row.files, *row.links):
        field = "files" if place in row.files else "links"
        if place.startswith(
            (f"{lock.settings.prefix}/", "/opt/imgbuild/", f"{STANDALONE_PREFIX}/")
        ):
            message = "this folder is reserved for packages"
            notes.note((*path, field, place), message, key=True, expected="another folder")
        elif any(f"{protected}/".startswith(f"{place}/") for protected in _protected_paths(lock)):
            message = f"{extended.name} has this path, or requires a path below this path"
            notes.note((*path, field, place), message, key=True, expected="another path")


def _check_sources(
    notes: ProblemNotes, path: tuple[str, ...], row: Extension, folder: Path
) -> None:
    """Report files of a row that are outside of the repository after links are resolved."""
    for place, file in row.files.items():
        # Reading the file reports circular links.
        led = Path(os.path.realpath(folder / file.source))
        if not led.is_relative_to(folder):
            message = f"a symbolic link points to {led}, outside the repository"
            expected = "a file in the repository; copy the file into the repository"
            notes.note((*path, place, "from"), message, value=file.source, expected=expected)


def _protected_paths(lock: Lock) -> tuple[str, ...]:
    settings = lock.settings
    image_paths = (
        settings.prefix,
        settings.workdir,
        settings.cache,
        settings.user.home,
        "/opt/imgbuild",
        STANDALONE_PREFIX,
    )
    base = ("/etc/passwd", "/etc/group", "/usr/bin", "/usr/lib", "/usr/sbin", "/usr/local/bin")
    top = ("bin", "lib", "lib64", "sbin", "dev", "proc", "run", "sys", "tmp", "var/lib")
    return (*image_paths, lock.base.interpreter, *base, *(f"/{name}" for name in top))


def _matrix(
    value: Extensions, published: Mapping[str, PublishedTarget], folder: Path
) -> ExtendedMatrix:
    locks = [target.lock for target in published.values()]
    defaults = {default_index_name(lock): PackageIndex() for lock in locks}
    catalogue = _catalogue(value)
    below = matrix_from_locks(
        # The settings of all images are those of the first published target.
        {target.name: target.lock for target in published.values()},
        indexes={**defaults, **catalogue.indexes, **value.indexes},
        default_index=default_index_name(locks[0]),
        mirrors=value.mirrors,
    )
    overlays = {
        name: _overlay(row, published[row.published_name], folder)
        for name, row in value.targets.items()
    }
    bases = dict(below.bases)
    targets = {}
    for name, item in overlays.items():
        if item.row.extends is not None:
            target = _extended_target(item, below)
        else:
            everywhere = {
                name: wanted
                for name, wanted in catalogue.requires.items()
                if name in item.published.lock.requirements
            }
            target = _similar_target(item, below, everywhere)
        base = bases[target.base]
        if item.row.like is not None and item.requirements.debian and isinstance(base, DebianBase):
            packages = tuple(sorted({*base.packages, *item.requirements.debian}))
            bases[name] = msgspec.structs.replace(base, packages=packages)
            target = msgspec.structs.replace(target, base=name)
        waived = (
            catalogue.targets[item.row.published_name].waive
            if item.row.published_name in catalogue.targets
            else ()
        )
        targets[name] = msgspec.structs.replace(target, waive=(*item.row.waive, *waived))
    return ExtendedMatrix(
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
    """Return the catalogue's indexes, sdists to build, and waivers.

    Only the settings of targets that `value` extends are included.
    """
    matrix = load_matrix(CATALOGUE / MATRIX)
    copied = {name for name, item in value.published.items() if item.origin == "catalogue"}
    targets = {name: target for name, target in matrix.targets.items() if name in copied}
    return msgspec.structs.replace(matrix, targets=targets)


def _overlay(row: Extension, target: PublishedTarget, folder: Path) -> TargetOverlay:
    """Create an overlay with the requirements on the row's first architecture."""
    item = TargetOverlay(row=row, published=target, folder=folder)
    required = item.requirements_for(next(iter(row.arch or target.lock.arch)))
    if row.extends is not None:
        refuse_contradictions(required, locked_versions(target.lock), target.name)
    return msgspec.structs.replace(item, requirements=required)


def _extended_target(item: TargetOverlay, below: Matrix) -> Target:
    row, target, required = item.row, below.targets[item.published.name], item.requirements
    added = {name: pin for name, pin in required.pins.items() if name not in target.pins}
    pins = {**target.pins, **added, **row.pins}
    requires = {**_required_packages(required), **row.requires}
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


def _required_packages(required: ProjectRequirements) -> dict[str, RequiredPackage]:
    return {
        package: RequiredPackage(spec=spec, reason=f"required by {required.places[package]}")
        for package, spec in required.versions.items()
    }


def _similar_target(
    item: TargetOverlay, below: Matrix, of_all: Mapping[str, RequiredPackage]
) -> Target:
    """Create a target with the base and settings, but not the packages, of a published target.

    `of_all` are the requirements that apply to every image.
    """
    row, required, lock = item.row, item.requirements, item.published.lock
    target = below.targets[item.published.name]
    settings, base = lock.settings, below.bases[target.base]
    mode = lock.flashinfer if required.direct_packages & KERNEL_USERS else "off"
    env, links = dict(settings.env), dict(settings.links)
    if mode != lock.flashinfer:  # without the settings of the published target's mode
        for name in flashinfer.mode_environment(target, below.image, base).keys() & env.keys():
            del env[name]
        for path in flashinfer.toolkit_links(target, below.image, base).keys() & links.keys():
            del links[path]
        toolkit = flashinfer.toolkit_folder(target, below.image, base)
        env |= {"PATH": env["PATH"].removesuffix(f":{toolkit}/bin")} if "PATH" in env else {}
    reason = f"as in the lock of {lock.target}"
    pins = {**required.pins, **row.pins}
    requires = {**of_all, **_required_packages(required), **row.requires}
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
        labels={**_inherited_labels(settings.labels), **row.labels},
        accept_cves=row.accept_cves,
        tested=row.tested,
    )


def _inherited_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of a published image that do not depend on packages."""
    prefixes = ("dev.imgbuild.", "org.opencontainers.image.title", "org.opencontainers.image.base")
    return {name: text for name, text in labels.items() if not name.startswith(prefixes)}
