"""The sources of packages that checks search: whole packages, or some of their files."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase

from imgbuild.audit.packages.package_set import PackageSet
from imgbuild.errors import FetchFailed


class PackageSources:
    """Sources of packages, each read once.

    `unread` are packages that are installed and were not read. `absent` are those whose sources
    a check required and that are not available.
    """

    def __init__(self, package_set: PackageSet, unread: Collection[str] = ()) -> None:
        self.package_set = package_set
        self.absent: set[str] = set()
        self._unread = unread
        self._texts: dict[str, tuple[bytes, ...] | None] = {}
        self._variables: dict[tuple[str, str], frozenset[str] | None] = {}

    def texts(self, package: str) -> tuple[bytes, ...] | None:
        """The sources of all modules of a package; None if it is not installed or not available."""
        if package not in self._texts:
            self._texts[package] = None
            wheel = self.package_set.wheels.get(package)
            if wheel is not None:
                try:
                    tops = {name.partition(".")[0] for name in wheel.sources}
                    tops &= {package.replace("-", "_"), *_TOPS.get(package, ())}
                    self._texts[package] = tuple(wheel.text(top).source for top in sorted(tops))
                except FetchFailed:
                    self.absent.add(package)
        return self._texts[package]

    def variables(self, package: str, prefix: str) -> frozenset[str] | None:
        """The names in capitals with a prefix in a package; None as for `texts`."""
        key = (package, prefix)
        if key not in self._variables:
            texts = self.texts(package)
            pattern = re.compile(rb"\b%s[A-Z0-9_]+" % prefix.encode())
            names = {name.decode() for text in texts or () for name in pattern.findall(text)}
            names = {name for name in names if not name.endswith("_")}
            self._variables[key] = None if texts is None else frozenset(names)
        return self._variables[key]

    def files(self, package: str, patterns: Iterable[str]) -> Mapping[str, bytes]:
        """Path → content of the Python files of a package that match one of `patterns`."""
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

    def lacks(self, package: str) -> bool:
        """Whether a package is not installed; False if the set may have more packages."""
        package_set = self.package_set
        known = package in package_set.wheels or package in self._unread or package_set.partial
        return not known


# Packages whose modules have other names.
_TOPS = {"flashinfer-python": ("flashinfer",)}
