"""Defines protocols of package sets, so that tests can pass small sets to checks.

`package_set.PackageSet` and `view.View` implement all protocols.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from imgbuild.audit.names.model import Modules


class ModuleSource(Modules, Protocol):
    """Modules by name, and the modules of each package."""

    def modules_of(self, package: str) -> Mapping[str, str]:
        """Map each module of `package` to its file."""

    def prefetch(self, modules: Iterable[str]) -> None:
        """Read many modules together, which is faster than one by one."""


class InstalledPackages(ModuleSource, Protocol):
    """Packages that are installed together on one machine."""

    @property
    def python(self) -> str:
        """The Python version: "3.11"."""

    @property
    def arch(self) -> str:
        """The architecture, as users write it: "x86_64", "arm64"."""

    @property
    def partial(self) -> bool:
        """Whether packages were omitted deliberately."""

    def version(self, package: str) -> str | None:
        """Return the version of `package`, or None if the package set does not contain it."""

    def files(self, package: str) -> Mapping[str, int]:
        """Map the paths in a package's wheel to sizes."""


class ImportablePackages(InstalledPackages, Protocol):
    """A package set as used by guards, the main path, and the checks of imports and calls."""

    def exists(self, module: str) -> bool | None:
        """Whether `module` can be imported, or None if unknown. The module is not read."""

    def owner(self, module: str) -> str | None:
        """Return the package that contains `module`, or None if there is none."""

    def read(self, package: str, path: str) -> bytes | None:
        """Return the content of a small file of `package`, or None if it does not exist."""

    def mentioning(self, package: str, word: str) -> Iterable[str]:
        """Return the modules below `package` whose source contains the word."""

    def read_ahead(self, package: str) -> None:
        """Read the modules below a package in advance, if that is cheap."""
