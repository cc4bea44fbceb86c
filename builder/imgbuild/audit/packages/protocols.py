"""Defines protocols of package sets, so that tests can pass small sets to checks.

`package_set.PackageSet` and `view.View` implement all protocols.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from imgbuild.audit.names.model import Modules


class ModuleSource(Modules, Protocol):
    """A collection of modules by name, and the modules of each package."""

    def modules_of(self, package: str) -> Mapping[str, str]:
        """Map each module of `package` to its file."""

    def prefetch(self, modules: Iterable[str]) -> None:
        """Read many modules together, which is faster than one by one."""


class InstalledPackages(ModuleSource, Protocol):
    """Packages that are installed together on one machine."""

    @property
    def python(self) -> str:
        """The Python version, such as "3.11"."""

    @property
    def arch(self) -> str:
        """The architecture in imgbuild's notation: "x86_64" or "arm64"."""

    @property
    def partial(self) -> bool:
        """Whether packages were omitted deliberately."""

    def version(self, package: str) -> str | None:
        """Return the version of `package`, or None if it is not installed."""

    def files(self, package: str) -> Mapping[str, int]:
        """Map the paths in a package's wheel to sizes."""


class ImportablePackages(InstalledPackages, Protocol):
    """A package set for guards, the main path, and the checks of imports and calls."""

    def exists(self, module: str) -> bool | None:
        """Return whether `module` can be imported, or None if unknown. The module is not read."""

    def owner(self, module: str) -> str | None:
        """Return the package that contains `module`, or None if no package does."""

    def read(self, package: str, path: str) -> bytes | None:
        """Return the content of a small file of `package`, or None if it does not exist."""

    def mentioning(self, package: str, word: str) -> Iterable[str]:
        """Return the modules below the module `package` whose source contains `word`."""

    def read_ahead(self, package: str) -> None:
        """Read the modules below the module `package` in advance, if that is cheap."""
