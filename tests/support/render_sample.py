"""Creates a locked project for tests of render, with two architectures and dropped files."""

from __future__ import annotations

import msgspec

from imgbuild.lock import lock_file
from imgbuild.lock.lock_file import Lock
from imgbuild.lock.resolution import BuiltWheel, LockedFile, Resolution, Wheel
from imgbuild.matrix.model import DroppedFiles, Link, Matrix, RequiredPackage, Variable
from imgbuild.oci.layer import LayerRecord
from imgbuild.plan import image_digests
from imgbuild.plan import plan as plans
from imgbuild.plan.image_digests import TargetDigests
from imgbuild.values import Arch, sha256
from tests.support import samples

DROP = DroppedFiles(
    package="fastapi-cli",
    beside="fastapi",
    paths=("bin/fastapi", "lib/python3.11/site-packages/fastapi_cli/extra/*"),
    reason="fastapi ships the same command",
)
BUILT = BuiltWheel(
    package="antlr4-python3-runtime",
    version="4.9.3",
    index="pypi",
    sdist=LockedFile(file="antlr4-python3-runtime-4.9.3.tar.gz", size=1, sha256="a" * 64),
    env={"QUIET": "yes, please"},
    requires=(samples.wheel("setuptools", "80.9.0"),),
    wheel=LockedFile(file="antlr4_python3_runtime-4.9.3-py3-none-any.whl", size=1, sha256="b" * 64),
)


def matrix(*arches: Arch) -> Matrix:
    """The sample matrix with uv, on `arches`."""
    sample_matrix = samples.matrix(
        arch=arches or (Arch.X86_64, Arch.ARM64),
        requires={"uv": RequiredPackage(reason=samples.REASON)},
        drop=(DROP,),
        links={"/opt/venv/lib/libx.so": Link(to="libx.so.1", reason=samples.REASON)},
        env={"GREETING": Variable(value='say "hi" to $HOME', reason="it shows how it is quoted")},
    )
    return msgspec.structs.replace(sample_matrix, registry="registry.example/me/images")


def resolution(arch: Arch) -> Resolution:
    """A resolution with large and small wheels, one of which is only for this architecture."""
    wheels = [
        samples.wheel("fastapi"),
        samples.wheel("fastapi-cli"),
        samples.wheel("trl", "0.18.2"),
        samples.wheel("uv", "0.7.13", 5000),
    ]
    if arch is Arch.X86_64:
        wheels.append(samples.wheel("nvidia-x", "12.4", 9000))
    return msgspec.structs.replace(samples.resolution(*wheels, arch=arch), built=(BUILT,))


def lock(of: Matrix | None = None) -> Lock:
    """The lock of the sample project."""
    source = of or matrix()
    arches = source.targets["small"].arch
    return lock_file.make_lock(source, "small", {arch: resolution(arch) for arch in arches})


def without_package(lock: Lock, package: str) -> Lock:
    """The lock without the wheel of `package`."""
    arches = {
        arch: msgspec.structs.replace(
            arch_resolution,
            wheels=tuple(wheel for wheel in arch_resolution.wheels if wheel.package != package),
        )
        for arch, arch_resolution in lock.arch.items()
    }
    return msgspec.structs.replace(lock, arch=arches)


def invented_digests(lock: Lock) -> TargetDigests:
    """The digests of `lock` with invented records of its layers."""
    records = {
        layer.id: LayerRecord(
            digest=f"sha256:{sha256(layer.id.encode())}",
            size=1,
            diff_id=f"sha256:{sha256(layer.name.encode())}",
            unpacked=1,
        )
        for arch in lock.arch
        for layer in plans.create_plan(lock, arch).layers
    }
    return image_digests.compute_digests(lock, records)


def file_address(package: str, locked: LockedFile) -> str:
    """The URL of a file of the sample project."""
    return f"https://index.example/{package}/{locked.file}"


def wheels_by_package(lock: Lock) -> dict[str, Wheel]:
    """The wheels of `lock` on x86_64 by package."""
    return {wheel.package: wheel for wheel in lock.arch[Arch.X86_64].wheels}
