"""Finds corners: modules off the main path that are checked because they import walked packages.

Corners are modules of walked packages that import another walked package. They are found by a text
search for import lines, which takes a second. Reading all modules would take minutes.
"""

from __future__ import annotations

from collections.abc import Collection

from imgbuild.audit.main_path import policy
from imgbuild.audit.main_path.closure import MainPath, main_path
from imgbuild.audit.main_path.named import add_named_packages
from imgbuild.audit.main_path.policy import MainPathPolicy
from imgbuild.audit.packages.package_set import PackageSet


def main_path_with_corners(
    package_set: PackageSet, named: Collection[str] = (), added: Collection[str] = ()
) -> MainPath:
    """Return the main path with corners.

    For `named` and `added`, see `add_named_packages`.
    """
    marginal = corner_modules(package_set, policy.load_policy())
    return main_path(package_set, add_named_packages(package_set, named, added), marginal)


def corner_modules(package_set: PackageSet, rules: MainPathPolicy) -> list[str]:
    """Return the modules of walked packages that contain import lines of other walked packages."""
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
        others = everyone - roots[library_wheel.package]
        modules.extend(
            module
            for module, imported in library_wheel.imports.items()
            if not others.isdisjoint(imported)
        )
    package_set.prefetch(modules)
    return modules
