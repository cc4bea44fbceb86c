"""Triton's kernels, taken from the caches of two runs on a GPU.

The wheel has the kernels that both runs compiled, and a cache manager that gives them to Triton.
Triton finds a kernel by a hash of its source, of the GPU and of Triton itself, so none is ever
stale. Libraries that gcc made for Triton are left out: some of their keys do not name the Python
that they are for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from imgbuild.errors import InputError
from imgbuild.lock.lock import Lock, require_arch
from imgbuild.matrix.model import Variable
from imgbuild.plan.plan import installed_wheels
from imgbuild.precompile import machine, pack
from imgbuild.precompile.pack import Name, Packed, Variant
from imgbuild.values import Arch, Bytes

TRITON = "triton"
PACKAGE = "imgbuild-triton"
MODULE = "imgbuild_triton"
CACHE_FOLDER = "triton"  # of a run's caches
VARIABLE = "TRITON_CACHE_MANAGER"
DOCUMENTED = "https://github.com/triton-lang/triton/blob/main/python/triton/runtime/cache.py"
# Triton's names of folders, hashes all: base64 in 3.2, base32 in 3.6, hexadecimal long ago.
KEY = re.compile(r"[A-Za-z0-9_-]{43}|[A-Z2-7]{52}|[0-9a-f]{64}")
GROUP = "__grp__"  # begins the name of the file that names the others; Triton writes it last
# Runs in the image. A kernel is copied when it is asked for: others that look into the cache
# (torch's compiler does) find it where it would be, and paths in it are those of this container.
CACHE = '''\
"""Triton's cache of files, with the kernels that came with the image."""

import json
import os

from triton.runtime.cache import FileCacheManager

KERNELS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kernels")
GROUP = "__grp__"


class Cache(FileCacheManager):
    """A kernel that the cache lacks is copied from those of the image, if they have it."""

    def __init__(self, key, override=False, dump=False):
        super().__init__(key, override=override, dump=dump)
        self._image = None if override or dump else os.path.join(KERNELS, key)

    def get_group(self, filename):
        found = self._found(filename)
        if found is None and self._image is not None and os.path.isdir(self._image):
            try:
                self._copy(filename)
            except (OSError, ValueError):
                return None  # compiled then, as without the image's
            found = self._found(filename)
        return found

    def _found(self, filename):
        """What the cache itself has of a kernel, if it has all of it."""
        try:
            found = super().get_group(filename)
        except ValueError:
            return None
        return found if found and filename in found else None

    def _copy(self, filename):
        with open(os.path.join(self._image, GROUP + filename)) as stream:
            names = json.load(stream)
        for name in names:
            with open(os.path.join(self._image, name), "rb") as stream:
                self.put(stream.read(), name)
        # Last: it says that the others are there.
        self.put_group(filename, {name: self._make_path(name) for name in names})
'''


class TritonKernel(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel; the two runs made different bytes of the files in `differs`.

    Triton writes into them where a function was defined, and torch's compiler defines some in files
    whose names are of that run.
    """

    key: str
    name: str
    size: Bytes
    differs: tuple[str, ...] = ()


class TritonKernels(Packed, frozen=True, kw_only=True):
    """The wheel that was made, and what is in it; `apart` were compiled in one run only."""

    triton: str
    gpus: tuple[str, ...]
    kernels: tuple[TritonKernel, ...]
    apart: int


class Compiled(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel as a cache has it: its name, its files by their names, Triton's metadata."""

    name: str
    files: dict[str, Path]
    metadata: dict[str, Any]

    def contents(self) -> dict[str, bytes]:
        """What is packed: each file, and the group with names alone, since paths are of the run."""
        data = {name: path.read_bytes() for name, path in self.files.items()}
        group = json.dumps(sorted(self.files)).encode()
        return {**data, f"{GROUP}{self.name}.json": group}


def take(lock: Lock, arch: Arch, folders: tuple[Path, Path], out: Path) -> TritonKernels:
    """Pack to `out` what two runs on a GPU machine compiled into the caches in `folders`.

    InputError if the target has no Triton, a folder no kernel or another Triton's, or the two none
    in common, or if the machine was no `arch`.
    """
    release = _release(lock, arch)
    one, other = (compiled(folder) for folder in folders)
    for folder, found in zip(folders, (one, other), strict=True):
        _require_release(folder, found, release)
        for library in libraries(folder):
            machine.require_arch(library, arch)
    both = sorted(one.keys() & other.keys())
    if not both:
        message = f"no kernel is in both {folders[0]} and {folders[1]}"
        raise InputError(message, hint="name the caches of two runs of this target")
    modules: dict[str, bytes] = {f"{MODULE}/__init__.py": CACHE.encode()}
    made = []
    for key in both:
        contents, others = one[key].contents(), other[key].contents()
        modules |= {f"{MODULE}/kernels/{key}/{name}": data for name, data in contents.items()}
        made.append(
            TritonKernel(
                key=key,
                name=one[key].name,
                size=sum(map(len, contents.values())),
                differs=tuple(
                    sorted(
                        name
                        for name in contents.keys() | others.keys()
                        if contents.get(name) != others.get(name)
                    )
                ),
            )
        )
    variable = Variable(
        value=f"{MODULE}:Cache",
        reason=f"Triton's cache takes kernels from {PACKAGE}; what it lacks is compiled as before",
        source=(DOCUMENTED,),
    )
    version = f"0+t{pack.digits(f'{release} {arch} {pack.listed(modules)}')}"
    requires = (f"{TRITON}=={release}",)
    name = Name(package=PACKAGE, version=version, tag=pack.native(lock, arch), requires=requires)
    wheel = pack.pack(
        lock, arch, name, out,
        modules=modules,
        variant=Variant(suffix="kernels", variables={VARIABLE: variable}, arch=arch),
    )  # fmt: skip
    return TritonKernels(
        **msgspec.structs.asdict(wheel),
        triton=release,
        gpus=gpus(one[key] for key in both),
        kernels=tuple(made),
        apart=len(one.keys() ^ other.keys()),
    )


def compiled(folder: Path) -> dict[str, Compiled]:
    """The kernels below `folder` by their keys: in its triton/, if it has one.

    Beside that vLLM keeps kernels of its own compilations. A kernel that is incomplete because a
    run was stopped is skipped. InputError if there is none at all, or one is there twice.
    """
    found: dict[str, Compiled] = {}
    for path in sorted(_triton_cache(folder).rglob(f"{GROUP}*.json")):
        key, name = path.parent.name, path.name.removeprefix(GROUP).removesuffix(".json")
        kernel = _kernel(path, name) if KEY.fullmatch(key) else None
        if kernel is None:
            continue
        if key in found:
            message = f"{folder} holds {key} twice"
            raise InputError(message, hint="name the cache of one run")
        found[key] = kernel
    if not found:
        message = f"{folder}: no Triton kernel was found in it"
        raise InputError(message, hint="name a folder that TRITON_CACHE_DIR named")
    return found


def libraries(folder: Path) -> list[Path]:
    """The files that gcc made for Triton below `folder`, a cache, for the machine it ran on."""
    return sorted(_triton_cache(folder).rglob("*.so"))


def gpus(found: Iterable[Compiled]) -> tuple[str, ...]:
    """The compute capabilities that kernels are for, as "9.0"."""
    numbers = {
        int(target["arch"])
        for kernel in found
        if isinstance(target := kernel.metadata.get("target"), dict)
        and str(target.get("arch")).isdecimal()
    }
    return tuple(map(machine.capability, sorted(numbers)))


def _triton_cache(folder: Path) -> Path:
    """Where Triton's own cache is in the caches of a run; else `folder` itself."""
    return folder / CACHE_FOLDER if (folder / CACHE_FOLDER).is_dir() else folder


def _kernel(group: Path, name: str) -> Compiled | None:
    """The kernel of a group's file; None if it is damaged, or a file that it names is not there."""
    try:
        names = sorted(json.loads(group.read_bytes())["child_paths"])
        files = {each: group.with_name(each) for each in names}
        metadata = json.loads(files[f"{name}.json"].read_bytes())
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not isinstance(metadata, dict) or not all(path.is_file() for path in files.values()):
        return None
    return Compiled(name=name, files=files, metadata=metadata)


def _release(lock: Lock, arch: Arch) -> str:
    """The locked Triton."""
    for wheel in installed_wheels(require_arch(lock, arch)):
        if wheel.package == TRITON:
            return wheel.version
    message = f"{lock.target} has no Triton"
    raise InputError(message, hint="name a target that has: imgbuild list")


def _require_release(folder: Path, found: Mapping[str, Compiled], release: str) -> None:
    """InputError if a kernel says that another Triton compiled it."""
    for key, kernel in found.items():
        other = kernel.metadata.get("triton_version", release)
        if other != release:
            message = f"{folder}: {kernel.name} ({key[:12]}…) was compiled by Triton {other}"
            raise InputError(message, hint=f"name the cache of a run with Triton {release}")
