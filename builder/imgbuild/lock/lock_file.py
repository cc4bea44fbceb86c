"""Reads and writes the lock `images/TARGET/lock.json`, which lists every input of an image."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path

import msgspec

from imgbuild import codec
from imgbuild.errors import InputError, InputProblem, LockStale
from imgbuild.lock import check, drift
from imgbuild.lock.model import (
    AddedFile,
    AddedFolder,
    AddedInputs,
    Extends,
    ImageSettings,
    LayerRules,
    Lock,
    LockedBase,
)
from imgbuild.lock.resolution import Resolution
from imgbuild.matrix import flashinfer
from imgbuild.matrix.fields import (
    GPU_LABEL,
    STANDALONE_PREFIX,
    VERSION_LABEL,
    LockedVersion,
    Package,
)
from imgbuild.matrix.model import Base, DebianBase, Matrix, Target
from imgbuild.matrix.project_paths import CATALOGUE
from imgbuild.system import boundary
from imgbuild.values import Arch

FILE = "lock.json"
LOCK_FORMAT = 1
NO_USER_SITE = "PYTHONNOUSERSITE"  # Python does not import the user's packages

# This module exports the types of a lock as well.
__all__ = (
    "AddedFile",
    "AddedFolder",
    "AddedInputs",
    "Extends",
    "ImageSettings",
    "LayerRules",
    "Lock",
    "LockedBase",
)


def published_lock(lock: Lock, arch: Arch) -> Lock:
    """Return the part of an extension's lock that determines the published layers on `arch`."""
    if lock.extends is None:
        return lock
    whole, added = lock.arch[arch], lock.extends.arch[arch]
    below = msgspec.structs.replace(
        whole,
        wheels=tuple(item for item in whole.wheels if item.package not in added.wheels),
        built=tuple(item for item in whole.built if item.package not in added.wheels),
        debs=tuple(item for item in whole.debs if item.package not in added.debs),
    )
    return msgspec.structs.replace(lock, arch={arch: below}, extends=None)


def make_lock(matrix: Matrix, name: str, resolutions: dict[Arch, Resolution]) -> Lock:
    """Create the lock of target `name` from the matrix and the resolutions."""
    target = matrix.targets[name]
    return Lock(
        format=LOCK_FORMAT,
        target=name,
        cuda=target.cuda,
        as_of=target.as_of.isoformat(),
        flashinfer=target.flashinfer.mode,
        requirements=required_specifiers(matrix, name),
        indexes=dict(sorted(target.indexes.items())),
        base=_locked_base(matrix, target),
        settings=_settings(matrix, name, target),
        layers=LayerRules(
            own_from=matrix.layers.own_from,
            named=matrix.layers.named,
            groups=matrix.layers.groups,
            order=matrix.layers.order,
            limit=matrix.layers.limit,
        ),
        drop=(
            *matrix.drop,
            *flashinfer.toolkit_drops(target, matrix.bases[target.base]),
            *target.drop,
        ),
        arch=dict(sorted(resolutions.items())),
    )


def required_specifiers(matrix: Matrix, name: str) -> dict[str, str]:
    """Map packages to the specifiers of pins and other requirements of target `name`."""
    target = matrix.targets[name]
    beside = {
        **matrix.requires,
        **flashinfer.mode_requirements(target),
        **matrix.requirements_of(target),
    }
    specs = {package: requirement.spec for package, requirement in beside.items()}
    specs |= {package: f"=={version}" for package, version in target.pins.items()}
    return dict(sorted(specs.items()))


def require_arch(lock: Lock, arch: Arch) -> Resolution:
    """Return the resolution for `arch`. Raises InputError if `arch` is not locked."""
    if arch not in lock.arch:
        locked = ", ".join(sorted(lock.arch))
        message = f"the lock of {lock.target} does not include {arch}, only {locked}"
        raise InputError(message, hint="select another architecture with --arch")
    return lock.arch[arch]


def lock_path(images: Path, target: str) -> Path:
    """Return the path of the lock of `target` in the folder `images`."""
    return images / target / FILE


def find_lock(images: Path, target: str) -> Lock | None:
    """Read the lock of `target`, or return None if it does not exist.

    Raises the same errors as `read_lock`.
    """
    return read_lock(images, target) if lock_path(images, target).exists() else None


def read_lock(images: Path, target: str) -> Lock:
    """Read the lock of `target`.

    Raises LockStale if the lock is missing or has another format, and InputError if it is damaged
    or belongs to another target.
    """
    path = lock_path(images, target)
    if not path.exists():
        message = f"{path}: no lock for target {target}"
        raise LockStale(message, hint=_remedy(images, target))
    data = boundary.read_regular_file(path, codec.LIMIT)
    try:
        lock = decode_lock(data, str(path), hint=damaged_lock_remedy(target), remedy="")
    except LockStale as error:
        raise LockStale(error.message, hint=_remedy(images, target)) from None
    _require_target(lock.target, target, path)
    return lock


def locked_versions(images: Path, target: str) -> dict[Arch, dict[str, str]]:
    """Return the versions of all Python packages in the lock of `target`, by architecture.

    The result is empty if there is no lock. Raises the same errors as `read_lock`. Only versions
    are decoded and checked, which is ten times as fast as `read_lock`.
    """
    path = lock_path(images, target)
    if not path.exists():
        return {}
    data = boundary.read_regular_file(path, codec.LIMIT)
    lock = codec.decode(
        data, _LockedVersions, file=str(path), what="lock", hint=damaged_lock_remedy(target)
    )
    _require_format(lock.format, str(path), _remedy(images, target))
    _require_target(lock.target, target, path)
    return {
        arch: {each.package: each.version for each in (*packages.wheels, *packages.built)}
        for arch, packages in lock.arch.items()
    }


def _require_target(lock_target: str, target: str, path: Path) -> None:
    if lock_target == target:
        return
    other = InputProblem(
        file=str(path),
        path="target",
        message="the file is the lock of another target",
        value=lock_target,
        expected=target,
    )  # fmt: skip
    message = f"{path} is the lock of another target"
    raise InputError(message, problems=(other,), hint=damaged_lock_remedy(target))


def _remedy(images: Path, target: str) -> str:
    """Return the hint for a missing lock.

    In the read-only catalogue, the hint suggests another target.
    """
    if images != CATALOGUE / "images":
        return f"create it with: imgbuild lock {target}"
    locked = [path.parent.name for path in sorted(images.glob(f"*/{FILE}"))]
    [near] = get_close_matches(target, locked, n=1, cutoff=0)
    return (
        f"use the locked target with the most similar name, {near}, or lock this target in a clone "
        "of imgbuild's repository"
    )


def decode_lock(data: bytes, file: str, *, hint: str, remedy: str) -> Lock:
    """Decode a lock.

    Raises InputError with `hint` if the lock is invalid, and LockStale with `remedy` if it has
    another format.
    """
    try:
        lock = codec.decode(data, Lock, file=file, what="lock", hint=hint)
    except InputError:
        versioned = codec.decode(data, _VersionField, file=file, what="lock", hint=hint)
        _require_format(versioned.format, file, remedy)
        raise
    _require_format(lock.format, file, remedy)
    check.refuse_invalid_lock(lock, file, hint=hint)
    return lock


def _require_format(lock_format: int, file: str, remedy: str) -> None:
    if lock_format != LOCK_FORMAT:
        message = (
            f"{file}: lock format {lock_format} is not supported; this version of imgbuild supports"
            f" {LOCK_FORMAT}"
        )
        raise LockStale(message, hint=remedy)


def damaged_lock_remedy(target: str) -> str:
    """Return the hint for unreadable digests or an unreadable lock of `target`."""
    return f"restore it from git, or create it again with: imgbuild lock {target}"


def matrix_differences(lock: Lock, matrix: Matrix) -> tuple[str, ...]:
    """List the differences between `lock` and `matrix`, or nothing if the lock is current.

    A lock is current if it has the values in the matrix, and the locked files satisfy the matrix.
    Requirements are not resolved again.
    """
    if lock.target not in matrix.targets:
        return (f"the matrix has no target {lock.target}",)
    expected = make_lock(matrix, lock.target, lock.arch)
    target = matrix.targets[lock.target]
    return (
        *lock_differences(lock, expected, target.arch),
        *_python_differences(lock, matrix.bases[target.base]),
    )


def lock_differences(lock: Lock, expected: Lock, arches: Collection[Arch]) -> tuple[str, ...]:
    """List the differences between `lock` and `expected`, which is computed from the matrix.

    The text of the image's README is not compared. The next lock updates it.
    """
    settings = msgspec.structs.replace(expected.settings, readme=lock.settings.readme)
    expected = msgspec.structs.replace(expected, settings=settings)
    reasons = [
        line
        for field in lock.__struct_fields__
        if field not in ("arch", "format")
        for line in drift.difference_lines(field, getattr(expected, field), getattr(lock, field))
    ]
    if set(lock.arch) != set(arches):
        reasons.append(
            f"arch: the matrix has {', '.join(sorted(arches))}, but the lock has"
            f" {', '.join(sorted(lock.arch))}"
        )
    for arch, resolution in lock.arch.items():
        reasons.extend(
            f"{arch}: {text}" for text in _unsatisfied_requirements(expected, resolution)
        )
    return tuple(reasons)


def _unsatisfied_requirements(expected: Lock, resolution: Resolution) -> list[str]:
    from packaging.specifiers import SpecifierSet

    versions = {wheel.package: wheel.version for wheel in resolution.wheels}
    versions |= {built.package: built.version for built in resolution.built}
    texts = []
    for package, spec in expected.requirements.items():
        if package not in versions:
            texts.append(f"{package}{spec} is not locked")
        elif not SpecifierSet(spec).contains(versions[package], prereleases=True):
            texts.append(
                f"{package} {versions[package]} is locked, but {package}{spec} is required"
            )
    debs = {deb.package for deb in resolution.debs}
    texts.extend(
        f"Debian package {package} is not locked"
        for package in (
            *expected.base.packages,
            *(expected.base.tools or ()),
            *(expected.extends.packages if expected.extends else ()),
        )
        if package not in debs
    )
    return texts


def _python_differences(lock: Lock, base: Base) -> Iterator[str]:
    standalone = base.standalone_python if isinstance(base, DebianBase) else None
    sha256 = standalone.sha256 if standalone is not None else {}
    for arch, resolution in lock.arch.items():
        archive = resolution.python or None
        if archive is None and standalone is not None:
            yield f"{arch}: the Python archive is not locked"
        elif archive is not None and archive.sha256 != sha256.get(arch, archive.sha256):
            yield (
                f"{arch}: {archive.file} is locked with sha256 {archive.sha256}, but the matrix has"
                f" {sha256[arch]}"
            )


def _locked_base(matrix: Matrix, target: Target) -> LockedBase:
    base = matrix.bases[target.base]
    if isinstance(base, DebianBase):
        source = base.standalone_python
        folder = "/usr" if source is None else STANDALONE_PREFIX
        return LockedBase(
            name=target.base,
            kind="debian",
            suite=base.suite,
            python=base.python,
            glibc=base.glibc,
            interpreter=f"{folder}/bin/python{base.python}",
            packages=tuple(sorted(base.packages)),
            hardened=base.hardened or msgspec.UNSET,
            tools=tuple(sorted(base.tools)) or msgspec.UNSET,
            standalone=dict(sorted(source.archives.items())) if source else msgspec.UNSET,
        )
    return LockedBase(
        name=target.base,
        kind="registry",
        suite="",
        python=base.python,
        glibc=base.glibc,
        interpreter=base.interpreter,
        image=base.image,
    )


def image_labels(name: str, target: Target, pins: Mapping[str, str]) -> dict[str, str]:
    """Return labels with the name, date and pinned versions of a target."""
    return {
        "org.opencontainers.image.title": name,
        "dev.imgbuild.target": name,
        "dev.imgbuild.as-of": target.as_of.isoformat(),
        **{f"{VERSION_LABEL}{package}": version for package, version in pins.items()},
    }


def _settings(matrix: Matrix, name: str, target: Target) -> ImageSettings:
    image, base = matrix.image, matrix.bases[target.base]
    variables = image.env | flashinfer.mode_environment(target, image, base) | target.env
    if target.user_packages:  # these come from a folder of the image, not from ~/.local
        variables.pop(NO_USER_SITE, None)
    links = flashinfer.toolkit_links(target, image, base) | target.links
    labels = {
        **image.labels,
        **target.labels,
        **image_labels(name, target, target.pins),
        "dev.imgbuild.base": target.base,
        "dev.imgbuild.cuda": target.cuda,
        "dev.imgbuild.python": base.python,
        "dev.imgbuild.flashinfer": target.flashinfer.mode,
    }
    if target.gpu:
        labels[GPU_LABEL] = " ".join(target.gpu)
    return ImageSettings(
        prefix=image.prefix,
        user=image.user,
        workdir=image.workdir,
        cache=image.cache,
        env={name: variable.value for name, variable in sorted(variables.items())},
        labels=dict(sorted(labels.items())),
        entrypoint=image.entrypoint,
        cmd=image.cmd,
        links={path: link.to for path, link in sorted(links.items())},
        user_packages=target.user_packages or msgspec.UNSET,
    )


class _LockedPackage(msgspec.Struct, frozen=True):
    package: Package
    version: LockedVersion


class _LockedPackages(msgspec.Struct, frozen=True):
    wheels: tuple[_LockedPackage, ...]
    built: tuple[_LockedPackage, ...] = ()


class _LockedVersions(msgspec.Struct, frozen=True):
    format: int
    target: str = ""
    arch: dict[Arch, _LockedPackages] = {}


class _VersionField(msgspec.Struct, frozen=True):
    format: int
