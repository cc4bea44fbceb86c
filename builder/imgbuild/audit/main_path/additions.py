"""Packages that a user adds to a published target: what importing them runs is main path too.

Input: a world and the names of added packages. Output: a `Policy` with their modules as entry
points. The published target has been audited and tried; what is added is only read, so that it must
at least import with what is there.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from imgbuild.audit.main_path import policy
from imgbuild.audit.main_path.policy import Entry, Policy
from imgbuild.audit.packages.package_set import World

# Modules that wheels carry along at the top, and that nobody imports by that name.
ASIDE = frozenset(("test", "tests", "testing", "docs", "examples", "benchmarks", "scripts"))
WHY = "added to a published target, to be imported"


def widened(world: World, added: Collection[str]) -> Policy:
    """The policy of this release, in which what `added` packages do on import is followed."""
    rules = policy.load()
    roots = {module.partition(".")[0] for package in added for module in world.modules_of(package)}
    entries = tuple(
        Entry(name=root, why=WHY)
        for root in sorted(roots - ASIDE)
        if not root.startswith("_") and world.owner(root) in added
    )
    return msgspec.structs.replace(
        rules, walk=rules.walk | frozenset(added), entries=(*rules.entries, *entries)
    )
