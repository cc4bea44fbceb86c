"""Selects the wheels that builds from sdists require."""

from __future__ import annotations

from imgbuild.errors import InputError
from imgbuild.lock.lock_file import Lock
from imgbuild.lock.resolution import BuiltWheel, Wheel
from imgbuild.values import Arch


def build_requirements(lock: Lock, arch: Arch, built: BuiltWheel) -> tuple[Wheel, ...]:
    """Return the build requirements of `built` as wheels for `arch`.

    The lock contains build requirements for the architecture of the locking machine. If the target
    has the same version of a package, the target's wheel is used instead. Raises InputError if a
    wheel is for another architecture and has no replacement.
    """
    target_wheels = {(wheel.package, wheel.version): wheel for wheel in lock.arch[arch].wheels}
    wheels = []
    for wheel in built.requires:
        fitting = target_wheels.get((wheel.package, wheel.version), wheel)
        if not _wheel_runs(fitting, arch):
            message = (
                f"{lock.target}: {built.sdist.file} cannot be built on {arch}, because the build "
                f"requires {wheel.package} {wheel.version}, but the lock has only {wheel.file}"
            )
            hint = "to use prebuilt wheels, run: imgbuild build --only wheels"
            raise InputError(message, hint=hint)
        wheels.append(fitting)
    return tuple(wheels)


def file_name(package: str, arch: Arch) -> str:
    """Return the name of the file that lists the build requirements of `package` on `arch`."""
    return f"build-{package}-{arch}.txt"


def _wheel_runs(wheel: Wheel, arch: Arch) -> bool:
    platforms = wheel.file.removesuffix(".whl").rpartition("-")[2].split(".")
    return any(each == "any" or each.endswith(f"_{arch.wheel}") for each in platforms)
