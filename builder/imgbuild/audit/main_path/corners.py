"""Corners: modules of the walked packages that mention other packages, reached or not.

Input: a world. Output: the modules whose source imports another walked package. Reading them
all would cost minutes; a search for import lines finds them in a second.
"""

from __future__ import annotations

import re

from imgbuild.audit.main_path import policy
from imgbuild.audit.main_path.closure import MainPath, main_path
from imgbuild.audit.main_path.policy import Policy
from imgbuild.audit.packages.library import Book
from imgbuild.audit.packages.package_set import World

_IMPORTS = re.compile(rb"^[ \t]*(?:from|import)[ \t]+([A-Za-z_]\w*)", re.MULTILINE)


def survey(world: World, rules: Policy | None = None) -> MainPath:
    """The main path of `world`, and the corners to look into beside it."""
    rules = rules or policy.load()
    return main_path(world, rules, corners(world, rules))


def corners(world: World, rules: Policy) -> list[str]:
    """Modules of walked packages whose import lines mention other walked packages."""
    books = [world.books[package] for package in sorted(rules.walk) if package in world.books]
    roots = {book.package: {module.partition(".")[0] for module in book.modules} for book in books}
    everyone = set().union(*roots.values())
    found: list[str] = []
    for book in books:
        others = {name.encode() for name in everyone - roots[book.package]}
        found.extend(_mentioning(book, others))
    world.prefetch(found)
    return found


def _mentioning(book: Book, others: set[bytes]) -> list[str]:
    """The modules of `book` that import one of `others`."""
    files = {file: module for module, file in book.modules.items() if file.endswith(".py")}
    return [
        files[file]
        for file, source in book.content.read(files).items()
        if not others.isdisjoint(_IMPORTS.findall(source))
    ]
