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
    books = [
        package_set.books[package] for package in sorted(rules.walk) if package in package_set.books
    ]
    roots = {
        book.package: {module.partition(".")[0] for module in package_set.modules_of(book.package)}
        for book in books
    }
    everyone = set().union(*roots.values())
    found: list[str] = []
    for book in books:
        others = {name.encode() for name in everyone - roots[book.package]}
        found.extend(_mentioning(book, others))
    package_set.prefetch(found)
    return found


def _mentioning(book: LibraryWheel, others: set[bytes]) -> list[str]:
    """The modules of `book` that import one of `others`."""
    files = {file: module for module, file in book.sources.items()}
    return [
        files[file]
        for file, source in book.content.read(files).items()
        if not others.isdisjoint(_IMPORTS.findall(source))
    ]
