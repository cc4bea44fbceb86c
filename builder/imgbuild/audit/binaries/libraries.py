"""Reads `data/audit/libraries.yaml`: libraries of the driver, the system and packages."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import lru_cache

import msgspec

from imgbuild.system import files, yaml_data


class Driver(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A library of the GPU driver. `symbols` are prefixes of its function names."""

    library: str
    symbols: str = ""


class LibraryOwner(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A shell pattern of library names, and the package that provides these libraries."""

    library: str
    package: str


class Namespace(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A substring of symbols, and the package that defines these symbols, or ""."""

    part: str
    package: str


class LoadedFiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A shell pattern of paths in a wheel, for files that are loaded by name."""

    file: str
    why: str


class Libraries(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The content of `data/audit/libraries.yaml`."""

    drivers: tuple[Driver, ...]
    brings: tuple[LibraryOwner, ...]
    namespaces: tuple[Namespace, ...]
    loaded: tuple[LoadedFiles, ...]
    choices: tuple[LoadedFiles, ...]

    def is_driver(self, library: str) -> bool:
        """Return whether a library belongs to the GPU driver, and is thus mounted from the host."""
        return any(driver.library == library for driver in self.drivers)

    def is_driver_symbol(self, symbol: str) -> bool:
        """Return whether a symbol is a driver function: cuLaunchKernel, but not cublasCreate."""
        return any(
            symbol.startswith(driver.symbols)
            and symbol[len(driver.symbols) : len(driver.symbols) + 1].isupper()
            for driver in self.drivers
            if driver.symbols
        )

    def provider(self, library: str) -> str:
        """Return the package that provides a library, or "" if unknown."""
        packages = (entry.package for entry in self.brings if fnmatchcase(library, entry.library))
        return next(packages, "")

    def owner(self, symbol: str) -> str:
        """Return the package that defines symbols in the namespace of `symbol`, or ""."""
        return next(
            (namespace.package for namespace in self.namespaces if namespace.part in symbol), ""
        )

    def is_loaded(self, file: str) -> bool:
        """Return whether a file is loaded by name whenever its package is used."""
        return any(fnmatchcase(file, entry.file) for entry in self.loaded)

    def is_choice(self, file: str) -> bool:
        """Return whether a file is one of several alternatives, of which the package loads one."""
        return any(fnmatchcase(file, choice.file) for choice in self.choices)


@lru_cache(maxsize=1)
def load_libraries() -> Libraries:
    """Load the bundled table of libraries."""
    return yaml_data.load_yaml_data(files.data("audit/libraries.yaml"), Libraries)
