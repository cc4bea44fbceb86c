"""`data/audit/libraries.yaml`: packages of libraries and symbols, libraries loaded by name."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import lru_cache
from importlib import resources

import msgspec

from imgbuild.system import yaml_data

FILE = "data/audit/libraries.yaml"


class Driver(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A library of the GPU's driver; `symbols` begins the names of its functions."""

    library: str
    symbols: str = ""


class LibraryOwner(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The package that has a library; a shell pattern."""

    library: str
    package: str


class Namespace(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A part of the names of a package's symbols; the package is "" if there is none."""

    part: str
    package: str


class LoadedFiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Files that are loaded by name; a shell pattern of paths in a wheel."""

    file: str
    why: str


class Libraries(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole file."""

    drivers: tuple[Driver, ...]
    brings: tuple[LibraryOwner, ...]
    namespaces: tuple[Namespace, ...]
    loaded: tuple[LoadedFiles, ...]
    choices: tuple[LoadedFiles, ...]

    def is_driver(self, library: str) -> bool:
        """Whether a library comes from the host."""
        return any(one.library == library for one in self.drivers)

    def is_driver_symbol(self, symbol: str) -> bool:
        """Whether a symbol is a function of the driver: cuLaunchKernel, but not cublasCreate."""
        return any(
            symbol.startswith(one.symbols)
            and symbol[len(one.symbols) : len(one.symbols) + 1].isupper()
            for one in self.drivers
            if one.symbols
        )

    def provider(self, library: str) -> str:
        """The package that has a library; "" if unknown."""
        found = (one.package for one in self.brings if fnmatchcase(library, one.library))
        return next(found, "")

    def owner(self, symbol: str) -> str:
        """The package whose namespace a symbol is in; "" if unknown."""
        return next((one.package for one in self.namespaces if one.part in symbol), "")

    def is_loaded(self, file: str) -> bool:
        """Whether a file is loaded by name wherever its package is used."""
        return any(fnmatchcase(file, one.file) for one in self.loaded)

    def is_choice(self, file: str) -> bool:
        """Whether a file is one of several of which the fitting one is loaded."""
        return any(fnmatchcase(file, one.file) for one in self.choices)


@lru_cache(maxsize=1)
def load() -> Libraries:
    """The data of this version of imgbuild."""
    text = resources.files("imgbuild").joinpath(FILE).read_text(encoding="utf-8")
    return msgspec.convert(yaml_data.read(text), Libraries)
