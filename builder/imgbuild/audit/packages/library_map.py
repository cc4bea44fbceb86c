"""Determines where the dynamic linker finds the libraries and symbols of a package set.

A library is found by the RUNPATH of the file, in the folders of the base, or because the process
has already loaded a library with the same SONAME: torch loads NVIDIA's libraries, and `import
torch` loads the libraries of torch for every extension. A library therefore counts as found if it
is in any folder of the package itself, a required package, torch or a package of NVIDIA. A copy
that auditwheel bundled is visible only to the package that contains it.
"""

from __future__ import annotations

import posixpath
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from imgbuild.audit.binaries.elf import symbol_hash
from imgbuild.audit.packages.published import SYMBOL_MASK
from imgbuild.audit.packages.reading import installed_path
from imgbuild.audit.source.facts import ElfFacts

_PRIVATE = re.compile(r"(?:^|/)[^/]+\.libs/|/thirdparty_files/|/backends/|/bin/")
SHARED_BY_ALL = ("torch", "nvidia-")
ORIGIN = re.compile(r"\$(?:ORIGIN|\{ORIGIN\})")
LINK = "link"


class LibraryMap:
    """Maps the libraries and symbols of a package set to the shared objects that provide them."""

    def __init__(
        self,
        elf_facts: Iterable[tuple[str, ElfFacts]],
        base: Sequence[ElfFacts],
        machine: str,
        requires: Mapping[str, frozenset[str]],
    ) -> None:
        self.files = [(package, facts) for package, facts in elf_facts if facts.machine == machine]
        self.base = base
        self._requires = requires
        self._paths = {
            installed_path(facts.file): (package, facts) for package, facts in self.files
        }
        self._names: dict[str, list[tuple[str, ElfFacts]]] = {}
        for package, facts in self.files:
            for name in {facts.soname, posixpath.basename(facts.file)} - {""}:
                self._names.setdefault(name, []).append((package, facts))
        self._own: dict[str, set[int]] = {}

    def providers(self, package: str, facts: ElfFacts, library: str) -> list[tuple[str, ElfFacts]]:
        """Return the files in wheels that the file `facts` of `package` may load as `library`."""
        entry = self.find_by_runpath(facts, library)
        if entry is not None:
            return [entry]
        return [
            (owner, candidate)
            for owner, candidate in self._names.get(library, ())
            if owner == package
            or (self._is_visible_to(package, owner) and not is_private(candidate.file))
        ]

    def find_by_runpath(self, facts: ElfFacts, library: str) -> tuple[str, ElfFacts] | None:
        """Return the package file that `facts` finds as `library` by its RUNPATH.

        If `library` contains a slash, it is a path, and no folder is searched.
        """
        folder = posixpath.dirname(installed_path(facts.file)) or "."
        for path in ("",) if "/" in library else facts.runpath:
            place = posixpath.join(path, library)
            if "ORIGIN" in place:
                entry = self._paths.get(posixpath.normpath(ORIGIN.sub(folder, place)))
                if entry is not None:
                    return entry
        return None

    def base_library(self, library: str) -> ElfFacts | None:
        """Return the library of the base with this name, or None if there is none."""
        return self._base_names.get(library)

    def similar_libraries(self, library: str) -> list[tuple[str, ElfFacts]]:
        """Return libraries in wheels with the same name before ".so" but another major version."""
        stem, major = _stem_and_number(library)
        return [
            pair
            for name, pairs in self._names.items()
            if _stem_and_number(name)[0] == stem and _stem_and_number(name)[1] not in ("", major)
            for pair in pairs
            if not is_private(pair[1].file)
        ]

    def defines_symbol(self, package: str, symbol: str) -> bool:
        """Return whether a library that is visible to files of `package` defines a symbol."""
        number = int.from_bytes(symbol_hash(symbol.encode()), "little") & SYMBOL_MASK
        return number in self._public_symbols or number in self._private_symbols(package)

    def _is_visible_to(self, package: str, owner: str) -> bool:
        return owner.startswith(SHARED_BY_ALL) or owner in self._requires.get(package, ())

    @cached_property
    def _base_names(self) -> dict[str, ElfFacts]:
        names = {
            facts.soname: facts for facts in self.base if facts.soname and facts.machine != LINK
        }
        by_file = {posixpath.basename(facts.file): facts for facts in self.base}
        for name, facts in by_file.items():
            target = names.get(facts.soname, facts) if facts.machine == LINK else facts
            names.setdefault(name, target)
        return names

    @cached_property
    def _public_symbols(self) -> set[int]:
        symbols: set[int] = set()
        for facts in self.base:
            symbols.update(_symbols(facts))
        for _, facts in self.files:
            if not is_private(facts.file):
                symbols.update(_symbols(facts))
        return symbols

    def _private_symbols(self, package: str) -> set[int]:
        if package not in self._own:
            self._own[package] = {
                number
                for owner, facts in self.files
                if owner == package and is_private(facts.file)
                for number in _symbols(facts)
            }
        return self._own[package]


def _symbols(facts: ElfFacts) -> Iterator[int]:
    """Yield the exported symbols of a file, as far as the published facts contain them."""
    return map(SYMBOL_MASK.__and__, array("Q", facts.defined))


def _stem_and_number(library: str) -> tuple[str, str]:
    """Return the stem and major number of a library.

    For "libcudart.so.13.0", these are "libcudart" and "13".
    """
    stem, _, number = library.partition(".so")
    return stem, number.removeprefix(".").partition(".")[0]


def is_private(file: str) -> bool:
    """Return whether a library is a private copy, which only its package uses."""
    return _PRIVATE.search(file) is not None
