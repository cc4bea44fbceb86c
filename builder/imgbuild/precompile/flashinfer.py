"""FlashInfer's kernels, compiled once: a wheel that a target's variant is locked with.

Comes in: a built image whose FlashInfer compiles at first use, and which kernels are wanted; or
what two runs on a GPU machine left in their caches. Goes out: a wheel of the package that
FlashInfer itself looks into before it compiles. nvcc's output is no pure function of the lock, so
kernels are an input: compiled twice, and what differs between the two is named.
"""

from __future__ import annotations

import io
import operator
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from imgbuild.cache.store import Store
from imgbuild.container import run_in_image, sandbox
from imgbuild.errors import InputError, WorkFailed
from imgbuild.lock.lock import Lock, require_arch
from imgbuild.matrix.model import Target
from imgbuild.oci.layout import Layout
from imgbuild.plan.plan import installed_wheels
from imgbuild.precompile import variant
from imgbuild.solve.sdist_wheel import repack
from imgbuild.system.console import console
from imgbuild.values import Arch, Bytes, Sha256, sha256
from imgbuild.wheel import packed

FLASHINFER = "flashinfer-python"
PACKAGE = "flashinfer-jit-cache"
MODULE = "flashinfer_jit_cache"
# What vLLM samples with, on every GPU: FlashInfer's functions that describe a library of kernels.
SAMPLING = ("flashinfer.jit.sampling:gen_sampling_module",)
KERNELS = "cached_ops"  # the folder of FlashInfer's cache that holds compiled libraries
PLACE = "/kernels"  # one place for both compilations: paths are part of what nvcc writes
DIGITS = 12
ARCHITECTURES = re.compile(r"\d{2,3}[af]?(_\d{2,3}[af]?)*")
MACHINES = {"EM_X86_64": Arch.X86_64, "EM_AARCH64": Arch.ARM64}

# Runs inside, under the image's Python. No machine that compiles needs a driver: what links to it
# finds a library of its name, without a function in it.
COMPILE = """\
import importlib, subprocess, sys
subprocess.run(["gcc", "-shared", "-o", "/kernels/stub/libcuda.so", "-Wl,-soname,libcuda.so.1",
                "-x", "c", "/dev/null"], check=True)
for name in sys.argv[1:]:
    module, _, function = name.partition(":")
    getattr(importlib.import_module(module), function)().build(False)
"""

# What FlashInfer asks the package for: before 0.7 one folder, since then providers.
INIT = """\
\"\"\"FlashInfer's kernels for {gpus}, compiled by imgbuild in the image of {target}.\"\"\"

import pathlib
import types

__version__ = "{version}"


def get_jit_cache_dir():
    \"\"\"Where FlashInfer before 0.7 looks for NAME/NAME.so before it compiles.\"\"\"
    return str(pathlib.Path(__file__).parent / "jit_cache")


def get_jit_cache_providers():
    \"\"\"The same for FlashInfer since 0.7: with the names, and the GPUs that they are for.\"\"\"
    provider = types.SimpleNamespace(
        provider_id="imgbuild",
        distribution="{package}",
        version=__version__,
        jit_cache_dir=get_jit_cache_dir(),
        cuda_architectures={architectures},
        modules={modules},
    )
    return (provider,)
"""


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    """A compiled library. `differs` says what the second compilation gave other bytes for.

    Each is a section of the ELF file and how many bytes in it: ".nv_fatbin: 12" is GPU code.
    """

    name: str
    size: Bytes
    sha256: Sha256
    differs: tuple[str, ...] = ()


class Kernels(msgspec.Struct, frozen=True, kw_only=True):
    """The wheel that was made, and what is in it."""

    target: str
    arch: Arch
    version: str
    file: str
    size: Bytes
    sha256: Sha256
    gpus: tuple[str, ...]
    kernels: tuple[Kernel, ...]


def compile_twice(
    lock: Lock,
    layout: Layout,
    arch: Arch,
    wanted: Sequence[str],
    gpus: Sequence[str],
    *,
    store: Store,
    out: Path,
) -> Kernels:
    """Compile `wanted` ("module:function") for `gpus` ("9.0") in the image, and pack them to `out`.

    InputError if the target compiles nothing, WorkFailed with the compiler's words if it fails.
    """
    _flashinfer(lock, arch)
    unpacked = run_in_image.root_folder(layout, arch, store, reporter=console)
    with unpacked as root, store.scratch() as scratch:
        settings = run_in_image.running(layout, arch)
        runs = []
        for number in ("first", "second"):
            folder = scratch / number
            (folder / "stub").mkdir(parents=True)
            for place in (folder, folder / "stub"):
                place.chmod(0o1777)
            with console.step(f"{lock.target}: compiling kernels, the {number} time"):
                _compile(lock, root, settings, folder, wanted, gpus)
            runs.append(compiled(folder))
        return pack(lock, arch, runs[0], runs[1], gpus, out)


def take(
    lock: Lock, arch: Arch, folders: tuple[Path, Path], gpus: Sequence[str], out: Path
) -> Kernels:
    """Pack to `out` what two runs on a GPU machine compiled into the caches in `folders`.

    InputError if that machine was not an `arch`, or had other GPUs.
    """
    _flashinfer(lock, arch)
    found = [compiled(folder) for folder in folders]
    for libraries in found:
        for path in libraries.values():
            require_machine(path, arch)
        if set(there := capabilities(libraries.values())) != set(gpus):
            message = f"the cache is of {', '.join(there)}, --gpu says {', '.join(gpus)}"
            raise InputError(message, hint="leave --gpu out: the cache says what it is for")
    return pack(lock, arch, found[0], found[1], gpus, out)


def machine(folder: Path, libraries: Iterable[Path]) -> Arch:
    """For which architecture `libraries` of the cache `folder` were compiled.

    InputError if they do not say so, are for several, or for one that no image is built for.
    """
    found = {machine_of(path) for path in libraries}
    only = found.pop() if len(found) == 1 else None
    if only is None:
        message = f"{folder}: its libraries do not say that they are for x86_64 or arm64"
        raise InputError(message, hint="name the cache of one machine, or its --arch")
    return only


def machine_of(path: Path) -> Arch | None:
    """The architecture that an ELF file is for; None if it is none, or for another."""
    try:
        with path.open("rb") as stream:
            return MACHINES.get(ELFFile(stream)["e_machine"])
    except ELFError:
        return None


def require_machine(path: Path, arch: Arch) -> None:
    """InputError if a file is no library, or one for another architecture."""
    found = machine_of(path)
    if found != arch:
        kind = f"for {found}, not for {arch}" if found else "no library for x86_64 or arm64"
        message = f"{path} is {kind}"
        raise InputError(message, hint=f"name the cache of a machine of {arch}, or --arch")


def compiled(folder: Path) -> dict[str, Path]:
    """The libraries below `folder`, a cache of FlashInfer, by their names; InputError if none."""
    found: dict[str, Path] = {}
    for path in sorted(folder.rglob(f"{KERNELS}/*/*.so")):
        name = path.parent.name
        if path.stem != name:
            continue
        if name in found:
            message = f"{folder} holds {name} twice: {found[name]} and {path}"
            raise InputError(message, hint="name the cache of one FlashInfer and one set of GPUs")
        found[name] = path
    if not found:
        message = f"{folder}: no {KERNELS}/NAME/NAME.so lies below it"
        raise InputError(message, hint="name a folder that FLASHINFER_WORKSPACE_BASE named")
    return found


def pack(
    lock: Lock,
    arch: Arch,
    one: Mapping[str, Path],
    other: Mapping[str, Path],
    gpus: Sequence[str],
    out: Path,
) -> Kernels:
    """The wheel of the libraries `one`, compared with `other`; its bytes follow from theirs.

    InputError if the two hold not the same libraries.
    """
    if apart := sorted(one.keys() ^ other.keys()):
        message = f"one of the two compilations lacks {', '.join(apart)}"
        raise InputError(message, hint="let both runs do the same, each with an empty cache")
    data = {name: path.read_bytes() for name, path in sorted(one.items())}
    kernels = tuple(
        Kernel(name=name, size=len(each), sha256=sha256(each),
               differs=differing(each, other[name].read_bytes()))
        for name, each in data.items()
    )  # fmt: skip
    fields = {
        "gpus": ", ".join(gpus),
        "target": lock.target,
        "package": PACKAGE,
        "architectures": architectures(one.values()),
        "modules": tuple(data),
    }
    rows = "".join(f"{kernel.name} {kernel.sha256}\n" for kernel in kernels)
    mark = sha256(f"{INIT.format(**fields, version='')}{rows}".encode())[:DIGITS]
    version = f"{_flashinfer(lock, arch)}+k{mark}"
    tag = f"py3-none-manylinux_{lock.base.glibc.replace('.', '_')}_{arch.wheel}"
    about = INIT.format(**fields, version=version)
    members = {f"{MODULE}/jit_cache/{each}/{each}.so": content for each, content in data.items()}
    members[f"{MODULE}/__init__.py"] = about.encode()
    wheel = _wheel(members, version, tag, out)
    content = wheel.read_bytes()
    return Kernels(
        target=lock.target,
        arch=arch,
        version=version,
        file=wheel.name,
        size=len(content),
        sha256=sha256(content),
        gpus=tuple(gpus),
        kernels=kernels,
    )


def architectures(libraries: Iterable[Path]) -> tuple[str, ...]:
    """What libraries were compiled for, as FlashInfer names it: ("sm80", "sm90a").

    Each lies in ARCHITECTURES/cached_ops/NAME/NAME.so of a cache, such as 80_90a/cached_ops/….
    InputError for another folder: FlashInfer raises for a name that it cannot read.
    """
    found: set[str] = set()
    for folder in {path.resolve().parents[2] for path in libraries}:
        if not ARCHITECTURES.fullmatch(folder.name):
            message = f"{folder / KERNELS}: its folder names no GPUs, such as 90a"
            raise InputError(message, hint="name a folder that FLASHINFER_WORKSPACE_BASE named")
        found |= {f"sm{each}" for each in folder.name.split("_")}
    return tuple(sorted(found))


def capabilities(libraries: Iterable[Path]) -> tuple[str, ...]:
    """The compute capabilities that libraries were compiled for: ("8.0", "9.0")."""
    numbers = sorted(int(each[2:].rstrip("af")) for each in architectures(libraries))
    return tuple(map(capability, numbers))


def capability(number: int) -> str:
    """A compute capability as people write it: 90 is "9.0"."""
    return f"{number // 10}.{number % 10}"


def differing(one: bytes, other: bytes) -> tuple[str, ...]:
    """In which sections of an ELF file two compilations differ, and in how many bytes of each."""
    if one == other:
        return ()
    left, right = _sections(one), _sections(other)
    if left.keys() != right.keys():
        return (f"sections: {' '.join(sorted(left.keys() ^ right.keys()))}",)
    found = []
    for name, data in left.items():
        count = sum(map(operator.ne, data, right[name])) + abs(len(data) - len(right[name]))
        if count:
            found.append(f"{name}: {count}")
    return tuple(found) or ("outside of sections",)


def _sections(data: bytes) -> dict[str, bytes]:
    """The contents of an ELF file by section; of another file, all of it under no name."""
    try:
        elf = ELFFile(io.BytesIO(data))
        return {section.name: section.data() for section in elf.iter_sections()}
    except ELFError:
        return {"the file": data}


def _wheel(members: dict[str, bytes], version: str, tag: str, out: Path) -> Path:
    """A wheel of `members` in the folder `out`."""
    name = f"{MODULE}-{version}-{tag}.whl"
    info = f"{MODULE}-{version}.dist-info"
    about = packed.about(PACKAGE, version, tag)
    about[f"{info}/RECORD"] = b""  # written by what repacks it
    out.mkdir(parents=True, exist_ok=True)
    loose = out / f".{name}.loose"
    try:
        with zipfile.ZipFile(loose, "w") as archive:
            for path, content in (members | about).items():
                archive.writestr(path, content)
        return repack(loose, out / name)
    finally:
        loose.unlink(missing_ok=True)


def row(made: Kernels, target: Target) -> str:
    """The entry of a variant for the matrix: what is added to the row of its target."""
    pins = {FLASHINFER: made.version.partition("+")[0]}
    name, wheels = f"{made.target}-kernels", {PACKAGE: made.version}
    return variant.row(name, made.target, target, wheels, pins=pins, arch=made.arch, gpus=made.gpus)


def _flashinfer(lock: Lock, arch: Arch) -> str:
    """The locked FlashInfer; InputError if the target does not compile its kernels."""
    locked = installed_wheels(require_arch(lock, arch))
    found = {wheel.package: wheel.version for wheel in locked}
    if lock.flashinfer != "jit" or FLASHINFER not in found:
        message = f"{lock.target} has FlashInfer {lock.flashinfer}: nothing is compiled in it"
        raise InputError(message, hint="name a target whose mode is jit: imgbuild matrix")
    return found[FLASHINFER]


def _compile(
    lock: Lock,
    root: Path,
    settings: run_in_image.CommandConfig,
    folder: Path,
    wanted: Sequence[str],
    gpus: Sequence[str],
) -> None:
    """Compile `wanted` into `folder`, which the image's user sees at PLACE."""
    user = lock.settings.user
    env = run_in_image.environment(settings) | {
        "HOME": user.home,
        "FLASHINFER_WORKSPACE_BASE": PLACE,
        "FLASHINFER_CUDA_ARCH_LIST": " ".join(gpus),
        "LIBRARY_PATH": f"{PLACE}/stub",
    }
    done = sandbox.run(
        root,
        [*settings.entrypoint, f"{lock.settings.prefix}/bin/python", "-c", COMPILE, *wanted],
        env=env,
        binds=[sandbox.Bind(source=folder, target=PLACE, writable=True)],
        user=(user.uid, user.gid),
    )
    if done.status != 0:
        tail = "\n".join((done.stderr or done.stdout).strip().splitlines()[-20:])
        message = f"{lock.target}: kernels were not compiled (status {done.status}):\n{tail}"
        hint = f"look into the image: imgbuild run {lock.target} -- sh"
        raise WorkFailed(message, hint=hint)
