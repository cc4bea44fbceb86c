"""Creates a small image with one component of every kind, for tests of SBOMs."""

from __future__ import annotations

from imgbuild.attest.sbom.packages import Package, SbomPackages
from imgbuild.lock.lock_file import Lock, make_lock
from imgbuild.lock.resolution import BuiltWheel, Deb, LockedFile, Resolution, Wheel
from imgbuild.oci.layer import LayerRecord
from imgbuild.plan import image_digests
from imgbuild.plan.image_digests import TargetDigests
from imgbuild.plan.plan import create_plan
from imgbuild.values import Arch, sha256
from tests.support import samples

ARCHES = (Arch.X86_64, Arch.ARM64)
TOOL = samples.wheel("setuptools", "75.0")
BASE_FILES = "12.4+deb12u11"


def lock(arches: tuple[Arch, ...] = ARCHES) -> Lock:
    """A lock with torch, its dependencies, a wheel built from an sdist, and three debs."""
    matrix = samples.matrix(arch=arches)
    return make_lock(matrix, "small", {arch: resolution(arch) for arch in arches})


def resolution(arch: Arch) -> Resolution:
    """The same packages on each architecture."""
    whole = samples.resolution(samples.wheel("numpy", "2.2.6"), samples.wheel("ray"), arch=arch)
    built = BuiltWheel(
        package="antlr4-runtime",
        version="4.9",
        index="pypi",
        sdist=_file("antlr4-runtime-4.9.tar.gz"),
        env={},
        requires=(TOOL,),
        wheel=_file("antlr4_runtime-4.9-py3-none-any.whl"),
    )
    debs = (samples.deb("base-files", BASE_FILES, arch.debian), *whole.debs)
    return Resolution(wheels=whole.wheels, built=(built,), debs=debs)


def invented_digests(of: Lock) -> TargetDigests:
    """The digests of `of`, with layers whose bytes are derived from their IDs."""
    records = {
        layer.id: LayerRecord(
            digest=f"sha256:{sha256(layer.id.encode())}",
            size=100,
            diff_id=f"sha256:{sha256(b'diff ' + layer.id.encode())}",
            unpacked=1000,
        )
        for arch in of.arch
        for layer in create_plan(of, arch).layers
    }
    return image_digests.compute_digests(of, records)


def package_metadata(of: Lock) -> SbomPackages:
    """The metadata of the files of `of`."""
    metadata = {
        "torch": Package(
            file="torch-2.6.0-py3-none-any.whl",
            licence="BSD-3-Clause",
            requires=(
                "numpy<3,>=2",
                'triton; platform_system == "Linux"',
                'ray[all]; extra == "cluster"',
            ),
        ),
        "numpy": Package(
            file="numpy-2.2.6-py3-none-any.whl", license_text="BSD License", requires=()
        ),
        "antlr4-runtime": Package(file="antlr4_runtime-4.9-py3-none-any.whl"),
        "setuptools": Package(file="setuptools-75.0-py3-none-any.whl", licence="MIT"),
        "bash": Package(
            file="bash.deb",
            licence="GPL-3.0-or-later AND LicenseRef-Debian-permissive",
            source="bash",
            source_version="1.0-0",
            needs=("base-files",),
        ),
        "python3": Package(file="python3.deb", copyright_package="bash", needs=("awk | bash",)),
        "base-files": Package(file="base-files.deb", provides=("base",)),
    }
    packages_by_hash: dict[str, Package] = {}
    for resolved in of.arch.values():
        tools = (tool for built in resolved.built for tool in built.requires)
        items: tuple[Wheel | Deb, ...] = (*resolved.wheels, *tools, *resolved.debs)
        packages_by_hash |= {
            item.sha256: metadata[item.package] for item in items if item.package in metadata
        }
        packages_by_hash |= {
            built.wheel.sha256: metadata[built.package] for built in resolved.built
        }
    return SbomPackages(packages=packages_by_hash)


def _file(name: str) -> LockedFile:
    return LockedFile(file=name, size=10, sha256=sha256(name.encode()))
