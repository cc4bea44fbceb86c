"""A user's own targets: published ones with packages, system packages and files added.

From a `matrix.yaml` with `published:` and the locks that it names follows an `Extended` matrix of
complete targets: what a row does not set is taken from the published lock. So all commands work on
them as on any target.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml
from msgspec import inspect
from packaging.specifiers import SpecifierSet

from imgbuild import codec
from imgbuild.errors import InputError
from imgbuild.lock import lock as locks
from imgbuild.lock.lock import Lock
from imgbuild.matrix import load as matrices
from imgbuild.matrix.check import check_sdists, check_shared
from imgbuild.matrix.extension import Extension, Extensions, PublishedSource, check_extensions
from imgbuild.matrix.model import (
    Base,
    DebianBase,
    Flashinfer,
    Image,
    Layers,
    Matrix,
    PackageIndex,
    RegistryBase,
    Sdist,
    Target,
)
from imgbuild.matrix.notes import Notes
from imgbuild.matrix.select import Selected
from imgbuild.matrix.settings import environment_first
from imgbuild.matrix.validate import walk
from imgbuild.matrix.yaml_nodes import YamlDocument, content, parse
from imgbuild.system import boundary
from imgbuild.values import Arch, Digest, Sha256, sha256

LOCK, SEAL = "lock.json", "digests.json"
LAYOUT = "oci:"  # begins an `image` that is a folder
VERSION_LABEL = "dev.imgbuild.version."


class PublishedTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A published target in the user's repository `root`.

    `image` is the reference in the matrix, `hash` the sha256 of lock.json; `digest` and `manifests`
    are those of digests.json.
    """

    name: str
    folder: Path
    lock: Lock
    hash: Sha256
    digest: Digest
    manifests: dict[Arch, Digest]
    image: str
    root: Path

    @property
    def layout(self) -> Path | None:
        """The layout with its image; None if `image` does not name one."""
        return (
            self.root / self.image.removeprefix(LAYOUT) if self.image.startswith(LAYOUT) else None
        )


class Extended(Matrix, frozen=True, kw_only=True):
    """A matrix whose targets extend published ones; `folder` is that of the file."""

    folder: Path
    rows: dict[str, Extension]
    published: dict[str, PublishedTarget]


class _Manifest(msgspec.Struct, frozen=True):
    manifest: Digest


class _Sealed(msgspec.Struct, frozen=True):
    digest: Digest
    arch: dict[Arch, _Manifest]


def load(path: Path) -> Matrix:
    """Read the matrix at `path`, of either kind; InputError with all its problems."""
    try:
        document = parse(content(path), str(path))
    except OSError:
        return matrices.load(path)  # raises the error
    if document.root is None or not _has(document.root, "published"):
        return matrices.load(path)
    return _extended(document, path)


def published(path: Path) -> Mapping[str, PublishedSource]:
    """The published targets that the matrix at `path` names; InputError if it names none."""
    document = parse(content(path), str(path))
    if document.root is None or not _has(document.root, "published"):
        message = f"{path} extends no published target"
        raise InputError(message, hint="run imgbuild init in another folder to write one that does")
    return _read(document, str(path))[0].published


def extended_target(matrix: Matrix, name: str) -> PublishedTarget | None:
    """The published target that target `name` extends; None if it extends none."""
    if not isinstance(matrix, Extended) or name not in matrix.rows:
        return None
    return matrix.published[matrix.rows[name].extends]


def added_packages(matrix: Matrix, name: str) -> tuple[str, ...]:
    """The Debian packages that target `name` adds to its published target."""
    return matrix.rows[name].packages if isinstance(matrix, Extended) else ()


def shown(matrix: Matrix, selected: Sequence[Selected]) -> list[Selected]:
    """`selected` for a table: of published packages only those that its publishers pinned."""
    return [
        msgspec.structs.replace(item, target=_named(matrix, item.name, item.target))
        for item in selected
    ]


def _named(matrix: Matrix, name: str, target: Target) -> Target:
    found = extended_target(matrix, name)
    if found is None or not isinstance(matrix, Extended):
        return target
    labels = found.lock.settings.labels
    named = {key.removeprefix(VERSION_LABEL) for key in labels if key.startswith(VERSION_LABEL)}
    named |= matrix.rows[name].pins.keys()
    pins = {package: pin for package, pin in target.pins.items() if package in named}
    return msgspec.structs.replace(target, pins=pins)


# -- reading


def _has(root: yaml.Node, key: str) -> bool:
    pairs = root.value if isinstance(root, yaml.MappingNode) else ()
    return any(name.value == key for name, _ in pairs)


def _read(document: YamlDocument, file: str) -> tuple[Extensions, Notes, Any]:
    """The file without the published locks, also as plain data; InputError with all problems."""
    walked = walk(document.root or yaml.MappingNode("", []), inspect.type_info(Extensions), file)
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
    found = {
        name: read(folder / item.lock, name, item.image, folder)
        for name, item in value.published.items()
    }
    check_sdists(
        notes, plain, sorted({key for each in found.values() for key in _versions(each.lock)})
    )
    for each in found.values():
        _check_published(notes, value, each)
    for name, row in value.targets.items():
        _check_row(notes, ("targets", name), row, found[row.extends])
        _check_sources(notes, ("targets", name, "files"), row, folder)
    if notes.problems:
        raise matrices.refusal(file, tuple(notes.problems), document.text)
    return matrices.located(_matrix(value, found, folder), folder)


def read(folder: Path, name: str, image: str = "", root: Path = Path()) -> PublishedTarget:
    """The published target `name` in `folder`; InputError if the folder has another one."""
    hint = "copy both files again from where the target is published: imgbuild init --refresh"
    for file in (LOCK, SEAL):
        if not (folder / file).is_file():
            message = f"{folder / file}: no such file, but matrix.yaml extends {name}"
            raise InputError(message, hint=hint)
    data = boundary.content(folder / LOCK, codec.LIMIT)
    lock = locks.decode_lock(data, str(folder / LOCK), hint=hint, remedy=hint)
    sealed = codec.read(folder / SEAL, _Sealed, what="seal", hint=hint)
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
        digest=sealed.digest,
        manifests={arch: item.manifest for arch, item in sealed.arch.items()},
        image=image,
        root=root,
    )


def default_index(lock: Lock) -> str:
    """The name that `lock` has for the default index."""
    wheels = (wheel for found in lock.arch.values() for wheel in found.wheels)
    return next((item.index for item in wheels if item.package not in lock.indexes), "default")


def _check_published(notes: Notes, value: Extensions, found: PublishedTarget) -> None:
    """Note indexes and a digest that do not fit what is published."""
    here = ("published", found.name)
    default = default_index(found.lock)
    used = {index: package for package, index in found.lock.indexes.items() if index != default}
    for index, package in used.items():
        if index not in value.indexes:
            message = f"its {package} comes from the index {index}, whose address is not known"
            notes.note((*here, "lock"), message, expected=f"indexes: {{{index}: {{url: …}}}}")
    _, _, digest = found.image.partition("@")
    if digest and digest != found.digest:
        message = f"{SEAL} says {found.digest}"
        notes.note((*here, "image"), message, value=found.image, expected="the same image")


def _check_row(notes: Notes, path: tuple[str, ...], row: Extension, found: PublishedTarget) -> None:
    """Note what a row asks for that contradicts the published target."""
    lock = found.lock
    for number, arch in enumerate(row.arch):
        notes.known((*path, "arch", number), arch, lock.arch, f"architecture of {found.name}")
    if row.as_of is not None and row.as_of.isoformat() < lock.as_of:
        message = f"the packages of {found.name} were uploaded until {lock.as_of}"
        notes.note((*path, "as_of"), message, value=row.as_of, expected="that day or a later one")
    versions = _versions(lock)
    wanted = {package: f"=={version}" for package, version in row.pins.items()}
    for field, specs in (
        ("pins", wanted),
        ("requires", {k: v.spec for k, v in row.requires.items()}),
    ):
        for package, spec in specs.items():
            has = versions.get(package)
            if has is not None and not SpecifierSet(spec).contains(has, prereleases=True):
                message = f"{found.name} has {package} {has}, which an extension cannot change"
                expected = f"{has}, or a published target that has {package}{spec}"
                notes.note((*path, field, package), message, value=spec, expected=expected)
    for number, drop in enumerate(row.drop):
        if drop.package in versions:
            message = f"{drop.package} is in layers of {found.name}, which cannot change"
            notes.note((*path, "drop", number), message, expected="an added package")
    if row.packages and lock.base.kind != "debian":
        message = f"the base of {found.name} is an image of a registry, not Debian packages"
        notes.note((*path, "packages"), message, expected="no system packages")
    _check_places(notes, path, row, found)
    values = {name: variable.value for name, variable in row.env.items()}
    environment_first(notes, (*path, "env"), lock.settings.prefix, values)


def _check_places(
    notes: Notes, path: tuple[str, ...], row: Extension, found: PublishedTarget
) -> None:
    """Note files and links of a row that would replace something that is needed."""
    lock = found.lock
    for place in (*row.files, *row.links):
        field = "files" if place in row.files else "links"
        if place.startswith((f"{lock.settings.prefix}/", "/opt/imgbuild/")):
            message = "packages provide everything below this folder"
            notes.note((*path, field, place), message, key=True, expected="another folder")
        elif any(f"{kept}/".startswith(f"{place}/") for kept in _kept(lock)):
            message = f"{found.name} has this path, or needs one below it"
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


def _kept(lock: Lock) -> tuple[str, ...]:
    """Paths that no file or link of a row may replace, nor a folder above one."""
    settings = lock.settings
    own = (settings.prefix, settings.workdir, settings.cache, settings.user.home, "/opt/imgbuild")
    base = ("/etc/passwd", "/etc/group", "/usr/bin", "/usr/lib", "/usr/sbin", "/usr/local/bin")
    top = ("bin", "lib", "lib64", "sbin", "dev", "proc", "run", "sys", "tmp", "var/lib")
    return (*own, lock.base.interpreter, *base, *(f"/{name}" for name in top))


def _versions(lock: Lock) -> dict[str, str]:
    """Package → version of everything in `lock`, on all architectures."""
    return {key: version for item in lock.arch.values() for key, version in item.versions.items()}


def _matrix(value: Extensions, found: Mapping[str, PublishedTarget], folder: Path) -> Extended:
    first = next(iter(found.values())).lock
    bases = _bases(found.values(), value.mirrors)
    built = {item.package: item for each in found.values()
             for arch in each.lock.arch.values() for item in arch.built}  # fmt: skip
    defaults = {default_index(each.lock): PackageIndex() for each in found.values()}
    return Extended(
        version=1,
        indexes={**defaults, **value.indexes},
        default_index=default_index(first),
        bases=dict(bases.values()),
        image=image_of(first),
        layers=Layers(**msgspec.structs.asdict(first.layers)),
        requires={},
        targets={
            name: _target(row, found[row.extends], bases[row.extends][0])
            for name, row in value.targets.items()
        },
        sdists={
            **{package: Sdist(reason=_of(first), env=item.env) for package, item in built.items()},
            **value.sdists,
        },
        registry=value.registry,
        folder=folder,
        rows=value.targets,
        published=dict(found),
    )


def _bases(
    found: Iterable[PublishedTarget], mirrors: tuple[str, ...]
) -> dict[str, tuple[str, Base]]:
    """Published target → name and value of its base.

    If two publishers use one name for different bases, both are kept.
    """
    named: dict[str, Base] = {}
    bases = {}
    for each in found:
        base, name = base_of(each.lock, mirrors), each.lock.base.name
        if named.setdefault(name, base) != base:
            name = f"{name} of {each.name}"
        bases[each.name] = (name, base)
    return bases


def image_of(lock: Lock) -> Image:
    """The image settings of a matrix, from those of `lock`."""
    settings = lock.settings
    return Image(
        prefix=settings.prefix,
        user=settings.user,
        workdir=settings.workdir,
        cache=settings.cache,
        env={},
        labels={},
        entrypoint=settings.entrypoint,
        cmd=settings.cmd,
    )


def base_of(lock: Lock, mirrors: tuple[str, ...]) -> Base:
    """The base of `lock`; `mirrors` are Debian archives in addition to the machine's."""
    base = lock.base
    if base.kind == "debian":
        return DebianBase(
            suite=base.suite, python=base.python, glibc=base.glibc, packages=base.packages,
            mirrors=mirrors,
            security=mirrors if any(one.security for one in lock.arch.values()) else None,
            hardened=base.hardened is True,
        )  # fmt: skip
    return RegistryBase(
        image=base.image, python=base.python, glibc=base.glibc, interpreter=base.interpreter
    )


def _target(row: Extension, found: PublishedTarget, base: str) -> Target:
    """A row as a complete target on `base`, with the published versions as pins."""
    lock = found.lock
    pins = {**_versions(lock), **row.pins}
    return Target(
        summary=row.summary,
        base=base,
        cuda=lock.cuda,
        arch=row.arch or tuple(lock.arch),
        as_of=row.as_of or datetime.date.fromisoformat(lock.as_of),
        pins=pins,
        flashinfer=msgspec.convert({"mode": lock.flashinfer, "reason": _of(lock)}, Flashinfer),
        gpu=tuple(lock.settings.labels.get("dev.imgbuild.gpu", "").split()),
        requires={name: each for name, each in row.requires.items() if name not in pins},
        indexes={**lock.indexes, **row.indexes},
        drop=row.drop,
        links=row.links,
        env=row.env,
        labels=row.labels,
        waive=row.waive,
        accept_cves=row.accept_cves,
        tested=row.tested,
    )


def _of(lock: Lock) -> str:
    return f"as in the published target {lock.target}"
