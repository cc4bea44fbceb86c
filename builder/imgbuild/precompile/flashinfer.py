"""FlashInfer's kernels, compiled in a built image or taken from the caches of two runs on a GPU.

The wheel is of the package that FlashInfer looks into before it compiles. The output of nvcc does
not follow from the lock alone, so the wheel is an input of a variant: kernels are compiled twice,
and differences between the two are named.
"""

from __future__ import annotations

import io
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from imgbuild.cache.store import Store
from imgbuild.container import run_in_image
from imgbuild.container.root_folder import root_folder
from imgbuild.errors import InputError
from imgbuild.lock.lock import Lock, require_arch
from imgbuild.oci.layout import Layout
from imgbuild.plan.plan import installed_wheels
from imgbuild.precompile import machine, pack
from imgbuild.precompile.inside import UnpackedImage
from imgbuild.precompile.pack import Name, Packed, Variant
from imgbuild.system.reporter import SILENT, Reporter
from imgbuild.values import Arch, Bytes, Sha256, sha256

FLASHINFER = "flashinfer-python"
PACKAGE = "flashinfer-jit-cache"
MODULE = "flashinfer_jit_cache"
# What vLLM samples with, on every GPU: FlashInfer's functions that describe a library of kernels.
SAMPLING = ("flashinfer.jit.sampling:gen_sampling_module",)
KERNELS = "cached_ops"  # the folder of FlashInfer's cache that holds compiled libraries
PLACE = "/kernels"  # one place for both compilations: paths are part of what nvcc writes
ARCHITECTURES = re.compile(r"\d{2,3}[af]?(_\d{2,3}[af]?)*")

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
    """A compiled library. `differs` lists what the second compilation made differently.

    Each is a section of the ELF file and how many bytes in it: ".nv_fatbin: 12" is GPU code.
    """

    name: str
    size: Bytes
    sha256: Sha256
    differs: tuple[str, ...] = ()


class Kernels(Packed, frozen=True, kw_only=True):
    """The wheel that was made, and what is in it."""

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
    reporter: Reporter = SILENT,
) -> Kernels:
    """Compile `wanted` ("module:function") for `gpus` ("9.0") in the image, and pack them to `out`.

    InputError if the target compiles nothing, WorkFailed with the compiler's words if it fails.
    """
    _flashinfer(lock, arch)
    unpacked = root_folder(layout, arch, store, reporter=reporter)
    with unpacked as root, store.scratch() as scratch:
        settings = run_in_image.running(layout, arch)
        inside = UnpackedImage(lock=lock, root=root, settings=settings)
        runs = []
        for number in ("first", "second"):
            folder = scratch / number
            (folder / "stub").mkdir(parents=True)
            for place in (folder, folder / "stub"):
                place.chmod(0o1777)
            with reporter.step(f"{lock.target}: compiling kernels, the {number} time"):
                _compile(inside, folder, wanted, gpus)
            runs.append(compiled(folder))
        return _packed(lock, arch, runs[0], runs[1], gpus, out)


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
            machine.require_arch(path, arch)
        if set(there := capabilities(libraries.values())) != set(gpus):
            message = f"the cache is for {', '.join(there)}, but --gpu names {', '.join(gpus)}"
            raise InputError(message, hint="leave --gpu out: the GPUs are read from the cache")
    return _packed(lock, arch, found[0], found[1], gpus, out)


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
        message = f"{folder}: no {KERNELS}/NAME/NAME.so was found in it"
        raise InputError(message, hint="name a folder that FLASHINFER_WORKSPACE_BASE named")
    return found


def _packed(
    lock: Lock,
    arch: Arch,
    one: Mapping[str, Path],
    other: Mapping[str, Path],
    gpus: Sequence[str],
    out: Path,
) -> Kernels:
    """The wheel of the libraries `one`, compared with `other`; its bytes follow from theirs.

    InputError if the two do not have the same libraries.
    """
    if apart := sorted(one.keys() ^ other.keys()):
        message = f"one of the two compilations lacks {', '.join(apart)}"
        raise InputError(message, hint="run the same twice, each time with an empty cache")
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
    mark = pack.digits(INIT.format(**fields, version="") + pack.listed(data))
    release = _flashinfer(lock, arch)
    version = f"{release}+k{mark}"
    about = INIT.format(**fields, version=version)
    modules = {f"{MODULE}/jit_cache/{each}/{each}.so": content for each, content in data.items()}
    made = pack.pack(
        lock, arch, Name(package=PACKAGE, version=version, tag=pack.native(lock, arch)), out,
        modules={f"{MODULE}/__init__.py": about.encode(), **modules},
        variant=Variant(
            suffix="kernels", pins={FLASHINFER: release}, arch=arch, gpus=tuple(gpus)
        ),
    )  # fmt: skip
    return Kernels(**msgspec.structs.asdict(made), gpus=tuple(gpus), kernels=kernels)


def architectures(libraries: Iterable[Path]) -> tuple[str, ...]:
    """What libraries were compiled for, as FlashInfer names it: ("sm80", "sm90a").

    Each is at ARCHITECTURES/cached_ops/NAME/NAME.so of a cache, such as 80_90a/cached_ops/….
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
    return tuple(map(machine.capability, numbers))


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


def _flashinfer(lock: Lock, arch: Arch) -> str:
    """The locked FlashInfer; InputError if the target does not compile its kernels."""
    locked = installed_wheels(require_arch(lock, arch))
    found = {wheel.package: wheel.version for wheel in locked}
    if lock.flashinfer != "jit" or FLASHINFER not in found:
        message = f"{lock.target} has FlashInfer {lock.flashinfer}: nothing is compiled in it"
        raise InputError(message, hint="name a target whose mode is jit: imgbuild list")
    return found[FLASHINFER]


def _compile(
    inside: UnpackedImage, folder: Path, wanted: Sequence[str], gpus: Sequence[str]
) -> None:
    """Compile `wanted` into `folder`, which the image's user sees at PLACE."""
    inside.python(
        COMPILE,
        wanted,
        folder=folder,
        place=PLACE,
        env={
            "FLASHINFER_WORKSPACE_BASE": PLACE,
            "FLASHINFER_CUDA_ARCH_LIST": " ".join(gpus),
            "LIBRARY_PATH": f"{PLACE}/stub",
        },
        failed="kernels were not compiled",
        hint=f"look into the image: imgbuild run {inside.lock.target} -- sh",
    )
