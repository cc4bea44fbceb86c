"""Records the names that the audit of a published package set looks up.

An audit depends only on the packages and modules that it looks up. If the added packages have none
of these names, the audit of the published packages gives the same result as before. Only the code
that the added packages run must then be audited.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Any

from imgbuild import codec
from imgbuild.audit.packages.package_set import PackageSet
from imgbuild.audit.packages.published import PublishedFacts
from imgbuild.lock.resolution import Wheel
from imgbuild.system import files, yaml_data
from imgbuild.values import Sha256, normalize_package, sha256


def normalized_name(name: str) -> str:
    """Return the normalized name of a package, or of the top-level module in a dotted name."""
    return normalize_package(name.partition(".")[0])


def lookup_names(package_set: PackageSet, packages: Iterable[str]) -> frozenset[str]:
    """Return the names under which a lookup can find one of `packages` or their modules."""
    return frozenset(
        normalized_name(name)
        for package in packages
        for name in (package, *package_set.modules_of(package), *_folders(package_set, package))
    )


def _folders(package_set: PackageSet, package: str) -> set[str]:
    """Return the top-level folders of all files.

    They are included because a folder can be imported as a namespace.
    """
    return {path.partition("/")[0] for path in package_set.files(package) if "/" in path}


@lru_cache(maxsize=1)
def entry_points() -> Sha256:
    """Return the hash of the entry points that audits follow, without the reasons (`why`)."""
    policy = yaml_data.load_yaml_data(files.data("audit/entry_points.yaml"), dict[str, Any])
    policy["entries"] = [
        {key: value for key, value in entry.items() if key != "why"} for entry in policy["entries"]
    ]
    return sha256(codec.encode_compact(policy))


def package_set_key(wheels: Collection[Wheel], python: str, arch: str, glibc: str) -> Sha256:
    """Return a hash of a package set's files, the machine and the audit's entry points."""
    hashes = sorted(wheel.sha256 for wheel in wheels)
    return sha256(codec.encode_compact([python, arch, glibc, entry_points(), hashes]))


def is_independent(
    package_set: PackageSet, published: Collection[str], known: PublishedFacts
) -> bool:
    """Return whether the audit of the packages `published` does not depend on other packages.

    Returns False if the files differ from a published target, or if the names that its audit looks
    up are not `known`.
    """
    before = package_set.wheels.keys() & set(map(normalize_package, published))
    wheels = [package_set.wheels[name].wheel for name in before]
    key = package_set_key(wheels, package_set.python, package_set.arch, package_set.glibc)
    names = known.names(key)
    others = package_set.wheels.keys() - before
    return names is not None and names.isdisjoint(lookup_names(package_set, others))
