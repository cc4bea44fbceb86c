"""Creates packages of shared objects from facts that a test defines."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from imgbuild.audit.binaries.elf import symbol_hash
from imgbuild.audit.packages.package_set import PackageSet
from imgbuild.audit.packages.reading import WheelMetadata, find_modules
from imgbuild.audit.source.facts import ElfFacts, ModuleFacts, OpaqueModule
from imgbuild.audit.source.module import read_module
from imgbuild.values import Arch


def shared_library(file: str, *, defines: Sequence[str] = (), **facts: Any) -> ElfFacts:
    """A shared object. Its soname is the file name, except for Python modules."""
    name = file.rpartition("/")[2]
    numbers = sorted(int.from_bytes(symbol_hash(symbol.encode()), "little") for symbol in defines)
    given = {"soname": "" if facts.get("python") else name, "machine": "x86_64", **facts}
    return ElfFacts(file=file, defined=array("Q", numbers).tobytes(), **given)


def extension_module(file: str, **facts: Any) -> ElfFacts:
    """An extension module."""
    return shared_library(file, python=True, **facts)


LIBC = shared_library(
    "lib/x86_64-linux-gnu/libc.so.6", defines=["memcpy"], defined_versions=("GLIBC_2.2.5",)
)
LIBSTDCXX = shared_library(
    "usr/lib/x86_64-linux-gnu/libstdc++.so.6",
    defines=["_Znwm"],
    defined_versions=("GLIBCXX_3.4.29",),
)
PYTHON = shared_library("usr/bin/python3.11", defines=["PyErr_SetString"], soname="")
BASE = (LIBC, LIBSTDCXX, PYTHON)


class SharedObjects(PackageSet):
    """A package set from {"torch 2.6.0": [facts, …]}. `sources` contains Python files by path.

    `unread` contains files of packages without facts.
    """

    def __init__(
        self,
        packages: Mapping[str, Sequence[ElfFacts]],
        sources: Mapping[str, str] | None = None,
        requires: Mapping[str, tuple[str, ...]] | None = None,
        unread: Mapping[str, tuple[str, ...]] | None = None,
        partial: bool = False,
        python: str = "3.11",
        arch: Arch = Arch.X86_64,
        glibc: str = "2.36",
    ) -> None:
        self._packages = packages
        self._sources = sources or {}
        self._requires = requires or {}
        self._unread = unread or {}
        self.partial, self.python, self.arch, self.glibc = partial, python, arch, glibc

    @property
    def packages(self) -> tuple[str, ...]:
        return tuple(sorted(name.split(" ")[0] for name in self._packages))

    def version(self, package: str) -> str | None:
        return dict(name.split(" ") for name in self._packages).get(package)

    def metadata(self, package: str) -> WheelMetadata | None:
        version = self.version(package)
        if version is None:
            return None
        return WheelMetadata(
            name=package, version=version, requires=self._requires.get(package, ())
        )

    def files(self, package: str) -> Mapping[str, int]:
        unread = dict.fromkeys(self._unread.get(package, ()), 1000)
        return unread | {facts.file: 1000 for owner, facts in self.elf_facts() if owner == package}

    def elf_facts(self) -> Iterator[tuple[str, ElfFacts]]:
        for name, elf_facts in self._packages.items():
            for facts in elf_facts:
                yield name.split(" ")[0], facts

    def assemblers(self) -> Iterator[tuple[str, ElfFacts]]:
        return ((name, facts) for name, facts in self.elf_facts() if facts.ptxas_architectures)

    def loaded(self, package: str) -> Mapping[str, tuple[str, ...]]:
        """Return no names, because tests of names in strings use real wheels."""
        return {}

    def modules_of(self, package: str) -> Mapping[str, str]:
        files = [facts.file for owner, facts in self.elf_facts() if owner == package]
        import_roots = {file.partition("/")[0].partition(".")[0] for file in files}
        return find_modules(
            [*files, *(file for file in self._sources if file.split("/")[0] in import_roots)]
        )

    def module(self, name: str) -> ModuleFacts | OpaqueModule | None:
        file = find_modules(self._sources).get(name)
        if file is None:
            return None
        package = file.endswith("__init__.py")
        return read_module(self._sources[file].encode(), name, file, package=package)

    def prefetch(self, modules: Iterable[str]) -> None:
        """Do nothing, because all facts are in memory."""
