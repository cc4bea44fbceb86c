"""Opens the sources of packages for checks that search them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase

from imgbuild.audit.packages.package_set import PackageSet
from imgbuild.errors import FetchFailed


class PackageSources:
    """Provides the sources of packages, and reads each source once.

    `unread` are installed packages that were not read. `absent` are packages whose sources a check
    required but that are not available.
    """

    def __init__(self, package_set: PackageSet, unread: Collection[str] = ()) -> None:
        self.package_set = package_set
        self.absent: set[str] = set()
        self._unread = unread
        self._names: dict[str, frozenset[str] | None] = {}
        self._variables: dict[tuple[str, str], frozenset[str]] = {}

    def variables(self, package: str, prefix: str) -> frozenset[str] | None:
        """Return the names in capital letters that start with `prefix` in the sources of a package.

        Return None if the package is not installed or the sources are not available.
        """
        if package not in self._names:
            self._names[package] = None
            wheel = self.package_set.wheels.get(package)
            if wheel is not None:
                tops = (package.replace("-", "_"), *_TOPS.get(package, ()))
                try:
                    self._names[package] = wheel.names_in_capitals(tops)
                except FetchFailed:
                    self.absent.add(package)
        names = self._names[package]
        if names is None:
            return None
        if (package, prefix) not in self._variables:
            self._variables[package, prefix] = frozenset(
                name for name in names if name.startswith(prefix) and name != prefix
            )
        return self._variables[package, prefix]

    def files(self, package: str, patterns: Iterable[str]) -> Mapping[str, bytes]:
        """Return the contents of a package's Python files that match one of `patterns`, by path."""
        wheel = self.package_set.wheels.get(package)
        if wheel is None:
            return {}
        try:
            paths = [
                path
                for path in wheel.files
                if path.endswith(".py") and any(fnmatchcase(path, each) for each in patterns)
            ]
            return wheel.read(paths)
        except FetchFailed:
            self.absent.add(package)
            return {}

    def lacks_package(self, package: str) -> bool:
        """Whether a package is not installed. False if the set may contain more packages."""
        package_set = self.package_set
        known = package in package_set.wheels or package in self._unread or package_set.partial
        return not known


# Packages whose modules have other names.
_TOPS = {"flashinfer-python": ("flashinfer",)}
