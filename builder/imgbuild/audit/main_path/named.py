"""Packages that the user names: importing them is part of the main path.

These are the pins of a target, the packages that an extension adds, and the pins that are audited
without a target.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from imgbuild.audit.main_path import policy
from imgbuild.audit.main_path.policy import MainPathEntry, MainPathPolicy
from imgbuild.audit.packages.package_set import PackageSet

# Top-level modules in wheels that are not imported by that name.
ASIDE = frozenset(("test", "tests", "testing", "docs", "examples", "benchmarks", "scripts"))
WHY = "named by the user, to be imported"
# Not followed: it is large, and has optional parts behind values that other modules compute.
LEFT_OUT = frozenset(("torch",))


def with_named(package_set: PackageSet, named: Collection[str]) -> MainPathPolicy:
    """The default policy, in which `named` packages are imported by their top-level modules."""
    rules = policy.load()
    roots = {
        module.partition(".")[0] for package in named for module in package_set.modules_of(package)
    }
    entries = tuple(
        MainPathEntry(name=root, why=WHY)
        for root in sorted(roots - ASIDE)
        if not root.startswith("_") and package_set.owner(root) in named
    )
    return msgspec.structs.replace(
        rules, imported=frozenset(named) - rules.walk - LEFT_OUT, entries=(*rules.entries, *entries)
    )
