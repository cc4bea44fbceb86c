"""Provides the sample matrix and lock on a base with a standalone Python."""

from __future__ import annotations

import hashlib

import msgspec

from imgbuild.lock.lock_file import Lock, make_lock
from imgbuild.lock.resolution import PythonArchive
from imgbuild.matrix.model import Matrix, StandalonePython
from imgbuild.values import Arch
from tests.support import samples

URL = "https://forge.example/20260101/cpython-3.12.11%2B20260101-{arch}-install_only.tar.gz"
ARCHIVES = {arch: URL.format(arch=arch) for arch in Arch}


def matrix(source: StandalonePython | None = None, **changes: object) -> Matrix:
    """The sample matrix with Python 3.12 of `source` in its base."""
    plain = samples.matrix(**changes)
    source = source or StandalonePython(version="3.12", origin="standalone", archives=ARCHIVES)
    base = msgspec.structs.replace(
        plain.bases["debian-12"], python_source=source, packages=("bash",)
    )
    return msgspec.structs.replace(plain, bases={"debian-12": base})


def archive(arch: Arch = Arch.X86_64, version: str = "3.12.11") -> PythonArchive:
    """An archive of a lock."""
    file = f"cpython-{version}+20260101-{arch}-install_only.tar.gz"
    digest = hashlib.sha256(file.encode()).hexdigest()
    return PythonArchive(file=file, size=100, sha256=digest, version=version)


def lock(of: Matrix | None = None) -> Lock:
    """The lock of the sample target on the base with a standalone Python."""
    source = of or matrix()
    resolutions = {
        arch: msgspec.structs.replace(
            samples.resolution(arch=arch), debs=(samples.deb("bash"),), python=archive(arch)
        )
        for arch in source.targets["small"].arch
    }
    return make_lock(source, "small", resolutions)
