"""Creates a complete matrix from locks, with one target for each lock.

Callers must provide indexes and Debian archives, because these are not part of a lock. The `reason`
of each value is the lock.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping

import msgspec

from imgbuild.lock.lock_file import Lock
from imgbuild.lock.model import LockedProject
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
    StandalonePython,
    Target,
)
from imgbuild.system import decoding


def matrix_from_locks(
    locks: Mapping[str, Lock],
    *,
    indexes: Mapping[str, PackageIndex],
    default_index: str,
    mirrors: tuple[str, ...],
) -> Matrix:
    """Create a matrix from `locks`, which maps target names to locks.

    Image settings are those of the first lock.
    """
    first = next(iter(locks.values()))
    bases: dict[str, Base] = {}
    targets: dict[str, Target] = {}
    sdists: dict[str, Sdist] = {}
    for name, lock in locks.items():
        base, base_name = base_from_lock(lock, mirrors), lock.base.name
        if bases.setdefault(base_name, base) != base:  # two publishers, one name
            base_name = f"{base_name} of {lock.target}"
            bases[base_name] = base
        targets[name] = _pinned_target(lock, base_name)
        built = (item for resolution in lock.arch.values() for item in resolution.built)
        sdists |= {item.package: Sdist(reason=_reason(lock), env=item.env) for item in built}
    return Matrix(
        version=1,
        indexes=dict(indexes),
        default_index=default_index,
        bases=bases,
        image=_image(first),
        layers=Layers(**msgspec.structs.asdict(first.layers)),
        requires={},
        targets=targets,
        sdists=sdists,
    )


def default_index_name(lock: Lock) -> str:
    """Return the name of the default index in `lock`."""
    project = lock.project or LockedProject()
    other = {*lock.indexes, *project.sources, *project.packages}
    wheels = (wheel for found in lock.arch.values() for wheel in found.wheels)
    return next((item.index for item in wheels if item.package not in other), "default")


def locked_versions(lock: Lock) -> dict[str, str]:
    """Return the versions of all packages in `lock`, on all architectures."""
    return {key: version for item in lock.arch.values() for key, version in item.versions.items()}


def base_from_lock(lock: Lock, mirrors: tuple[str, ...]) -> Base:
    """Return the base of `lock`.

    `mirrors` are used in addition to the Debian archives of the machine.
    """
    base = lock.base
    if base.kind == "debian":
        return DebianBase(
            suite=base.suite, python_source=_python_source(lock), glibc=base.glibc,
            packages=base.packages, mirrors=mirrors,
            security=mirrors if any(one.security for one in lock.arch.values()) else None,
            hardened=base.hardened is True, tools=base.tools or (),
        )  # fmt: skip
    return RegistryBase(
        image=base.image, python=base.python, glibc=base.glibc, interpreter=base.interpreter
    )


def _python_source(lock: Lock) -> str | StandalonePython:
    base = lock.base
    if not base.standalone:
        return base.python
    archives = {arch: resolution.python for arch, resolution in lock.arch.items()}
    return StandalonePython(
        version=base.python, origin="standalone", archives=dict(base.standalone),
        sha256={arch: archive.sha256 for arch, archive in archives.items() if archive},
    )  # fmt: skip


def _image(lock: Lock) -> Image:
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


def _pinned_target(lock: Lock, base: str) -> Target:
    return Target(
        summary=lock.target,
        base=base,
        cuda=lock.cuda,
        arch=tuple(lock.arch),
        as_of=datetime.date.fromisoformat(lock.as_of),
        pins=locked_versions(lock),
        flashinfer=decoding.convert({"mode": lock.flashinfer, "reason": _reason(lock)}, Flashinfer),
        gpu=lock.gpu,
        indexes=lock.indexes,
        user_packages=lock.settings.user_packages is True,
    )


def _reason(lock: Lock) -> str:
    return f"as in the lock of {lock.target}"
