"""The machine that compiled something: its architecture and its GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from imgbuild.errors import InputError
from imgbuild.values import Arch

MACHINES = {"EM_X86_64": Arch.X86_64, "EM_AARCH64": Arch.ARM64}


def arch_of(folder: Path, libraries: Iterable[Path]) -> Arch:
    """The architecture that `libraries` of the cache `folder` were compiled for.

    InputError if there are none, if they are for several, or for one for which no image is built.
    """
    found = {_machine(path) for path in libraries}
    only = found.pop() if len(found) == 1 else None
    if only is None:
        message = f"{folder}: found no libraries that are all for x86_64 or all for arm64"
        raise InputError(message, hint="name the cache of one machine, or its --arch")
    return only


def _machine(path: Path) -> Arch | None:
    """The architecture that an ELF file is for; None if it is none, or for another."""
    try:
        with path.open("rb") as stream:
            return MACHINES.get(ELFFile(stream)["e_machine"])
    except ELFError:
        return None


def require_arch(path: Path, arch: Arch) -> None:
    """InputError if a file is not a library, or is for another architecture."""
    found = _machine(path)
    if found != arch:
        kind = f"for {found}, not for {arch}" if found else "no library for x86_64 or arm64"
        message = f"{path} is {kind}"
        raise InputError(message, hint=f"name the cache of a machine of {arch}, or --arch")


def capability(number: int) -> str:
    """A compute capability as people write it: 90 is "9.0"."""
    return f"{number // 10}.{number % 10}"
