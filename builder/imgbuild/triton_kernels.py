"""Triton's compiled kernels: a wheel that a target's variant is locked with.

Comes in: what two runs on a GPU machine left in Triton's cache. Goes out: a wheel of the kernels
that both compiled, and of a cache for Triton that takes them from there. Triton finds a kernel by a
hash of its source, of what it is compiled for and of Triton itself: none is ever stale.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from imgbuild import kernels, variant
from imgbuild.errors import InputError
from imgbuild.lock import Lock, require_arch
from imgbuild.matrix.model import Target, Variable
from imgbuild.plan import installed_wheels
from imgbuild.values import Arch, Bytes, Sha256, sha256
from imgbuild.wheel import packed

TRITON = "triton"
PACKAGE = "imgbuild-triton"
MODULE = "imgbuild_triton"
FOLDER = "triton"  # below the environment's prefix
VARIABLE = "TRITON_CACHE_MANAGER"
DOCUMENTED = "https://github.com/triton-lang/triton/blob/main/python/triton/runtime/cache.py"
DIGITS = 12
KEY = re.compile(r"[A-Z2-7]{52}|[0-9a-f]{64}")  # Triton's names of folders: base32 since 3.0
GROUP = "__grp__"  # begins the name of the file that names the others of its folder
# Runs in the image. A kernel is copied when it is asked for: others that look into the cache
# (torch's compiler does) find it where it would be, and paths in it are those of this container.
CACHE = '''\
"""Triton's cache of files, with the kernels that came with the image."""

import json
import os
import sys

from triton.runtime.cache import FileCacheManager

KERNELS = os.path.join(sys.prefix, "triton")
GROUP = "__grp__"


class Cache(FileCacheManager):
    """A kernel that the cache lacks is copied from those of the image, if they have it."""

    def __init__(self, key, override=False, dump=False):
        super().__init__(key, override=override, dump=dump)
        if override or dump:
            return
        folder = os.path.join(KERNELS, key)
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            return
        for name in (name for name in names if not name.startswith(GROUP)):
            if not self.has_file(name):
                with open(os.path.join(folder, name), "rb") as stream:
                    self.put(stream.read(), name)
        for name in (name for name in names if name.startswith(GROUP)):
            if not self.has_file(name):  # last: it says that the others are there
                with open(os.path.join(folder, name)) as stream:
                    children = json.load(stream)
                group = {child: os.path.join(self.cache_dir, child) for child in children}
                self.put_group(name[len(GROUP):], group)
'''


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel, or a library of Triton's; of the files in `differs` the two runs made other bytes.

    Triton writes into them where a function was defined, and torch's compiler defines some in files
    whose names are of that run.
    """

    key: str
    name: str
    size: Bytes
    differs: tuple[str, ...] = ()


class TritonKernels(msgspec.Struct, frozen=True, kw_only=True):
    """The wheel that was made, and what is in it; `apart` were compiled in one run only."""

    target: str
    arch: Arch
    triton: str
    version: str
    file: str
    size: Bytes
    sha256: Sha256
    kernels: tuple[Kernel, ...]
    apart: int


def take(lock: Lock, arch: Arch, folders: tuple[Path, Path], out: Path) -> TritonKernels:
    """Pack to `out` what two runs on a GPU machine compiled into the caches in `folders`.

    InputError if the target has no Triton, a folder no kernel, or the two none in common.
    """
    release = _release(lock, arch)
    one, other = (compiled(folder) for folder in folders)
    _require_machine([*one.values(), *other.values()], arch)
    both = sorted(one.keys() & other.keys())
    if not both:
        message = f"no kernel is in both {folders[0]} and {folders[1]}"
        raise InputError(message, hint="name the caches of two runs of this target")
    files = {
        f"{FOLDER}/{key}/{name}": _content(path) for key in both for name, path in one[key].items()
    }
    rows = "".join(f"{path} {sha256(content)}\n" for path, content in files.items())
    mark = sha256(f"{release}\n{CACHE}{rows}".encode())[:DIGITS]
    version = f"0+t{mark}"
    tag = f"py3-none-manylinux_{lock.base.glibc.replace('.', '_')}_{arch.wheel}"
    modules = {f"{MODULE}.py": CACHE.encode()}
    wheel = packed.write(PACKAGE, version, tag, files, out, modules=modules)
    data = wheel.read_bytes()
    return TritonKernels(
        target=lock.target,
        arch=arch,
        triton=release,
        version=version,
        file=wheel.name,
        size=len(data),
        sha256=sha256(data),
        kernels=tuple(_kernel(key, one[key], other[key]) for key in both),
        apart=len(one.keys() ^ other.keys()),
    )


def compiled(folder: Path) -> dict[str, dict[str, Path]]:
    """The files of each kernel below `folder` by the kernel's key: in its triton/, if it has one.

    Beside that vLLM keeps kernels of its own compilations. A kernel whose files are not all there,
    since the run was ended, is none. InputError if there is none at all, or one lies there twice.
    """
    found: dict[str, dict[str, Path]] = {}
    own = folder / FOLDER
    for place in sorted((own if own.is_dir() else folder).rglob("*")):
        if not KEY.fullmatch(place.name) or not place.is_dir():
            continue
        files = {path.name: path for path in sorted(place.iterdir()) if path.is_file()}
        files.pop("lock", None)
        if not files or not all(_children(path) <= files.keys() for path in files.values()):
            continue
        if place.name in found:
            message = f"{folder} holds {place.name} twice"
            raise InputError(message, hint="name the cache of one run")
        found[place.name] = files
    if not found:
        message = f"{folder}: no kernel of Triton's lies below it"
        raise InputError(message, hint="name a folder that TRITON_CACHE_DIR named")
    return found


def row(made: TritonKernels, target: Target) -> str:
    """The entry of a variant for the matrix: what is added to the row `target`."""
    variable = Variable(
        value=f"{MODULE}:Cache",
        reason=f"Triton's cache takes kernels from {PACKAGE}; what it lacks is compiled as before",
        source=(DOCUMENTED,),
    )
    return variant.row(made.target, target, {PACKAGE: made.version}, {VARIABLE: variable})


def machine(folder: Path) -> Arch:
    """For which architecture Triton compiled its own libraries below `folder`, a cache of it.

    InputError if there are none, or they do not say so.
    """
    files = (path for each in compiled(folder).values() for path in each.values())
    return kernels.machine(folder, [path for path in files if path.suffix == ".so"])


def _release(lock: Lock, arch: Arch) -> str:
    """The locked Triton."""
    for wheel in installed_wheels(require_arch(lock, arch)):
        if wheel.package == TRITON:
            return wheel.version
    message = f"{lock.target} has no Triton"
    raise InputError(message, hint="name a target that has: imgbuild matrix")


def _require_machine(kernels_of: Iterable[Mapping[str, Path]], arch: Arch) -> None:
    """InputError if a library was compiled on a machine that is no `arch`."""
    libraries = (path for files in kernels_of for path in files.values() if path.suffix == ".so")
    for path in libraries:
        other = kernels.machine_of(path) or arch
        if other != arch:
            message = f"{path} is for {other}, not for {arch}"
            raise InputError(message, hint=f"name the cache of a machine of {arch}, or --arch")


def _children(path: Path) -> set[str]:
    """The names of the files that a group's file names; of another file, none."""
    if not path.name.startswith(GROUP):
        return set()
    try:
        return set(json.loads(path.read_bytes())["child_paths"])
    except (ValueError, KeyError, TypeError):
        return {path.name + " is damaged"}


def _content(path: Path) -> bytes:
    """What is packed of a file: of a group's, the names alone, since its paths are of that run."""
    if path.name.startswith(GROUP):
        return json.dumps(sorted(_children(path))).encode()
    return path.read_bytes()


def _kernel(key: str, one: Mapping[str, Path], other: Mapping[str, Path]) -> Kernel:
    """What is told of a kernel."""
    groups = [name for name in one if name.startswith(GROUP)]
    name = groups[0].removeprefix(GROUP).removesuffix(".json") if groups else min(one)
    contents = {name: _content(path) for name, path in one.items()}
    others = {name: _content(path) for name, path in other.items()}
    return Kernel(
        key=key,
        name=name,
        size=sum(map(len, contents.values())),
        differs=tuple(
            sorted(
                name
                for name in contents.keys() | others.keys()
                if contents.get(name) != others.get(name)
            )
        ),
    )
