"""Corners: modules of the walked packages that mention other packages, reached or not.

Reading all modules would take minutes; a search for lines that import another walked package finds
these in a second.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from imgbuild.audit.main_path import policy
from imgbuild.audit.main_path.closure import MainPath, main_path
from imgbuild.audit.main_path.named import with_named
from imgbuild.audit.main_path.policy import MainPathPolicy
from imgbuild.audit.packages.library import LibraryWheel
from imgbuild.audit.packages.package_set import PackageSet

_IMPORTS = re.compile(rb"^[ \t]*(?:from|import)[ \t]+([A-Za-z_]\w*)", re.MULTILINE)


def survey(package_set: PackageSet, named: Collection[str] = ()) -> MainPath:
    """The main path of `package_set` with the packages `named`, and the corners of the policy."""
    marginal = corners(package_set, policy.load())
    return main_path(package_set, with_named(package_set, named), marginal)


def corners(package_set: PackageSet, rules: MainPathPolicy) -> list[str]:
    """Modules of walked packages whose import lines mention other walked packages."""
    library_wheels = [
        package_set.wheels[package]
        for package in sorted(rules.walk)
        if package in package_set.wheels
    ]
    roots = {
        library_wheel.package: {
            module.partition(".")[0] for module in package_set.modules_of(library_wheel.package)
        }
        for library_wheel in library_wheels
    }
    everyone = set().union(*roots.values())
    modules: list[str] = []
    for library_wheel in library_wheels:
        others = {name.encode() for name in everyone - roots[library_wheel.package]}
        modules.extend(_mentioning(library_wheel, others))
    package_set.prefetch(modules)
    return modules


def _mentioning(library_wheel: LibraryWheel, others: set[bytes]) -> list[str]:
    """The modules of `library_wheel` that import one of `others`."""
    files = {file: module for module, file in library_wheel.sources.items()}
    return [
        files[file]
        for file, source in library_wheel.content.read(files).items()
        if not others.isdisjoint(_IMPORTS.findall(source))
    ]
