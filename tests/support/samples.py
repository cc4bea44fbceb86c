"""Creates a small matrix, wheels and locks for many tests."""

from __future__ import annotations

import base64
import datetime
import hashlib
import struct
import zipfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from imgbuild.cache.store import Store
from imgbuild.lock.lock_file import Lock, make_lock
from imgbuild.lock.resolution import Deb, Resolution, Wheel
from imgbuild.matrix.model import (
    DebianBase,
    Flashinfer,
    Image,
    Layers,
    Matrix,
    PackageIndex,
    RequiredPackage,
    Target,
    User,
    Variable,
)
from imgbuild.values import Arch

REASON = "because the test says so"
USER = User(name="imgbuild", uid=1000, gid=1000, home="/home/imgbuild")


def matrix(**changes: object) -> Matrix:
    """A matrix with one target, `small`. `changes` replaces fields of the target."""
    target = {
        "summary": "a small image",
        "base": "debian-12",
        "cuda": "12.4",
        "arch": (Arch.X86_64,),
        "as_of": datetime.date(2025, 6, 20),
        "pins": {"torch": "2.6.0"},
        "flashinfer": Flashinfer(mode="off", reason=REASON),
        "gpu": ("9.0",),
        **changes,
    }
    return Matrix(
        version=1,
        indexes={"pypi": PackageIndex()},
        default_index="pypi",
        bases={
            "debian-12": DebianBase(
                suite="bookworm", python_source="3.11", glibc="2.36", packages=("bash", "python3")
            )
        },
        image=Image(
            prefix="/opt/venv",
            user=USER,
            workdir="/workspace",
            cache="/var/cache/imgbuild",
            env={"PATH": Variable(value="/opt/venv/bin:/usr/bin:/bin", reason=REASON)},
            labels={"org.opencontainers.image.vendor": "imgbuild"},
            entrypoint=("/opt/imgbuild/entrypoint",),
            cmd=("bash",),
        ),
        layers=Layers(
            own_from=1000, named=("trl", "vllm"), groups=2, order=("nvidia-*", "torch"), limit=40
        ),
        requires={"pip": RequiredPackage(reason=REASON)},
        targets={"small": Target(**target)},  # type: ignore[arg-type]
    )


def matrix_with_tools(*tools: str, **changes: object) -> Matrix:
    """The sample matrix with `user_packages`, whose base has `tools`."""
    plain = matrix(user_packages=True, **changes)
    base = msgspec.structs.replace(plain.bases["debian-12"], tools=tools)
    return msgspec.structs.replace(plain, bases={"debian-12": base})


def lock_with_tools(*wheels: Wheel, of: Matrix | None = None) -> Lock:
    """The lock of `matrix_with_tools("htop")`. htop requires libnl, which the base lacks."""
    source = of or matrix_with_tools("htop")
    resolutions = {}
    for arch in source.targets["small"].arch:
        plain = resolution(*wheels, arch=arch)
        debs = (deb("bash", arch=arch.debian), deb("htop", arch=arch.debian),
                deb("libnl", arch=arch.debian), deb("python3", arch=arch.debian))  # fmt: skip
        resolutions[arch] = msgspec.structs.replace(plain, debs=debs, tools=("htop", "libnl"))
    return make_lock(source, "small", resolutions)


def wheel(package: str, version: str = "1.0", size: int = 100) -> Wheel:
    """A wheel of a lock, whose hash is derived from its name and version."""
    name = package.replace("-", "_")
    digest = hashlib.sha256(f"{package} {version}".encode()).hexdigest()
    return Wheel(
        file=f"{name}-{version}-py3-none-any.whl",
        size=size,
        sha256=digest,
        package=package,
        version=version,
        index="pypi",
    )


def with_current_labels(lock: Lock) -> Lock:
    """`lock` with the labels that imgbuild computes from the other fields."""
    labels = {
        **lock.settings.labels,
        "org.opencontainers.image.title": lock.target,
        "dev.imgbuild.target": lock.target,
        "dev.imgbuild.base": lock.base.name,
        "dev.imgbuild.python": lock.base.python,
        "dev.imgbuild.as-of": lock.as_of,
    }
    settings = msgspec.structs.replace(lock.settings, labels=labels)
    return msgspec.structs.replace(lock, settings=settings)


def deb(package: str, version: str = "1.0-1", arch: str = "amd64") -> Deb:
    """A Debian package of a lock."""
    return Deb(
        file=f"pool/main/{package[0]}/{package}/{package}_{version}_{arch}.deb",
        size=10,
        sha256=hashlib.sha256(f"{package} {version} {arch}".encode()).hexdigest(),
        package=package,
        version=version,
        arch=arch,
    )


def resolution(*wheels: Wheel, arch: Arch = Arch.X86_64) -> Resolution:
    """A resolution with torch, pip and `wheels` on the Debian packages of the sample matrix."""
    wheels_by_package = {
        item.package: item for item in (wheel("torch", "2.6.0", 5000), wheel("pip"), *wheels)
    }
    return Resolution(
        wheels=tuple(wheels_by_package[name] for name in sorted(wheels_by_package)),
        debs=(deb("bash", arch=arch.debian), deb("python3", arch=arch.debian)),
    )


def lock(*wheels: Wheel, of: Matrix | None = None) -> Lock:
    """The lock of the sample target with `wheels`, torch and pip, on each of its architectures."""
    source = of or matrix()
    arches = source.targets["small"].arch
    return make_lock(source, "small", {arch: resolution(*wheels, arch=arch) for arch in arches})


def write_wheel(
    folder: Path,
    package: str,
    version: str = "1.0",
    files: dict[str, bytes] | None = None,
    requires: Sequence[str] = (),
) -> Path:
    """Write a pure-Python wheel with `files` (default: a module with the name of the wheel)."""
    needs = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    name = package.replace("-", "_")
    info = f"{name}-{version}.dist-info"
    contents = dict(files) if files is not None else {f"{name}/__init__.py": b"VALUE = 1\n"}
    contents[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n{needs}".encode()
    )
    contents[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    rows = [f"{path},sha256={_hash(data)},{len(data)}" for path, data in contents.items()]
    contents[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in contents.items():
            archive.writestr(zipfile.ZipInfo(member, (2020, 1, 1, 0, 0, 0)), data)
    return path


def add_to_store(store: Store, path: Path, package: str, version: str = "1.0") -> Wheel:
    """Move the wheel file at `path` into the store, and return it as a wheel of a lock."""
    data = path.read_bytes()
    sha256 = hashlib.sha256(data).hexdigest()
    size = len(data)
    name = path.name
    store.add_file(path, sha256)
    return Wheel(
        file=name, size=size, sha256=sha256, package=package, version=version, index="pypi"
    )


def _hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def elf_header(machine: int = 62) -> bytes:
    """The ELF header of a library without sections. Machine 62 is x86_64."""
    numbers = (3, machine, 1, 0, 0, 0, 0, 64, 0, 0, 0, 0, 0)
    return b"\x7fELF\2\1\1" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", *numbers)
