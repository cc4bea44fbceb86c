"""Computes the main path of packages that are added to a published target.

The audit of the published packages had no errors. If its result cannot depend on the added
packages, only the code that the added packages run is followed.
"""

from __future__ import annotations

from collections.abc import Collection

from imgbuild.audit.main_path.closure import MainPath, main_path
from imgbuild.audit.main_path.named import add_named_packages
from imgbuild.audit.packages.package_set import PackageSet
from imgbuild.audit.packages.published import PublishedFacts
from imgbuild.audit.packages.queried import is_independent


def main_path_of_additions(
    package_set: PackageSet,
    named: Collection[str],
    added: Collection[str],
    published: Collection[str],
    known: PublishedFacts,
) -> MainPath:
    """Return the main path from the packages `named`.

    For `added`, see `add_named_packages`. `known` are facts about published targets, and
    `published` the packages of one target. All entry points are followed if `published` is empty,
    or if the packages are not `known`.
    """
    alone = is_independent(package_set, published, known)
    return main_path(package_set, add_named_packages(package_set, named, added, alone=alone))
