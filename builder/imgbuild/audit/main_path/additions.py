"""Packages that a user adds to a published target: importing them is part of the main path.

The published target has been audited and tested; added packages are only read, so they must at
least import.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from imgbuild.audit.main_path import policy
from imgbuild.audit.main_path.policy import MainPathEntry, MainPathPolicy
from imgbuild.audit.packages.package_set import PackageSet

# Top-level modules in wheels that are not imported by that name.
ASIDE = frozenset(("test", "tests", "testing", "docs", "examples", "benchmarks", "scripts"))
WHY = "added to a published target, to be imported"


def widened(package_set: PackageSet, added: Collection[str]) -> MainPathPolicy:
    """The default policy with the modules of `added` packages as entry points."""
    rules = policy.load()
    roots = {
        module.partition(".")[0] for package in added for module in package_set.modules_of(package)
    }
    entries = tuple(
        MainPathEntry(name=root, why=WHY)
        for root in sorted(roots - ASIDE)
        if not root.startswith("_") and package_set.owner(root) in added
    )
    return msgspec.structs.replace(
        rules, walk=rules.walk | frozenset(added), entries=(*rules.entries, *entries)
    )
